"""What rules.py may say, from a measured grid: `python -m benchmarks.attention.thresholds FILE`.

FILE is the result of `python /attention --measure grid`. A rule takes a step of one width in one
mode from so many queries and keys, and so many operations, on. Of the rules under which nothing
that was measured is slower than torch, the one that takes the most is printed, as rules.py has it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

# A step counts by the slowest of these, its median ratio to torch's time.
STEPS = {"forward": ("call", "queued"), "backward": ("backward",)}
MODES = {False: "usual", True: "deterministic"}


@dataclass(frozen=True)
class Point:
    """One measured shape: the fewer of queries and keys, operations, our time over torch's."""

    shortest: int
    operations: float
    ratio: float


@dataclass(frozen=True)
class Rule:
    """From where on a step is taken, how many points that are, and the best and worst of them."""

    shortest: int
    operations: float
    taken: int
    best: float
    worst: float


def points(
    rows: Iterable[Mapping[str, Any]], step: str, *, deterministic: bool, width: int
) -> Iterator[Point]:
    """The measured points of one step, mode and width."""
    for row in rows:
        *_, queries, keys, own = row["shape"]
        if own == width and row["deterministic"] == deterministic:
            ratio = max(row["pairs"][name]["ratio"] for name in STEPS[step])
            yield Point(min(queries, keys), row["operations"], ratio)


def rule(found: Iterable[Point], limit: float = 1.0) -> Rule | None:
    """The rule that takes the most points, none of them above `limit`; None if there is none."""
    all_points = list(found)
    rules = []
    for shortest, operations in product(
        {p.shortest for p in all_points}, {p.operations for p in all_points}
    ):
        taken = [
            p.ratio for p in all_points if p.shortest >= shortest and p.operations >= operations
        ]
        if taken and max(taken) <= limit:
            rules.append(Rule(shortest, operations, len(taken), min(taken), max(taken)))
    return max(rules, key=lambda r: (r.taken, -r.shortest, -r.operations), default=None)


def table(result: Mapping[str, Any]) -> Iterator[str]:
    """Lines for rules.py."""
    rows = result["rows"]
    widths = sorted({row["shape"][-1] for row in rows})
    for step, (deterministic, mode) in product(STEPS, MODES.items()):
        yield f"({step.upper()}, {mode.upper()}): {{"
        for width in widths:
            measured = list(points(rows, step, deterministic=deterministic, width=width))
            found = rule(measured)
            if found is None:
                yield f"    # {width}: no rule; {len(measured)} measured"
                continue
            yield (
                f"    {width}: From({found.shortest}, {found.operations:.2e}),"
                f"  # {found.taken} of {len(measured)}: {found.best:.2f} to {found.worst:.2f}"
            )
        yield "},"


if __name__ == "__main__":
    print("\n".join(table(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
