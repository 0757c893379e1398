"""What the benchmark of pulls counts; the pulls themselves take half an hour."""

from __future__ import annotations

from benchmarks.builds.pull import spread, ticks

STAT = "7 (a) b (c) S 1 7 7 0 -1 4194560 900 800 0 0 100 20 3000 400 20 0 9 0 5 0 0"


def test_ticks_are_of_a_process_and_its_children() -> None:
    assert ticks(STAT) == 100 + 20 + 3000 + 400


def test_the_spread_of_rounds() -> None:
    assert spread([3.0, 1.0, 2.04]) == "2.0 (1.0 to 3.0)"
