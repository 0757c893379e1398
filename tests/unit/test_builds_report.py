"""What becomes of the figures of the benchmark of builds; the builds themselves take an hour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.builds import lab, rows
from benchmarks.builds.__main__ import read
from benchmarks.builds.report import Line, left_out, plot, summary, table
from tests.unit.fakes import FakeRunner
from torch_images.config.choose import choose
from torch_images.config.lock_requests import wheel_input
from torch_images.config.types import Config

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


def test_table_and_plot(tmp_path: Path) -> None:
    lines = table(summary(FIGURES)).splitlines()
    assert lines[2] == "| cold | seconds | 30.0 s | 100.0 s | 0.30 | 0.25, 0.60 |"
    assert lines[3] == "| cold | bytes | 2.00 GB |  |  | 2.00 GB, 3.00 GB |"
    files = [tmp_path / name for name in ("a.svg", "b.svg")]
    for file in files:
        plot(summary(FIGURES), file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert "cold, seconds" in files[0].read_text()


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


@pytest.mark.parametrize("words", [rows.RUNTIME, rows.WHOLE])
def test_plain_builds_have_the_base_and_the_wheels_of_ours(
    config: Config, words: tuple[str, ...]
) -> None:
    named = {name.removeprefix("--"): at for name, at in zip(words[::2], words[1::2], strict=True)}
    spec = choose(config, **named)
    assert (spec.base.name, wheel_input(config, spec).name) == (lab.BASE, lab.WHEELS)


def test_each_row_says_what_it_leaves_out(root: Path) -> None:
    assert set(rows.LEAVES_OUT) == set(rows.ROWS)
    page = (root / "docs" / "performance.md").read_text()
    assert left_out(rows.LEAVES_OUT) in page
