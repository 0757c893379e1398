"""What a case is, and what the cases have in common: types, random inputs, sets that rotate."""

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


class Skipped(Exception):  # noqa: N818  it is no error
    """A case cannot run here; its text says why."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """What a case made ready: a call to time here, or what was timed elsewhere.

    `calls` is how many times `call` does what the row is about. `probe` is what a profiler may look
    at in its place, where a CUDA graph hides its operators. `figures` are numbers beside the time;
    their names have the unit ("compile, s"). `notes` are words, such as the kernel chosen.
    """

    call: Call | None = None
    calls: int = 1
    probe: Call | None = None
    timing: Timing | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row: what a call does, and how to make it.

    `make(sets)` gives a call that takes a set of inputs by number, or a `Ready`; it raises
    `Skipped`. `size` is the bytes of one set, 0 where each call has the same inputs; `same` names
    what is the same for all sets, such as weights. `flops` and `moved` are what a call computes and
    moves at least, `items` how many things (`unit`) it deals with. `ceiling` is the precision whose
    best product its share is of, if not its own. `baseline` is the key of the case that a report
    gives its speed-up over. `needs` is a compute capability, `gpus` how many GPUs. `attention` rows
    also note which kernel ran. `settings` are noted in the result. `limit` is how many seconds it
    may take.
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
        """Names it in every report."""
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
    """A case's `make` from one that makes a set of inputs, and what is called with a set."""

    def all_sets(sets: int) -> Call:
        inputs = [make() for _ in range(sets)]
        return lambda i: call(*inputs[i])  # type: ignore[misc]

    return all_sets
