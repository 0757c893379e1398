"""The comparison of two results, with the differences that are significant. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench_report import ms
from bench_results import Result

from torch_images.errors import UsageError
from torch_images.markdown import table

CERTAIN = 0.01  # largest p-value of a significant difference
NOTABLE = 0.02  # smaller differences count as equal, because clocks drift as much


@dataclass(frozen=True)
class Difference:
    """One case in two results: the ratio of their times, and whether it is significant.

    `first` and `second` are medians in seconds. `chance` is the p-value of the Mann-Whitney test,
    two-sided; None if a result has no samples.
    """

    key: str
    first: float
    second: float
    chance: float | None

    @property
    def ratio(self) -> float:
        """The second's time over the first's."""
        return self.second / self.first

    @property
    def verdict(self) -> str:
        """The comparison in a word."""
        if self.chance is None:
            return "no samples"
        if self.chance >= CERTAIN or abs(self.ratio - 1) < NOTABLE:
            return "equal"
        return "slower" if self.ratio > 1 else "faster"


def compare(first: Result, second: Result) -> tuple[Difference, ...]:
    """The cases in both results. Raises UsageError if there are none."""
    from scipy.stats import mannwhitneyu

    differences = []
    for ours in first.figures:
        theirs = second.figure(ours.key)
        if theirs:
            chance = None
            if ours.samples and theirs.samples:
                chance = float(mannwhitneyu(ours.samples, theirs.samples).pvalue)
            differences.append(Difference(ours.key, ours.median, theirs.median, chance))
    if not differences:
        raise UsageError(f"{first.name} and {second.name} have no case in common")
    return tuple(differences)


def compared(first: Result, second: Result, differences: Sequence[Difference]) -> str:
    """A comparison as Markdown, with a note on results without samples."""
    lines = [f"A: {_title(first)}", f"B: {_title(second)}", ""]
    keys = {d.key for d in differences}
    for letter, result in (("A", first), ("B", second)):
        if any(f.key in keys and not f.samples for f in result.figures):
            lines += [
                f"{letter} has no samples: a document gives one figure for each case.",
                "Whether a difference is more than chance cannot be told from that.",
                "",
            ]
    rows = []
    for d in differences:
        chance = "" if d.chance is None else f"{d.chance:.1g}"
        rows.append([d.key, ms(d.first), ms(d.second), f"{d.ratio:.3f}", d.verdict, chance])
    lines += table(["Case", "A, ms", "B, ms", "B / A", "", "chance"], rows)
    mean = math.exp(statistics.fmean(math.log(d.ratio) for d in differences))
    lines += ["", f"Geometric mean of B / A over {len(differences)} cases: {mean:.3f}."]
    return "\n".join(lines)


def _title(result: Result) -> str:
    facts = result.machine
    return f"{result.name}: {facts['gpu']}, torch {facts['torch']}, driver {facts['driver']}"
