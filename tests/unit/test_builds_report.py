"""What becomes of the figures of the benchmark of builds; the builds themselves take an hour."""

from __future__ import annotations

from pathlib import Path

from benchmarks.builds.report import Line, plot, summary, table

FIGURES = {
    "cold": [
        {"our seconds": 30.0, "plain seconds": 100.0, "our bytes": 2e9},
        {"our seconds": 60.0, "plain seconds": 100.0, "our bytes": 2e9},
        {"our seconds": 20.0, "plain seconds": 80.0, "our bytes": 3e9},
    ],
    "commands": [{"list seconds": 0.4}],
    "patch": [],
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
