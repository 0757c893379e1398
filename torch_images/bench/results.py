"""What `torch-bench` measured -> a report, a comparison. Pure, but for reading the files.

A result holds every sample of every case, in seconds for one call (scripts/bench).
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch_images.errors import UsageError, suggest
from torch_images.markdown import table

SCHEMA = 1
CERTAIN = 0.01  # how likely a difference may be chance
NOTABLE = 0.02  # smaller ones are noted as equal, whatever their certainty: clocks drift as much
COPY = "memory bandwidth/copy, 2 GiB/bytes"
_GEMMS = ("gemm", "precision")
_HALVES = ("fp16", "bf16")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One case of a result; `median`, `low` and `high` (quartiles) in seconds for one call.

    `flops` and `moved` are floating-point operations and bytes of a call, `items` how many `unit`s
    it deals with; 0 where that says nothing. `samples` are () for figures of documents.
    """

    key: str
    median: float
    low: float = 0.0
    high: float = 0.0
    samples: tuple[float, ...] = ()
    flops: float = 0
    moved: float = 0
    items: int = 0
    unit: str = ""
    ran: str = ""

    @property
    def table(self) -> str:
        """The table that the case belongs to, such as "gemm"."""
        return self.key.split("/")[0]

    @property
    def name(self) -> str:
        """The rest of its key: its shape, and what else tells it from other cases of the table."""
        return self.key.partition("/")[2].rpartition("/")[0]

    @property
    def precision(self) -> str:
        """The type of its values, such as "fp16"."""
        return self.key.rpartition("/")[2]

    @property
    def spread(self) -> float:
        """The interquartile range of the samples, as a share of the median."""
        return (self.high - self.low) / self.median

    @property
    def rate(self) -> str:
        """What its time comes to, with the unit: TFLOPS, GB/s, or items per second."""
        if self.items:
            return f"{self.items / self.median:,.0f} {self.unit}/s"
        if self.moved:
            return f"{self.moved / self.median / 1e9:,.0f} GB/s"
        return f"{self.flops / self.median / 1e12:,.1f} TFLOPS" if self.flops else ""


@dataclass(frozen=True, kw_only=True)
class Result:
    """All figures of one run, or of a document; `corrections` say where a document is wrong."""

    name: str
    date: str
    machine: Mapping[str, Any]
    figures: tuple[Figure, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    corrections: tuple[Mapping[str, str], ...] = ()
    source: str = ""

    def figure(self, key: str) -> Figure | None:
        """A case by its key; None where this result lacks it."""
        return next((f for f in self.figures if f.key == key), None)

    @cached_property
    def ceilings(self) -> dict[str, float]:
        """The best of this GPU: operations per second in products by precision, bytes in copies.

        Half precisions share one, since attention, convolutions and layers may use either.
        """
        best: dict[str, float] = {}
        for f in self.figures:
            if f.table in _GEMMS and f.flops:
                best[f.precision] = max(best.get(f.precision, 0), f.flops / f.median)
        half = max((best[p] for p in _HALVES if p in best), default=0)
        best |= {p: half for p in _HALVES if half}
        copy = self.figure(COPY)
        return best | ({"bytes": copy.moved / copy.median} if copy and copy.moved else {})

    def share(self, figure: Figure) -> float | None:
        """How much of this GPU's own ceiling a case reaches; None where that says nothing."""
        if figure.table == "gpu to gpu":
            return None
        if figure.moved and "bytes" in self.ceilings:
            return figure.moved / figure.median / self.ceilings["bytes"]
        # Convolutions of float32 use TF32, which cuDNN does unless it is told otherwise.
        precision = "tf32" if figure.items and figure.precision == "fp32" else figure.precision
        ceiling = self.ceilings.get(precision)
        return figure.flops / figure.median / ceiling if figure.flops and ceiling else None


@dataclass(frozen=True)
class Difference:
    """One case of two results: how many times as long the second takes, and whether that is real.

    `chance` is the probability that samples of equal origin differ as much (Mann-Whitney, two
    sided), None where a side has no samples.
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


def read(path: Path) -> Result:
    """A result of `torch-bench`, or reference data. Raises UsageError for another file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise UsageError(f"{path} has schema {data['schema']}, known is {SCHEMA}")
        return Result(
            name=path.stem,
            date=data.get("date", ""),
            machine=data["machine"],
            figures=tuple(_figure(case) for case in data["cases"]),
            skipped=tuple((s["key"], s["reason"]) for s in data.get("skipped", ())),
            corrections=tuple(data.get("corrections", ())),
            source=data.get("source", ""),
        )
    except FileNotFoundError:
        near = suggest(path.name, [p.name for p in path.parent.glob("*.json")])
        raise UsageError(f"{path} does not exist", near) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no result of torch-bench: {error!r}") from None


def compare(first: Result, second: Result) -> tuple[Difference, ...]:
    """The cases that both have. Raises UsageError where there is none."""
    from scipy.stats import mannwhitneyu

    found = []
    for ours in first.figures:
        theirs = second.figure(ours.key)
        if theirs:
            chance = None
            if ours.samples and theirs.samples:
                chance = float(mannwhitneyu(ours.samples, theirs.samples).pvalue)
            found.append(Difference(ours.key, ours.median, theirs.median, chance))
    if not found:
        raise UsageError(f"{first.name} and {second.name} have no case in common")
    return tuple(found)


def compared(first: Result, second: Result, found: Sequence[Difference]) -> str:
    """A comparison as Markdown."""
    lines = [
        f"A: {_title(first)}",
        f"B: {_title(second)}",
        "",
    ]
    rows = []
    for d in found:
        chance = "" if d.chance is None else f"{d.chance:.1g}"
        rows.append([d.key, _ms(d.first), _ms(d.second), f"{d.ratio:.3f}", d.verdict, chance])
    lines += table(["Case", "A, ms", "B, ms", "B / A", "", "chance"], rows)
    mean = math.exp(statistics.fmean(math.log(d.ratio) for d in found))
    lines += ["", f"Geometric mean of B / A over {len(found)} cases: {mean:.3f}."]
    return "\n".join(lines)


def markdown(result: Result, references: Sequence[Result] = (), plots: Sequence[str] = ()) -> str:
    """A result as Markdown: what on, how, the ceilings, each table, and what documents say."""
    lines = [f"# {result.machine['gpu']}, torch {result.machine['torch']}", ""]
    lines += [f"Measured {result.date} by `torch-bench`.", ""]
    lines += table(["", ""], [(k.replace("_", " "), v) for k, v in result.machine.items()])
    lines += ["", *_METHOD, ""]
    ceilings = []
    for name, value in result.ceilings.items():
        shown = f"{value / 1e9:,.0f} GB/s" if name == "bytes" else f"{value / 1e12:,.1f} TFLOPS"
        ceilings.append(("copy" if name == "bytes" else name, shown))
    lines += table(["Ceiling", ""], ceilings)
    lines += [f"\n![{plot}]({plot})" for plot in plots]
    for name in dict.fromkeys(f.table for f in result.figures):
        lines += ["", f"## {name[0].upper()}{name[1:]}", "", *_table(result, name, references)]
    if result.skipped:
        lines += ["", "## Not measured", "", *table(["Case", "Why"], result.skipped)]
    for reference in references:
        lines += ["", *_corrections(reference)]
    return "\n".join(lines) + "\n"


_METHOD = (
    "A sample is what CUDA events measure around as many calls as take a millisecond, for one",
    "call; the median of up to 200 samples is given, and the middle half of them as spread. Inputs",
    "rotate through three times the L2 cache. Operations are counted for the mask that ran: a",
    "causal one leaves half. Shares are of what this very GPU reached in products and in a copy.",
)


def _table(result: Result, name: str, references: Sequence[Result]) -> list[str]:
    others = [r for r in references if any(f.table == name for f in r.figures)]
    attention = any(f.ran for f in result.figures if f.table == name)
    head = ["Case", "Precision", "Median, ms", "Spread", "Rate", "Share"]
    head += ["Ran"] if attention else []
    head += [f"{r.machine['gpu'].removeprefix('NVIDIA ')}, ms" for r in others]
    rows = []
    for f in result.figures:
        if f.table != name:
            continue
        share = result.share(f)
        cells = [f.name, f.precision, _ms(f.median), f"{f.spread:.1%}", f.rate]
        cells.append("" if share is None else f"{share:.0%}")
        cells += [f.ran] if attention else []
        for other in others:
            theirs = other.figure(f.key)
            cells.append(_ms(theirs.median) if theirs else "")
        rows.append(cells)
    return table(head, rows)


def _corrections(reference: Result) -> Iterator[str]:
    yield f"## What is wrong in the figures for {reference.machine['gpu']}"
    yield ""
    yield f"Source: {reference.source}; driver {reference.machine['driver']}."
    yield ""
    fields = ("what", "stated", "corrected", "why")
    rows = [[row[field] for field in fields] for row in reference.corrections]
    yield from table(["", "Stated", "Correct", "Why"], rows)


def _figure(case: Mapping[str, Any]) -> Figure:
    low, high = case.get("quartiles", (case["median"], case["median"]))
    return Figure(
        key=case["key"],
        median=case["median"],
        low=low,
        high=high,
        samples=tuple(case.get("samples", ())),
        flops=case.get("flops", 0),
        moved=case.get("moved", 0),
        items=case.get("items", 0),
        unit=case.get("unit", ""),
        ran=case.get("ran", ""),
    )


def _ms(seconds: float) -> str:
    """Milliseconds with three significant digits."""
    return f"{seconds * 1e3:.4g}"


def _title(result: Result) -> str:
    facts = result.machine
    return f"{result.name}: {facts['gpu']}, torch {facts['torch']}, driver {facts['driver']}"
