"""A result as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench_results import Figure, Result

from torch_images.markdown import table

_METHOD = (
    "A sample is what CUDA events measure around as many calls as take a millisecond, for one",
    "call; the median of up to 200 samples is given, and the middle half of them as spread.",
    "Operations are counted for the mask that ran: a causal one leaves half. Shares are of what",
    "this very GPU reached: in the best product of the case's precision, or in a copy for rows in",
    "GB/s. Inputs tells which rows take their inputs from memory: their sets rotate through three",
    "times the L2 cache, or one set is larger than it.",
)
_HOST = (
    "Host is what the processor needs to enqueue one call, device what the GPU needs where the",
    "calls were queued before, so that it never waits. A row is host-bound where enqueueing takes",
    "longer than the GPU does: it measures the processor and Python, not the GPU.",
)
_FIRST = (
    "This result has format 1. It counts the taps of convolutions on padding, too, and does not",
    "say which rows are bound by the host, nor whether a single set of inputs fits the cache.",
)


def markdown(result: Result, references: Sequence[Result] = (), plots: Sequence[str] = ()) -> str:
    """A result as Markdown: machine, method, ceilings, tables, and corrections of documents."""
    lines = [f"# {result.machine['gpu']}, torch {result.machine['torch']}", ""]
    lines += [f"Measured {result.date} by `torch-bench`.", ""]
    facts = [(name.replace("_", " "), value) for name, value in result.machine.items()]
    lines += table(["", ""], [*facts, *result.settings.items()])
    lines += ["", *_METHOD, ""]
    if any(f.host for f in result.figures):
        lines += [*_HOST, ""]
    if result.schema == 1:
        lines += [*_FIRST, ""]
    ceilings = []
    for name, best in result.best.items():
        value = result.ceilings[name]
        shown = f"{value / 1e9:,.0f} GB/s" if name == "bytes" else f"{value / 1e12:,.1f} TFLOPS"
        where = f"{best.table} {best.name}"
        ceilings.append(("copy" if name == "bytes" else name, shown, where))
    lines += table(["Ceiling", "", "Measured in"], ceilings)
    lines += [f"\n![{plot}]({plot})" for plot in plots]
    for name in dict.fromkeys(f.table for f in result.figures):
        lines += ["", f"## {name[0].upper()}{name[1:]}", "", *_table(result, name, references)]
    for title, missing in (("Not measured", result.skipped), ("Failed", result.failed)):
        if missing:
            lines += ["", f"## {title}", "", *table(["Case", "Why"], missing)]
    for reference in references:
        lines += ["", *_corrections(reference)]
    return "\n".join(lines) + "\n"


def _table(result: Result, name: str, references: Sequence[Result]) -> list[str]:
    """The rows of a table, without columns that are empty in every row."""
    figures = [f for f in result.figures if f.table == name]
    head = ["Case", "Precision", "Median, ms", "Spread", "Rate", "Share"]
    columns = [_always(result, f) for f in figures]
    more = {
        "Speed-up": [_times(result.speedup(f)) for f in figures],
        **{
            key: [f"{f.figures[key]:.4g}" if key in f.figures else "" for f in figures]
            for key in dict.fromkeys(key for f in figures for key in f.figures)
        },
        "Host / device, ms": [_host(f) for f in figures],
        "Inputs": [result.inputs(f) for f in figures],
        "Ran": [f.ran for f in figures],
        "Notes": [_notes(f) for f in figures],
    }
    for title, cells in more.items():
        if any(cells):
            head.append(title)
            columns = [[*row, cell] for row, cell in zip(columns, cells, strict=True)]
    for other in references:
        if any(f.table == name for f in other.figures):
            head.append(f"{other.machine['gpu'].removeprefix('NVIDIA ')}, ms")
            theirs = [other.figure(f.key) for f in figures]
            columns = [
                [*row, ms(t.median) if t else ""] for row, t in zip(columns, theirs, strict=True)
            ]
    return table(head, columns)


def _always(result: Result, f: Figure) -> list[str]:
    """The cells of every row."""
    share = result.share(f)
    shown = "" if share is None else f"{share:.0%}"
    return [f.name, f.precision, ms(f.median), f"{f.spread:.1%}", f.rate, shown]


def _host(f: Figure) -> str:
    if not f.host:
        return ""
    return f"{ms(f.host)} / {ms(f.device)}" + (", host-bound" if f.host_bound else "")


def _notes(f: Figure) -> str:
    return "; ".join(f"{name}: {value}" for name, value in f.notes.items())


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _corrections(reference: Result) -> Iterator[str]:
    yield f"## What is wrong in the figures for {reference.machine['gpu']}"
    yield ""
    yield f"Source: {reference.source}; driver {reference.machine['driver']}."
    yield ""
    fields = ("what", "stated", "corrected", "why")
    rows = [[row[field] for field in fields] for row in reference.corrections]
    yield from table(["", "Stated", "Correct", "Why"], rows)


def ms(seconds: float) -> str:
    """Milliseconds with four significant digits."""
    return f"{seconds * 1e3:.4g}"
