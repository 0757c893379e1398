"""Figures of several rounds -> medians with their spread, ratios, a table and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_images import markdown

Rounds = Mapping[str, Sequence[Mapping[str, float]]]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table: medians of ours and of the plain build, and of their ratio.

    `spread` is the least and the greatest ratio, or figure where there is no plain one. The ratio
    is taken within each round, in which both ran one after the other on the same machine.
    """

    row: str
    what: str
    ours: float
    plain: float | None
    ratio: float | None
    spread: tuple[float, float]


def summary(figures: Rounds) -> tuple[Line, ...]:
    """A line for each figure of ours. Pure."""
    found = []
    for row, rounds in figures.items():
        for name in rounds[0] if rounds else ():
            side, _, what = name.partition(" ")
            if side == "plain" or not what:
                continue
            ours = [one[name] for one in rounds]
            other = f"plain {what}"
            plain = [one[other] for one in rounds] if side == "our" and other in rounds[0] else []
            ratios = [a / b for a, b in zip(ours, plain, strict=True)] if plain else []
            basis = ratios or ours
            found.append(
                Line(
                    row=row,
                    what=what if side == "our" else name,
                    ours=statistics.median(ours),
                    plain=statistics.median(plain) if plain else None,
                    ratio=statistics.median(ratios) if ratios else None,
                    spread=(min(basis), max(basis)),
                )
            )
    return tuple(found)


def table(lines: Sequence[Line]) -> str:
    """The lines as a Markdown table."""
    rows = []
    for line in lines:
        shown = _shown(line.what, line.ours)
        plain = "" if line.plain is None else _shown(line.what, line.plain)
        ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
        low, high = line.spread
        spread = (
            f"{low:.2f}, {high:.2f}"
            if line.ratio is not None
            else f"{_shown(line.what, low)}, {_shown(line.what, high)}"
        )
        rows.append((line.row, line.what, shown, plain, ratio, spread))
    header = ["Row", "What", "Ours", "Plain", "Ratio", "From, to"]
    return "\n".join(markdown.table(header, rows)) + "\n"


def left_out(sentences: Mapping[str, str]) -> str:
    """What the figures of each row leave out, as Markdown: a line for rows with the same text."""
    rows: dict[str, list[str]] = {}
    for row, text in sentences.items():
        rows.setdefault(text, []).append(f"`{row}`")
    return "".join(f"- {', '.join(names)}: {text}.\n" for text, names in rows.items())


def plot(lines: Sequence[Line], path: Path) -> None:
    """The ratios as bars with their spread, as SVG."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "torch-images"
    mpl.rcParams["svg.fonttype"] = "none"
    shown = [line for line in lines if line.ratio is not None]
    figure, axes = plt.subplots(figsize=(8, 0.5 * len(shown) + 1.2), layout="constrained")
    values = [line.ratio or 0 for line in shown]
    low = [value - line.spread[0] for value, line in zip(values, shown, strict=True)]
    high = [line.spread[1] - value for value, line in zip(values, shown, strict=True)]
    axes.barh([f"{line.row}, {line.what}" for line in shown], values, xerr=[low, high])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("ours / plain docker build")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _shown(what: str, value: float) -> str:
    if what.endswith("seconds"):
        return f"{value:.1f} s"
    if what.endswith("images"):
        return f"{value:.0f}"
    return f"{value / 1e9:.2f} GB"
