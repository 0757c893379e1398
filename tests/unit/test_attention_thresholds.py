"""Rules from a measured grid: as wide as nothing slower allows."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.attention.thresholds import Point, Rule, points, rule, table


def test_a_rule_takes_all_that_nothing_slower_lies_above() -> None:
    found = [
        Point(1024, 1e11, 1.2),
        Point(1024, 3e11, 0.95),
        Point(2048, 1e11, 0.9),
        Point(2048, 3e11, 0.8),
        Point(4096, 1e10, 1.1),
    ]
    assert rule(found) == Rule(1024, 3e11, taken=2, best=0.8, worst=0.95)
    assert rule([*found, Point(4096, 1e11, 0.9)]) == Rule(2048, 1e11, 3, best=0.8, worst=0.9)
    assert rule([Point(1024, 1e11, 1.01)]) is None
    assert rule([]) is None


POINTS = st.lists(
    st.builds(
        Point,
        st.sampled_from([1024, 2048, 4096]),
        st.sampled_from([1e10, 1e11, 1e12]),
        st.floats(0.3, 2),
    )
)


@given(POINTS)
def test_no_rule_takes_what_is_slower(found: list[Point]) -> None:
    made = rule(found)
    if made is None:  # whatever is taken, something slower lies above it
        for point in found:
            above = [
                q
                for q in found
                if q.shortest >= point.shortest and q.operations >= point.operations
            ]
            assert max(q.ratio for q in above) > 1
        return
    taken = [p for p in found if p.shortest >= made.shortest and p.operations >= made.operations]
    assert len(taken) == made.taken > 0
    assert made.best == min(p.ratio for p in taken)
    assert made.worst == max(p.ratio for p in taken) <= 1


def row(width: int, *, deterministic: bool, call: float, queued: float) -> dict[str, Any]:
    ratios = {"call": call, "queued": queued, "backward": 0.7}
    return {
        "shape": [2, 16, 16, 4096, 1024, width],
        "deterministic": deterministic,
        "operations": 1e11,
        "pairs": {name: {"ratio": ratio} for name, ratio in ratios.items()},
    }


def test_the_slowest_way_to_call_counts() -> None:
    rows = [row(64, deterministic=False, call=0.9, queued=1.1)]
    asked: dict[str, Any] = {"deterministic": False, "width": 64}
    assert list(points(rows, "forward", **asked)) == [Point(1024, 1e11, 1.1)]
    assert list(points(rows, "backward", **asked)) == [Point(1024, 1e11, 0.7)]
    assert list(points(rows, "forward", deterministic=True, width=64)) == []


def test_it_is_written_as_rules_have_it() -> None:
    rows = [
        row(64, deterministic=False, call=0.9, queued=0.8),
        row(128, deterministic=True, call=1.5, queued=0.8),
    ]
    text = "\n".join(table({"rows": rows}))
    assert (
        "(FORWARD, USUAL): {\n    64: From(1024, 1.00e+11),  # 1 of 1: 0.90 to 0.90\n"
        "    # 128: no rule; 0 measured\n},\n(FORWARD, DETERMINISTIC): {\n"
        "    # 64: no rule; 0 measured\n    # 128: no rule; 1 measured\n},"
    ) in text
    assert "(BACKWARD, DETERMINISTIC): {\n    # 64: no rule; 0 measured\n    128: From(" in text
