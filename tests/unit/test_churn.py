"""The sequence of allocations that the benchmark of allocators goes through."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.scripts import load

FILE = "scripts/bench/churn.py"


@pytest.fixture(scope="module")
def churn() -> ModuleType:
    """The module, which lies beside no package."""
    return load(FILE)


@pytest.mark.parametrize("limit", [2**33, 2**31])
def test_memory_is_taken_within_the_limit_and_all_given_back(churn: ModuleType, limit: int) -> None:
    plan = churn.plan(limit=limit)
    assert plan == churn.plan(limit=limit)
    held: list[int] = []
    peak = 0
    for size, drop in plan:
        if size:
            assert drop == -1
            held.append(size)
        else:
            held.pop(drop)
        peak = max(peak, sum(held))
    assert held == []
    assert 0.9 * limit < peak <= limit
    assert sum(1 for size, _ in plan if size) == churn.STEPS
    assert len({size for size, _ in plan}) > churn.STEPS / 2
