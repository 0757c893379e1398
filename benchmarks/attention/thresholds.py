"""What rules.py may say, from measured grids: `python -m benchmarks.attention.thresholds FILE ...`.

Each FILE is the result of `python /attention`, of the grid or of the report's shapes, with one
release of torch. A rule takes a step of one width, mask and mode from so many queries and keys, and
so many operations, on. Every measured point from there on is faster, in every file; a point just
below the limit counts as well. The rules are printed as rules.py has them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

# By step and mode, the pairs of which the slowest median counts. While a CUDA graph is captured,
# the host's time does not count.
PAIRS = {
    ("forward", "usual"): ("call", "queued"),
    ("forward", "captured"): ("queued", "graph"),
    ("forward", "deterministic"): ("call", "queued"),
    ("backward", "usual"): ("backward",),
    ("backward", "captured"): ("graph_backward",),
    ("backward", "deterministic"): ("backward",),
}
FASTER = 0.995  # of torch's time
NEAR = 0.9  # of a limit: as good as on it


@dataclass(frozen=True)
class Point:
    """One measured shape: the fewer of queries and keys, operations, our time over torch's."""

    shortest: int
    operations: float
    ratio: float


@dataclass(frozen=True)
class Rule:
    """From where on a step is taken, and the worst of the measured points there."""

    shortest: int
    operations: float
    worst: float


def points(
    rows: Iterable[Mapping[str, Any]], kind: tuple[str, str], width: int, *, causal: bool
) -> Iterator[Point]:
    """The measured points of one step and mode, width and mask."""
    for row in rows:
        _, _, _, *lengths, own = row["shape"]
        ratios = [row["pairs"][name]["ratio"] for name in PAIRS[kind] if name in row["pairs"]]
        alike = row.get("deterministic", False) == (kind[1] == "deterministic")
        if ratios and alike and (own, row["causal"]) == (width, causal):
            yield Point(min(lengths), row["operations"], max(ratios))


def rules(found: Iterable[Point]) -> Iterator[Rule]:
    """For each number of queries and keys the least limit, unless a shorter one has it too."""
    measured = list(found)
    least = float("inf")
    for shortest in sorted({point.shortest for point in measured}):
        long = [point for point in measured if point.shortest >= shortest * NEAR]
        starts = {point.operations for point in long if point.shortest == shortest}
        for operations in sorted(starts):
            taken = [p.ratio for p in long if p.operations >= operations * NEAR]
            if max(taken) <= FASTER:
                if operations < least * NEAR:
                    least = operations
                    yield Rule(shortest, operations, max(taken))
                break


def table(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Lines for rules.py, for `ruff format`."""
    measured = list(rows)
    widths = sorted({row["shape"][-1] for row in measured})
    for step, mode in PAIRS:
        yield f"    ({step.upper()}, {mode.upper()}): {{"
        for width, causal in product(widths, (False, True)):
            found = list(rules(points(measured, (step, mode), width, causal=causal)))
            if found:
                pairs = ", ".join(f"({each.shortest}, {short(each.operations)})" for each in found)
                worst = max(each.worst for each in found)
                yield f"        ({width}, {causal}): [{pairs}],  # {worst:.2f} at most"
        yield "    },"


def short(operations: float) -> str:
    """Three digits, rounded down: the measured point stays beyond its limit."""
    power = 10 ** (math.floor(math.log10(operations)) - 2)
    return f"{math.floor(operations / power) * power:.3g}".replace("e+", "e")


if __name__ == "__main__":
    reports = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    print("\n".join(table(row for report in reports for row in report["rows"])))
