"""Scaled dot-product attention on the CPU, compared with a float64 reference in this file.

The checks cover every backend for the CPU, its output and gradients, and that the requested
backend runs.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

OPERATORS = {
    SDPBackend.MATH: "aten::_scaled_dot_product_attention_math",
    SDPBackend.FLASH_ATTENTION: "aten::_scaled_dot_product_flash_attention_for_cpu",
}
# Largest relative error of a dot product by type: a few units in the last place.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}

SHAPES = [  # batch, heads, queries, keys, head dimension
    (1, 1, 1, 1, 8),
    (2, 3, 17, 17, 16),
    (1, 2, 64, 96, 64),
    (1, 2, 33, 129, 80),
    # More keys than the 512 of a block of the flash kernel.
    pytest.param((1, 1, 300, 520, 64), marks=pytest.mark.native("it takes a minute each time")),
]


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """softmax(q k^T / sqrt(d)) v for float64 inputs of shape (batch, heads, length, d).

    The causal mask is aligned to the top left.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        scores = scores.masked_fill(~keep, -math.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True) @ v


def inputs(shape: tuple[int, int, int, int, int], dtype: torch.dtype) -> list[torch.Tensor]:
    """Query, key and value with fixed random content, and a gradient for the output.

    `shape` is (batch, heads, queries, keys, head dimension).
    """
    batch, heads, queries, keys, dim = shape
    generator = torch.Generator().manual_seed(queries * keys + dim)
    lengths = (queries, keys, keys, queries)
    return [
        torch.randn(batch, heads, n, dim, generator=generator, dtype=torch.float64).to(dtype)
        for n in lengths
    ]


def close(
    found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype, least: float = 0.1
) -> None:
    """Assert that the largest error, relative to the largest exact value, is within TOLERANCE.

    The exact value counts as `least` at least, because it can vanish.
    """
    error = (found.double() - wanted).abs().max() / wanted.abs().max().clamp(min=least)
    assert found.dtype == dtype
    limit = TOLERANCE[dtype]
    assert error <= limit, f"relative error {error:.2e} exceeds {limit:.0e}"


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("backend", list(OPERATORS), ids=lambda b: b.name.lower())
def test_matches_reference(
    backend: SDPBackend, dtype: torch.dtype, shape: tuple[int, int, int, int, int], causal: bool
) -> None:
    q, k, v, upstream = inputs(shape, dtype)
    exact = [t.double().requires_grad_() for t in (q, k, v)]
    wanted = reference(*exact, causal=causal)
    wanted_gradients = torch.autograd.grad(wanted, exact, upstream.double())

    tensors = [t.requires_grad_() for t in (q, k, v)]
    with sdpa_kernel(backend):
        found = F.scaled_dot_product_attention(*tensors, is_causal=causal)
        gradients = torch.autograd.grad(found, tensors, upstream)

    close(found, wanted, dtype)
    # With one key, a gradient is the difference of two equal numbers near 1, each rounded.
    least = 0.4 if shape[3] == 1 else 0.1
    for gradient, wanted_gradient in zip(gradients, wanted_gradients, strict=True):
        close(gradient, wanted_gradient, dtype, least)


@pytest.mark.parametrize("backend", list(OPERATORS), ids=lambda b: b.name.lower())
def test_runs_the_backend_asked_for(backend: SDPBackend) -> None:
    q, k, v, _ = inputs((1, 2, 64, 64, 32), torch.float32)
    with sdpa_kernel(backend), profile(activities=[ProfilerActivity.CPU], acc_events=True) as trace:
        F.scaled_dot_product_attention(q, k, v)
    ran = {event.key for event in trace.key_averages()} & set(OPERATORS.values())
    assert ran == {OPERATORS[backend]}


def test_boolean_mask() -> None:
    q, k, v, _ = inputs((2, 3, 17, 17, 16), torch.float32)
    mask = torch.ones(17, 17, dtype=torch.bool).tril()
    found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    close(found, reference(q.double(), k.double(), v.double(), causal=True), torch.float32)


def test_grouped_queries() -> None:
    q, _, _, _ = inputs((1, 8, 33, 33, 16), torch.float32)
    _, k, v, _ = inputs((1, 2, 33, 33, 16), torch.float32)
    found = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    repeated = [t.double().repeat_interleave(4, dim=1) for t in (k, v)]
    close(found, reference(q.double(), *repeated, causal=False), torch.float32)
