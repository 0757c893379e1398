"""The type of a case, and shared parts of cases: types, random inputs, rotating sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from measure import Call, Timing
from torch import nn

# Precisions by name: how tensors are held, and whether products of float32 may use TF32.
DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}
LIMIT = 180  # seconds that a case may take, unless it says otherwise
MB = 2**20
GB = 2**30


class Skipped(Exception):  # noqa: N818  not an error
    """A case cannot run here; its text says why."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A prepared case: a call to time here, or times from elsewhere.

    `calls` is how often `call` runs the operation of the row. `probe` is a call to profile instead,
    if a CUDA graph hides its operators. `figures` are numbers besides the time, with the unit in
    their names ("compile, s"). `notes` are texts, such as the chosen kernel.
    """

    call: Call | None = None
    calls: int = 1
    probe: Call | None = None
    timing: Timing | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row: an operation, and how to prepare it.

    `make(sets)` returns a call that takes a set of inputs by number, or a `Ready`; it may raise
    `Skipped`. `size` is the bytes of one set, 0 if each call has the same inputs; `same` names
    inputs that all sets share, such as weights. `flops` and `moved` are the least operations and
    bytes of a call, `items` the number of things (`unit`) that it processes. `ceiling` is the
    precision of the product that its share refers to, if not its own. `baseline` is the key of the
    case that its speed-up refers to. `needs` is a compute capability, `gpus` the number of GPUs.
    `attention` rows also record which kernel ran. `settings` are recorded in the result. `limit` is
    the most seconds that it may take.
    """

    table: str
    name: str
    precision: str
    make: Callable[[int], Call | Ready]
    size: int = 0
    same: str = ""
    flops: float = 0
    moved: float = 0
    items: int = 0
    unit: str = ""
    ceiling: str = ""
    baseline: str = ""
    needs: tuple[int, int] = (0, 0)
    gpus: int = 1
    attention: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    limit: int = LIMIT

    @property
    def key(self) -> str:
        """Its name in every report."""
        return f"{self.table}/{self.name}/{self.precision}"


def random(precision: str, *shape: int) -> torch.Tensor:
    """Random values of size one on the GPU."""
    values = torch.randn(*shape, device="cuda")
    return values.to(DTYPES[precision])


def loaded(make: Callable[[], nn.Module], precision: str) -> nn.Module:
    """A model with random weights on the GPU."""
    with torch.device("cuda"):
        net = make()
    return net.to(DTYPES[precision])


def width(precision: str) -> int:
    """Bytes of one value."""
    found: int = DTYPES[precision].itemsize
    return found


def rotating(make: Callable[[], object], call: Callable[..., object]) -> Callable[[int], Call]:
    """A case's `make`, from a function that makes a set of inputs and one to call with a set."""

    def all_sets(sets: int) -> Call:
        inputs = [make() for _ in range(sets)]
        return lambda i: call(*inputs[i])  # type: ignore[misc]

    return all_sets
