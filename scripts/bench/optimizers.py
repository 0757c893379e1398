"""AdamW on the parameters of a small language model, in each of its implementations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from case import Case, random
from measure import Call

TABLE = "adamw"
PRECISION = "fp32"
KINDS: dict[str, dict[str, bool]] = {
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
WIDTH, LAYERS, VOCABULARY, LENGTH = 768, 12, 50257, 1024  # of GPT-2, the smallest


def shapes() -> list[tuple[int, ...]]:
    """Its 148 parameters, 124 million values."""
    d = WIDTH
    layer: list[tuple[int, ...]] = [
        (d,), (d,), (3 * d, d), (3 * d,), (d, d), (d,),
        (d,), (d,), (4 * d, d), (4 * d,), (d, 4 * d), (d,),
    ]  # fmt: skip
    return [(VOCABULARY, d), (LENGTH, d), *LAYERS * layer, (d,), (d,)]


def values() -> int:
    """The number of their values."""
    return sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes())


def adamw(kind: str) -> Case:
    """A step. It reads value, gradient and both moments, and writes all but the gradient."""

    def make(_: int) -> Call:
        parameters = [random(PRECISION, *shape).requires_grad_() for shape in shapes()]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        by: torch.optim.Optimizer = torch.optim.AdamW(parameters, lr=1e-5, **KINDS[kind])
        step: Callable[[], object] = by.step
        return lambda _: step()

    first = next(iter(KINDS))
    return Case(
        table=TABLE,
        name=f"124M parameters, {kind}",
        precision=PRECISION,
        make=make,
        size=4 * 4 * values(),
        moved=7 * 4 * values(),
        baseline="" if kind == first else f"{TABLE}/124M parameters, {first}/{PRECISION}",
    )
