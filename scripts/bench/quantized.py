"""Weights of fewer bits: a linear layer by torchao, and the memory of a model by type."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  its customary name
from case import DTYPES, Case, Ready, Skipped, random
from torch import nn

BYTES = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
PLAIN = ("fp32", "bf16")
INSIDE, OUTSIDE, BATCH = 4096, 11008, 32
LAYERS = 8  # of the model: 4096 to 4096, 134 million weights


def weights(precision: str, *sides: int) -> list[nn.Linear]:
    """Linear layers without bias on the GPU, with `sides` inside and outside in turn.

    torchao converts the weights from bf16 to types that torch itself lacks. Raises Skipped if it is
    not installed, or fails.
    """
    dtype = DTYPES[precision] if precision in PLAIN else torch.bfloat16
    net = nn.Sequential(
        *(
            nn.Linear(inside, outside, bias=False, device="cuda", dtype=dtype)
            for inside, outside in pairwise(sides)
        )
    )
    if precision not in PLAIN:
        quantize(net, precision)
    return list(net)


def quantize(net: nn.Module, precision: str) -> None:
    """Let torchao replace the weights. Raises Skipped, with the reasons, if it cannot."""
    try:
        from torchao import quantization
    except ImportError as error:
        raise Skipped(f"torchao is not installed: {error}") from None
    reasons = []
    for config in configs(quantization, precision):
        try:
            quantization.quantize_(net, config())
        except Exception as error:  # noqa: BLE001  each release of torchao has others
            reasons.append(next(iter(str(error).splitlines()), type(error).__name__))
        else:
            return
    raise Skipped(f"torchao: {'; '.join(dict.fromkeys(reasons)) or f'no weights of {precision}'}")


def configs(quantization: Any, precision: str) -> list[Callable[[], Any]]:
    """Configurations of torchao to try in order, because its options differ between releases."""
    name = {"fp8": "Float8WeightOnlyConfig", "int8": "Int8WeightOnlyConfig"}.get(precision)
    if name:
        return [getattr(quantization, name)] if hasattr(quantization, name) else []
    kind = getattr(quantization, "Int4WeightOnlyConfig", None)
    if kind is None:
        return []
    # Tiles are for torch's own kernel; the plain format needs another library.
    tiles = {"group_size": 128, "int4_packing_format": "tile_packed_to_4d"}
    return [lambda: kind(**tiles), lambda: kind(group_size=128, version=1), kind]


def held(make: Callable[[], Any]) -> tuple[Any, int]:
    """The result of `make`, and the bytes on the device that it keeps afterwards."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    made = make()
    gc.collect()
    return made, torch.cuda.memory_allocated() - before


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The function to compile. The weights are an argument, so that sets of them can rotate."""
    return F.linear(x, weight)


def linear(precision: str) -> Case:
    """A layer for few rows, compiled, so that torchao's types become one kernel where they can."""

    def make(sets: int) -> Ready:
        layers, size = held(
            lambda: [weights(precision, INSIDE, OUTSIDE)[0].weight for _ in range(sets)]
        )
        x = random("bf16", BATCH, INSIDE)
        compiled = torch.compile(product)

        def call(i: int) -> object:
            with torch.no_grad():
                return compiled(x, layers[i])

        return Ready(call=call, figures={"weights, MB": size / sets / 1e6})

    table = "weight-only linear"
    name = f"[{BATCH},{INSIDE}]->[{BATCH},{OUTSIDE}]"
    size = int(INSIDE * OUTSIDE * BYTES[precision])
    return Case(
        table=table,
        name=name,
        precision=precision,
        make=make,
        size=size,
        same="rows",
        moved=size + 2 * BATCH * (INSIDE + OUTSIDE),
        baseline="" if precision == "bf16" else f"{table}/{name}/bf16",
        needs=(8, 9) if precision == "fp8" else (8, 0),
    )


def memory(precision: str) -> Case:
    """A model of linear layers, and the bytes that its weights take on the device."""

    def make(_: int) -> Ready:
        layers, size = held(lambda: weights(precision, *(LAYERS + 1) * [INSIDE]))
        net = nn.Sequential(*layers)
        x = random("fp32" if precision == "fp32" else "bf16", BATCH, INSIDE)

        def call(_: int) -> object:
            with torch.no_grad():
                return net(x)

        return Ready(call=call, figures={"weights, MB": size / 1e6})

    table, name = "memory of a model", f"{LAYERS} layers, {INSIDE}->{INSIDE}, eager"
    return Case(
        table=table,
        name=name,
        precision=precision,
        make=make,
        same="weights",
        flops=2 * LAYERS * BATCH * INSIDE**2 if precision in PLAIN else 0,
        baseline="" if precision == "fp32" else f"{table}/{name}/fp32",
        needs=(8, 9) if precision == "fp8" else (8, 0),
    )
