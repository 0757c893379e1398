"""Results of `torch-bench`, as types. Pure except for reading files.

A result has every sample of every case, in seconds per call (scripts/bench).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from torch_images.errors import UsageError, suggest

SCHEMA = 2
SCHEMAS = (1, SCHEMA)  # those that can be read
COPY = "memory bandwidth/copy, 2 GiB/bytes"
_PRODUCTS = ("gemm", "precision", "gemm by backend")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One case of a result; `median`, `low` and `high` (quartiles) in seconds per call.

    `flops` and `moved` are floating-point operations and bytes of a call, `items` the number of
    `unit`s that it processes; 0 if not meaningful. `samples` is () for figures of documents. `sets`
    of inputs of `input_bytes` each rotate, 0 if not recorded; `same` names inputs that do not
    rotate. `host` is the seconds that the processor needs to enqueue a call, `device` those of a
    GPU that never waits; 0 if not measured. `ceiling` is the precision of the product that the
    share refers to, `baseline` the key of the case that the speed-up refers to. `figures` are
    numbers with units in their names, `notes` are texts.
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
    sets: int = 0
    input_bytes: int = 0
    same: str = ""
    host: float = 0.0
    device: float = 0.0
    ceiling: str = ""
    baseline: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def table(self) -> str:
        """The table that the case belongs to, such as "gemm"."""
        return self.key.split("/")[0]

    @property
    def name(self) -> str:
        """The rest of its key: the shape, and other properties that identify it in the table."""
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
    def host_bound(self) -> bool:
        """Whether the processor needs longer to enqueue a call than the GPU to run it."""
        return self.host > self.device > 0

    @property
    def rate(self) -> str:
        """Its rate with the unit: TFLOPS, GB/s, or items per second."""
        if self.items:
            return f"{self.items / self.median:,.0f} {self.unit}/s"
        if self.moved:
            return f"{self.moved / self.median / 1e9:,.0f} GB/s"
        return f"{self.flops / self.median / 1e12:,.1f} TFLOPS" if self.flops else ""


@dataclass(frozen=True, kw_only=True)
class Result:
    """All figures of one run, or of a document; `corrections` list errors of a document.

    `skipped` and `failed` are keys of cases, each with the reason. `settings` are the settings of
    torch during the run.
    """

    name: str
    date: str = ""
    machine: Mapping[str, Any]
    figures: tuple[Figure, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    corrections: tuple[Mapping[str, str], ...] = ()
    source: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    def figure(self, key: str) -> Figure | None:
        """A case by its key; None if this result lacks it."""
        return next((f for f in self.figures if f.key == key), None)

    @cached_property
    def best(self) -> dict[str, Figure]:
        """The fastest product of each precision, and the copy as "bytes"."""
        fastest: dict[str, Figure] = {}
        for f in self.figures:
            if f.table in _PRODUCTS and f.flops:
                best = fastest.get(f.precision)
                if best is None or f.flops / f.median > best.flops / best.median:
                    fastest[f.precision] = f
        copy = self.figure(COPY)
        return fastest | ({"bytes": copy} if copy and copy.moved else {})

    @cached_property
    def ceilings(self) -> dict[str, float]:
        """The best rates of this GPU, per second: operations by precision, bytes of copies."""
        return {name: (f.moved or f.flops) / f.median for name, f in self.best.items()}

    def share(self, figure: Figure) -> float | None:
        """The share of this GPU's own ceiling that a case reaches; None if not meaningful."""
        if figure.table == "gpu to gpu":
            return None
        if figure.moved and "bytes" in self.ceilings:
            return figure.moved / figure.median / self.ceilings["bytes"]
        ceiling = self.ceilings.get(figure.ceiling or figure.precision)
        return figure.flops / figure.median / ceiling if figure.flops and ceiling else None

    def inputs(self, figure: Figure) -> str:
        """Whether a case's inputs come from a cache, in words; "" if not recorded."""
        if not figure.sets:
            return ""
        cache = self.machine.get("l2_bytes", 0)
        size = figure.sets * figure.input_bytes
        if figure.sets == 1 and size <= cache:
            return "same input"
        what = "larger than L2" if figure.sets == 1 else f"{figure.sets} sets"
        fit = ", which fit L2" if 0 < size <= cache else ""  # schema 1 does not say the size
        return f"{what}{fit}{f', same {figure.same}' if figure.same else ''}"

    def speedup(self, figure: Figure) -> float | None:
        """The speed-up of a case over its baseline; None without one.

        Compares items per second if both have items, else times.
        """
        base = self.figure(figure.baseline) if figure.baseline else None
        if base is None:
            return None
        both = figure.items and base.items
        ours, theirs = (figure.items, base.items) if both else (1, 1)
        return ours / figure.median / (theirs / base.median)


def read(path: Path) -> Result:
    """A result of `torch-bench`, or reference data. Raises UsageError for another file."""
    try:
        data = json.loads(path.read_bytes())
        schema = data["schema"]
        if schema not in SCHEMAS:
            known = " and ".join(map(str, SCHEMAS))
            raise UsageError(f"{path} has schema {schema}; known are {known}")
        machine = data["machine"]
        _ = machine["gpu"], machine["torch"], machine["driver"], machine.get("l2_bytes", 0) + 0
        facts = {
            "name": path.stem,
            "machine": machine,
            "figures": [_figure(case, schema) for case in data["cases"]],
            "skipped": [(s["key"], s["reason"]) for s in data.get("skipped", ())],
            "failed": [(s["key"], s["reason"]) for s in data.get("failed", ())],
            **{n: data[n] for n in ("date", "corrections", "source", "settings") if n in data},
            "schema": schema,
        }
        return TypeAdapter(Result).validate_python(facts)
    except FileNotFoundError:
        near = suggest(path.name, [p.name for p in path.parent.glob("*.json")])
        raise UsageError(f"{path} does not exist", near) from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = repr(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise UsageError(
            f"{path} is not a result of torch-bench: {reason}", "measure again: ./inv bench"
        ) from None


def _figure(case: Mapping[str, Any], schema: int) -> dict[str, Any]:
    known = {each.name for each in fields(Figure)}
    facts = {name: value for name, value in case.items() if name in known}
    if schema == 1:
        # Schema 1 does not record whether a single set was larger than the cache. It also lacks
        # ceilings: cuDNN used TF32 in models of float32.
        facts["sets"] = sets if (sets := case.get("sets", 0)) > 1 else 0
        if case.get("items") and case["key"].endswith("/fp32"):
            facts["ceiling"] = "tf32"
    facts["low"], facts["high"] = case.get("quartiles", (case["median"], case["median"]))
    facts["samples"] = tuple(case.get("samples", ()))
    facts["notes"] = {**case.get("settings", {}), **case.get("notes", {})}
    return facts
