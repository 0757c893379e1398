"""Plots of a result, as SVG: products by precision, attention by kernel, shares of the ceilings."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("svg")

from bench_results import Figure, Result
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

# Equal results give equal files, without dates and random names.
mpl.rcParams["svg.hashsalt"] = "torch-images"
mpl.rcParams["svg.fonttype"] = "none"  # text stays text
_COLOUR = "#4c72b0"


def plots(result: Result, folder: Path) -> tuple[str, ...]:
    """Write the plots into a folder, except those without figures. Returns their names."""
    tables = {
        "gemm": ("Products of 8192x8192", _of(result, "precision"), "TFLOPS"),
        "sdpa": ("Attention, 16x96x4096x128, fp16", _of(result, "sdpa baseline"), "TFLOPS"),
        "compile": ("ResNet-50, fp16", _of(result, "torch.compile"), "img/s"),
    }
    written = []
    for name, (title, figures, unit) in tables.items():
        if figures:
            labels = [f.precision if name == "gemm" else _short(f.name) for f in figures]
            values = [_value(f, unit) for f in figures]
            written.append(_bars(folder / f"{name}.svg", title, labels, values, unit))
    shared = [
        (f"{f.table} {_short(f.name)} {f.precision}", result.share(f)) for f in result.figures
    ]
    known = [(label, share) for label, share in shared if share is not None]
    if known:
        labels, shares = [label for label, _ in known], [100 * share for _, share in known]
        title = "Share of this GPU's own ceiling (products, copy)"
        written.append(_bars(folder / "shares.svg", title, labels, shares, "%"))
    return tuple(written)


def _of(result: Result, table: str) -> list[Figure]:
    return [f for f in result.figures if f.table == table]


def _short(name: str) -> str:
    return name.replace("B=16, H=96, S=4096, D=128, ", "")


def _value(figure: Figure, unit: str) -> float:
    if unit == "img/s":
        return figure.items / figure.median
    return figure.flops / figure.median / 1e12


def _bars(path: Path, title: str, labels: list[str], values: list[float], unit: str) -> str:
    axes: Axes
    chart, axes = plt.subplots(figsize=(9, 1.2 + 0.28 * len(labels)), layout="constrained")
    bars = axes.barh(range(len(labels)), values, color=_COLOUR)
    axes.bar_label(bars, fmt="{:,.0f}", padding=3)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_title(title)
    axes.set_xlabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    chart.savefig(path, format="svg", metadata={"Date": None})
    plt.close(chart)
    return path.name
