"""What the benchmark of pulls counts; the pulls themselves take half an hour."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.builds.pull import spread, ticks, used

STAT = "7 (a) b (c) S 1 7 7 0 -1 4194560 900 800 0 0 100 20 3000 400 20 0 9 0 5 0 0"


def test_ticks_are_of_a_process_and_its_children() -> None:
    assert ticks(STAT) == 100 + 20 + 3000 + 400


def test_an_engine_is_dockerd_and_containerd(tmp_path: Path) -> None:
    (tmp_path / "exec" / "containerd").mkdir(parents=True)
    engine = f"unix://{tmp_path}/docker.sock"
    (tmp_path / "pid").write_text(f"{os.getpid()}\n")
    with pytest.raises(FileNotFoundError):
        used(engine)  # without containerd
    (tmp_path / "exec" / "containerd" / "containerd.pid").write_text(str(os.getpid()))
    before = used(engine)
    while used(engine) <= before:  # both are this process
        sum(range(10**5))


def test_the_spread_of_rounds() -> None:
    assert spread([3.0, 1.0, 2.04]) == "2.0 (1.0 to 3.0)"
