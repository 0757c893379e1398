"""Whole models, forward: ResNet-50 and a transformer's encoder, eager and compiled."""

from __future__ import annotations

import math
from collections.abc import Callable

import counting
import torch
from case import Case, loaded, random, width
from measure import Call
from models import encoder, resnet50
from torch import nn


def inference(
    table: str, name: str, precision: str, make: Callable[[], nn.Module], shape: tuple[int, ...],
    *, flops: float, unit: str, mode: str = "", ceiling: str = "",
) -> Case:  # fmt: skip
    """Inference of a model, compiled in a mode or not. Inputs rotate; weights stay, as in use."""

    def call(sets: int) -> Call:
        net = loaded(make, precision)
        ready = torch.compile(net, mode=mode) if mode else net
        inputs = [random(precision, *shape) for _ in range(sets)]

        def run(i: int) -> object:
            with torch.inference_mode():
                return ready(inputs[i])

        return run

    return Case(
        table=table,
        name=name,
        precision=precision,
        make=call,
        size=math.prod(shape) * width(precision),
        same="weights",
        flops=flops,
        items=shape[0],
        unit=unit,
        ceiling=ceiling,
    )


def resnet(batch: int, precision: str, table: str = "resnet-50", mode: str = "") -> Case:
    """ResNet-50. In float32 its convolutions use TF32, which cuDNN does unless told otherwise."""
    name = f"B={batch}" + (f", {mode}" if mode else ", eager" if table != "resnet-50" else "")
    return inference(
        table, name, precision, resnet50, (batch, 3, 224, 224), flops=batch * counting.resnet50(),
        unit="img", mode=mode, ceiling="tf32" if precision == "fp32" else "",
    )  # fmt: skip


def transformer(batch: int, length: int, precision: str) -> Case:
    """Six layers, 1024 wide, 16 heads; feed-forward 2048, PyTorch's default."""
    width, wide, layers = 1024, 2048, 6
    return inference(
        "transformer encoder", f"B={batch}, S={length}", precision, encoder,
        (batch, length, width), flops=counting.encoder(batch, length, width, wide, layers),
        unit="seq",
    )  # fmt: skip
