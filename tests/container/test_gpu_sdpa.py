"""Attention on this GPU: every backend agrees with float64, and the requested backend runs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.container.gpu import close, needs, operators

pytestmark = pytest.mark.gpu
Observe = Callable[[str, object], None]

OPERATORS = {
    SDPBackend.FLASH_ATTENTION: "aten::_scaled_dot_product_flash_attention",
    SDPBackend.EFFICIENT_ATTENTION: "aten::_scaled_dot_product_efficient_attention",
    SDPBackend.CUDNN_ATTENTION: "aten::_scaled_dot_product_cudnn_attention",
    SDPBackend.MATH: "aten::_scaled_dot_product_attention_math",
}
HALVES = [torch.float16, torch.bfloat16]
SHAPES = [(2, 4, 256, 64), (1, 3, 333, 128), (2, 2, 1024, 96)]


def named(value: object) -> str:
    return str(value).removeprefix("torch.").removeprefix("SDPBackend.").lower()


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """Softmax(q k^T / sqrt(d)) v, in the precision of its inputs.

    Shapes are (batch, heads, length, d). `k` and `v` may have fewer heads than `q`, each for a
    group of query heads.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~keep, -math.inf)
    return scores.softmax(-1) @ v


def inputs(
    shape: tuple[int, int, int, int], dtype: torch.dtype, keys: int | None = None
) -> list[torch.Tensor]:
    """Random query, key and value, and a gradient for the output.

    `shape` is (batch, heads, length, dimension). `keys` is the number of heads of key and value,
    that of the query if None.
    """
    batch, heads, length, dim = shape
    counts = (heads, keys or heads, keys or heads, heads)
    return [torch.randn(batch, n, length, dim, device="cuda").to(dtype) for n in counts]


def skip_unless_supported(backend: SDPBackend) -> None:
    """Skip what this GPU cannot run."""
    if backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        needs(8, 0, named(backend))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("dtype", HALVES, ids=named)
@pytest.mark.parametrize("backend", list(OPERATORS), ids=named)
def test_matches_float64(
    backend: SDPBackend, dtype: torch.dtype, shape: tuple[int, int, int, int], causal: bool
) -> None:
    skip_unless_supported(backend)
    *tensors, upstream = inputs(shape, dtype)
    exact = [t.double().requires_grad_() for t in tensors]
    wanted = reference(*exact, causal=causal)
    tensors = [t.requires_grad_() for t in tensors]
    with sdpa_kernel(backend):
        found = F.scaled_dot_product_attention(*tensors, is_causal=causal)
        gradients = torch.autograd.grad(found, tensors, upstream)
    close(found, wanted)
    for ours, theirs in zip(
        gradients, torch.autograd.grad(wanted, exact, upstream.double()), strict=True
    ):
        close(ours, theirs)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("backend", list(OPERATORS), ids=named)
def test_the_backend_asked_for_ran(backend: SDPBackend, causal: bool) -> None:
    skip_unless_supported(backend)
    q, k, v, _ = inputs((2, 4, 512, 64), torch.float16)
    with sdpa_kernel(backend):
        ran = operators(
            lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
            list(OPERATORS.values()),
        )
    assert ran == {OPERATORS[backend]}


@pytest.mark.parametrize(
    "backend",
    [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH],
    ids=named,
)
def test_grouped_queries(backend: SDPBackend) -> None:
    skip_unless_supported(backend)
    q, k, v, _ = inputs((2, 8, 300, 64), torch.bfloat16, keys=2)
    with sdpa_kernel(backend):
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    close(found, reference(q.double(), k.double(), v.double(), causal=True))


@pytest.mark.parametrize(
    "backend",
    [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION],
    ids=named,
)
def test_long_sequences(backend: SDPBackend) -> None:
    """65536 keys and queries. Only the last 4 queries are compared, which see nearly all keys."""
    skip_unless_supported(backend)
    q, k, v, _ = inputs((1, 2, 65536, 64), torch.float16)
    with sdpa_kernel(backend):
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    last = 4
    scores = q[..., -last:, :].double() @ k.double().mT / math.sqrt(64)
    place = torch.arange(65536, device="cuda")
    scores = scores.masked_fill(place > place[-last:, None], -math.inf)
    close(found[..., -last:, :], scores.softmax(-1) @ v.double(), 2e-2)


def test_default_dispatch_is_a_fused_kernel(observe: Observe) -> None:
    needs(8, 0, "fused attention in half precision")
    q, k, v, _ = inputs((2, 16, 2048, 128), torch.float16)
    ran = operators(
        lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), list(OPERATORS.values())
    )
    observe("sdpa by default", " ".join(sorted(ran)))
    assert len(ran) == 1
    assert ran != {OPERATORS[SDPBackend.MATH]}


def test_boolean_mask() -> None:
    q, k, v, _ = inputs((2, 4, 200, 64), torch.float16)
    mask = torch.rand(200, 200, device="cuda") < 0.5
    mask |= torch.eye(200, dtype=torch.bool, device="cuda")
    found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    scores = (q.double() @ k.double().mT / 8).masked_fill(~mask, -math.inf)
    close(found, scores.softmax(-1) @ v.double())
