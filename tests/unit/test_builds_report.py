"""What becomes of the figures of the benchmark of builds; the builds themselves take an hour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.builds import rows
from benchmarks.builds.__main__ import read
from benchmarks.builds.report import Line, summary
from tests.unit.fakes import FakeRunner

FIGURES = {
    "cold": [
        {"our seconds": 30.0, "plain seconds": 100.0, "our bytes": 2e9},
        {"our seconds": 60.0, "plain seconds": 100.0, "our bytes": 2e9},
        {"our seconds": 20.0, "plain seconds": 80.0, "our bytes": 3e9},
    ],
    "commands": [{"list seconds": 0.4}],
    "release": [],
}


def test_ratios_are_taken_within_each_round() -> None:
    found = summary(FIGURES)
    assert found[0] == Line(
        row="cold", what="seconds", ours=30, plain=100, ratio=0.3, spread=(0.25, 0.6)
    )
    assert found[1] == Line(
        row="cold", what="bytes", ours=2e9, plain=None, ratio=None, spread=(2e9, 3e9)
    )
    assert [line.what for line in found[2:]] == ["list seconds"]


def test_figures_of_other_sources_are_not_added_to(tmp_path: Path) -> None:
    kept, head = tmp_path / "builds.json", {"commit": "new", "machine": {"cores": 2}}
    document = {"commit": "old", "machine": {"cores": 2}, "rows": FIGURES}
    with pytest.raises(SystemExit, match="to go on from; leave --resume out"):
        read(kept, head, FakeRunner())
    kept.write_text(json.dumps(document))
    assert read(kept, head, FakeRunner()) == ({"commit": "old", "machine": {"cores": 2}}, FIGURES)
    with pytest.raises(SystemExit, match="other sources or another machine"):
        read(kept, head, FakeRunner({"git": (1, "")}))
    with pytest.raises(SystemExit, match="other sources or another machine"):
        read(kept, head | {"machine": {"cores": 4}}, FakeRunner())


def test_the_user_runs_the_command_of_the_readme(root: Path) -> None:
    command = " ".join(("./inv", "build", *rows.RUNTIME))
    assert f"```console\n{command}\n```" in (root / "README.md").read_text()
