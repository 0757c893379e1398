"""Attention: forward by backend and shape, forward and backward, in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import counting
import torch
import torch.nn.functional as F  # noqa: N812  its customary name
from capture import captured
from case import Case, Ready, random, rotating
from child import in_child
from measure import Call, measure
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "default": None,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
QUEUED = 16  # calls in one CUDA graph


def forward(
    batch: int, heads: int, length: int, dim: int, precision: str,
    *, causal: bool = False, backend: str = "default", table: str = "sdpa",
) -> Case:  # fmt: skip
    """Attention, forward. A causal mask leaves half of the operations."""

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        chosen = BACKENDS[backend]
        if chosen is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        with sdpa_kernel(chosen):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    shape = (batch, heads, length, dim)
    by = f", {backend}" if table == "sdpa baseline" else ""
    return Case(
        table=table,
        name=shape_name(*shape, causal=causal) + by,
        precision=precision,
        make=rotating(lambda: tuple(random(precision, *shape) for _ in range(3)), call),
        size=3 * batch * heads * length * dim * 2,
        flops=counting.attention(*shape, causal=causal),
        needs=(8, 0),
        attention=True,
    )


def memory(batch: int, heads: int, length: int, dim: int, precision: str) -> Case:
    """Causal attention by the default backend in its own process, with its memory use."""
    plain = forward(batch, heads, length, dim, precision, causal=True)
    return Case(
        table="attention memory",
        name=plain.name,
        precision=precision,
        make=lambda _: in_child(
            "attention:taken",
            {},
            shape=(batch, heads, length, dim),
            precision=precision,
        ),
        size=plain.size,
        flops=plain.flops,
        needs=(8, 0),
    )


def taken(shape: tuple[int, int, int, int], precision: str) -> Ready:
    """Measure time and the peak of memory allocated and reserved, in GiB by torch's count."""
    plain = forward(*shape, precision, causal=True)
    call = plain.make(1)
    assert callable(call)
    timing = measure(call, 1)
    return Ready(
        timing=timing,
        figures={
            "inputs, GiB": round(plain.size / 2**30, 2),
            "held at most, GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2),
            "reserved, GiB": round(torch.cuda.max_memory_reserved() / 2**30, 2),
        },
    )


def training(batch: int, heads: int, length: int, dim: int, precision: str) -> Case:
    """Attention with a causal mask by the default backend, forward and backward."""
    shape = (batch, heads, length, dim)

    def make() -> tuple[object, ...]:
        inputs = tuple(random(precision, *shape).requires_grad_() for _ in range(3))
        return inputs, random(precision, *shape)

    def call(inputs: tuple[torch.Tensor, ...], upstream: torch.Tensor) -> object:
        out = F.scaled_dot_product_attention(*inputs, is_causal=True)
        return torch.autograd.grad(out, inputs, upstream)

    return Case(
        table="attention training",
        name=shape_name(*shape, causal=True),
        precision=precision,
        make=rotating(make, call),
        size=4 * batch * heads * length * dim * 2,
        flops=counting.attention(*shape, causal=True, backward=True),
        needs=(8, 0),
        attention=True,
    )


def grouped(batch: int, heads: int, length: int, dim: int, precision: str, *, groups: int) -> Case:
    """Attention whose queries have more heads than keys and values: each serves several."""

    def make() -> tuple[torch.Tensor, ...]:
        q = random(precision, batch, heads, length, dim)
        k, v = (random(precision, batch, groups, length, dim) for _ in range(2))
        return q, k, v

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return Case(
        table="attention shapes",
        name=f"B={batch}, H={heads}, {groups} of keys, S={length}, D={dim}, causal",
        precision=precision,
        make=rotating(make, call),
        size=batch * (heads + 2 * groups) * length * dim * 2,
        flops=counting.attention(batch, heads, length, dim, causal=True),
        needs=(8, 0),
        attention=True,
    )


def queued(batch: int, heads: int, length: int, dim: int, precision: str) -> Case:
    """Attention as in decoders, many times in one CUDA graph. The row is for one call."""
    plain = forward(batch, heads, length, dim, precision, causal=True, table="attention shapes")

    def make(sets: int) -> Ready:
        call = plain.make(sets)
        assert callable(call)
        several = _each(call, sets)
        return Ready(call=captured(lambda: several(QUEUED)), calls=QUEUED, probe=call)

    return Case(
        table=plain.table,
        name=f"{plain.name}, {QUEUED} in a CUDA graph",
        precision=precision,
        make=make,
        size=plain.size,
        flops=plain.flops,
        baseline=plain.key,
        needs=(8, 0),
        attention=True,
    )


def _each(call: Call, sets: int) -> Callable[[int], None]:
    def several(count: int) -> None:
        for i in range(count):
            call(i % sets)

    return several


def shape_name(batch: int, heads: int, length: int, dim: int, *, causal: bool) -> str:
    """A shape in the documents' notation."""
    return f"B={batch}, H={heads}, S={length}, D={dim}" + (", causal" if causal else "")
