"""Single operators: products, convolutions, linear layers, norms."""

from __future__ import annotations

import math
from collections.abc import Callable

import counting
import torch
import torch.nn.functional as F  # noqa: N812  its customary name
from case import Case, random, rotating, width


def gemm(table: str, n: int, precision: str) -> Case:
    """A square product; FP8 with one scale for each factor, computed beforehand."""

    def factors() -> tuple[torch.Tensor, ...]:
        a, b = random(precision, n, n), random(precision, n, n)
        if precision != "fp8":
            return a, b
        return a, b.t(), torch.ones((), device="cuda")

    def scaled(a: torch.Tensor, b: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return Case(
        table=table,
        name=f"{n}x{n}",
        precision=precision,
        make=rotating(factors, scaled if precision == "fp8" else torch.matmul),
        size=2 * n * n * width(precision),
        flops=2 * n**3,
        needs=(8, 9) if precision == "fp8" else (8, 0) if precision == "tf32" else (0, 0),
    )


def batched(precision: str) -> Case:
    """32 products of 1024x1024."""
    shape = (32, 1024, 1024)
    return Case(
        table="batched gemm",
        name="32x1024x1024",
        precision=precision,
        make=rotating(lambda: (random(precision, *shape), random(precision, *shape)), torch.bmm),
        size=2 * 32 * 1024 * 1024 * width(precision),
        flops=32 * 2 * 1024**3,
        needs=(8, 0) if precision == "tf32" else (0, 0),
    )


def convolution(
    batch: int, inside: int, outside: int, side: int, k: int, *, groups: int = 1
) -> Case:
    """A convolution with stride 1 that keeps the sides."""

    def make() -> tuple[torch.Tensor, ...]:
        x = random("fp16", batch, inside, side, side)
        return x, random("fp16", outside, inside // groups, k, k)

    values = batch * side * side
    name = f"B={batch}, {inside}->{outside}, {side}x{side}, k={k}"
    return Case(
        table="depthwise conv2d" if groups > 1 else "conv2d",
        name=f"B={batch}, C={inside}, {side}x{side}" if groups > 1 else name,
        precision="fp16",
        make=rotating(make, lambda x, w: F.conv2d(x, w, padding=k // 2, groups=groups)),
        size=values * inside * 2,
        flops=counting.conv2d(batch, inside, outside, side, k, padding=k // 2, groups=groups),
        moved=2 * values * (inside + outside) if groups > 1 else 0,
    )


def linear(batch: int, length: int, inside: int, outside: int, precision: str) -> Case:
    """A layer with bias. Its weights rotate too, because a model has several of these layers."""

    def make() -> tuple[torch.Tensor, ...]:
        weight, bias = random(precision, outside, inside), random(precision, outside)
        return random(precision, batch, length, inside), weight, bias

    values = batch * length * (inside + outside) + inside * outside
    return Case(
        table="linear",
        name=f"[{batch},{length},{inside}]->[{batch},{length},{outside}]",
        precision=precision,
        make=rotating(make, F.linear),
        size=(batch * length * inside + inside * outside) * 2,
        flops=2 * batch * length * inside * outside,
        moved=values * 2 if length == 1 else 0,
    )


def pointwise(table: str, *shape: int) -> Case:
    """LayerNorm or softmax over the last dimension: each value is read once and written once."""
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "layernorm": lambda x: F.layer_norm(x, shape[-1:]),
        "softmax": lambda x: x.softmax(-1),
    }
    size = 2 * math.prod(shape)
    return Case(
        table=table,
        name=str(list(shape)),
        precision="fp16",
        make=rotating(lambda: (random("fp16", *shape),), calls[table]),
        size=size,
        moved=2 * size,
    )
