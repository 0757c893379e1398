"""What the benchmark of builds reads in /proc, and the names of its figures."""

from __future__ import annotations

from benchmarks.builds.measure import Measured, measuring, of_machine, ticks
from benchmarks.builds.report import summary


def test_of_machine_adds_what_is_in_use_and_what_waits() -> None:
    first = "cpu  1000 200 300 5000 60 7 8 90 400 50\ncpu0 1 1 1 1 1 1 1 1 1 1\nintr 5\n"
    assert of_machine(first) == (1000 + 200 + 300 + 7 + 8, 90, 5000 + 60)


def test_ticks_reads_behind_a_name_with_spaces() -> None:
    assert ticks("42 (a) b) S 1 42 42 0 -1 4194560 9 9 9 9 10 20 300 4000 20 0 1") == 4330


def test_measuring_counts_this_process() -> None:
    with measuring() as spent:
        sum(range(3_000_000))
    assert 0 < spent.own < 60
    assert spent.processors >= 0


def test_figures_are_compared_by_clock_and_by_processors() -> None:
    ours = Measured(seconds=10, processors=15, stolen=1).figures("our")
    plain = Measured(seconds=40, processors=30).figures("plain")
    ratios = {line.what: line.ratio for line in summary({"cold": [ours | plain]})}
    assert (ratios["seconds"], ratios["processor seconds"]) == (0.25, 0.5)
    assert ratios["stolen, our seconds"] is None
