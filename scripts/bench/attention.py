"""Attention: forward by backend and shape, forward and backward, in a CUDA graph."""

from __future__ import annotations

import counting
import torch
import torch.nn.functional as F  # noqa: N812  its customary name
from case import Case, random, rotating
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "default": None,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


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


def shape_name(batch: int, heads: int, length: int, dim: int, *, causal: bool) -> str:
    """A shape, as the documents write it."""
    return f"B={batch}, H={heads}, S={length}, D={dim}" + (", causal" if causal else "")
