"""Whole models, forward: ResNet-50 and a transformer's encoder, eager and compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import counting
import torch
from caches import first
from case import DTYPES, Case, Ready, Skipped, loaded, random, width
from models import encoder, resnet50, stack
from torch import nn

ROOM = 1.1  # memory that a model needs, over that of its weights
# Sides of a layer, layers, batch, precision.
STACKS = (
    (4096, 1, 64, "fp16"),
    (8192, 1, 64, "fp16"),
    (16384, 1, 64, "tf32"),
    (4096, 1, 64, "tf32"),
    (4096, 1, 4096, "fp16"),
    (16384, 149, 64, "fp16"),
)


def inference(
    table: str, name: str, precision: str, make: Callable[[], nn.Module], shape: tuple[int, ...],
    *, mode: str = "", **facts: Any,
) -> Case:  # fmt: skip
    """Inference of a model, compiled in a mode or not. Inputs rotate; weights stay, as in use.

    `facts` are further fields of the case: flops, unit, ceiling, baseline.
    """

    def call(sets: int) -> Ready:
        net = loaded(make, precision)
        ready = torch.compile(net, mode=mode) if mode else net
        inputs = [random(precision, *shape) for _ in range(sets)]

        def run(i: int) -> object:
            with torch.inference_mode():
                return ready(inputs[i])

        return Ready(call=run, figures=first(lambda: run(0)) if mode else {})

    return Case(
        table=table,
        name=name,
        precision=precision,
        make=call,
        size=math.prod(shape) * width(precision),
        same="weights",
        items=shape[0],
        needs=(8, 0) if precision == "tf32" else (0, 0),
        **facts,
    )


def resnet(batch: int, precision: str, table: str = "resnet-50", mode: str = "") -> Case:
    """ResNet-50. In float32 its convolutions use TF32, which is cuDNN's default."""
    name = f"B={batch}" + (f", {mode}" if mode else ", eager" if table != "resnet-50" else "")
    baseline = f"{table}/B={batch}, eager/{precision}" if mode else ""
    return inference(
        table, name, precision, resnet50, (batch, 3, 224, 224), flops=batch * counting.resnet50(),
        unit="img", mode=mode, ceiling="tf32" if precision == "fp32" else "", baseline=baseline,
    )  # fmt: skip


def transformer(batch: int, length: int, precision: str) -> Case:
    """Six layers, 1024 wide, 16 heads; feed-forward 2048, PyTorch's default."""
    width, wide, layers = 1024, 2048, 6
    return inference(
        "transformer encoder", f"B={batch}, S={length}", precision, encoder,
        (batch, length, width), flops=counting.encoder(batch, length, width, wide, layers),
        unit="seq",
    )  # fmt: skip


def stacked(side: int, layers: int, batch: int, precision: str, mode: str = "") -> Case:
    """Linear layers without bias, eager or compiled: the documents' models of 16M to 40B."""
    table, count = "compiled layer", layers * side**2
    size = f"{count / 1e9:.0f}B" if count > 1e9 else f"{count / 1e6:.0f}M"  # noqa: PLR2004
    several = f"{layers} of " if layers > 1 else ""
    name = f"B={batch}, {several}{side}->{side}, {size} parameters"
    weights = count * width(precision)

    def make() -> nn.Module:
        needed = ROOM * weights / 1e9
        have = torch.cuda.get_device_properties().total_memory / 1e9
        if needed > have:
            raise Skipped(f"needs {needed:.0f} GB on the GPU, which has {have:.0f}")
        return stack(side, layers, DTYPES[precision])

    return inference(
        table, f"{name}, {mode or 'eager'}", precision, make, (batch, side),
        flops=2 * batch * count, unit="row", mode=mode,
        baseline=f"{table}/{name}, eager/{precision}" if mode else "",
    )  # fmt: skip
