"""FlashAttention-4 behind torch's attention, on a GPU: right, taken where it should be, and no more.

Skipped in images without the extra `flash-attention`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.container.gpu import capability, close, needs, needs_gpus, operators
from tests.container.test_gpu_sdpa import inputs, reference

pytestmark = pytest.mark.gpu
Observe = Callable[[str, object], None]

flash_attention = pytest.importorskip("torch_image_attention", reason="no FlashAttention-4 here")
from torch.nn.attention.varlen import varlen_attn  # noqa: E402 - releases before 2.10 have none
from torch_image_attention import fa4, routes, rules  # noqa: E402

FLASH_OPERATOR = "aten::_flash_attention_forward"
# Batch, heads of the query, heads of key and value, length, width; the type; whether rows come
# before heads in memory. Each row compiles kernels of its own, which takes seconds.
CASES = [
    ((2, 4, 4, 256, 64), torch.float16, False),
    ((1, 2, 2, 777, 64), torch.bfloat16, True),
    ((2, 4, 4, 1024, 96), torch.bfloat16, True),
    ((1, 3, 3, 333, 128), torch.float16, True),
    ((2, 8, 2, 512, 128), torch.bfloat16, False),
    ((1, 6, 1, 300, 64), torch.float16, True),
    ((1, 2, 2, 500, 256), torch.bfloat16, False),
]


@pytest.fixture(autouse=True)
def everything() -> Iterator[None]:
    """FlashAttention-4 for all that it can do; afterwards what was before."""
    needs(9, 0, "FlashAttention-4")
    if capability()[0] not in fa4.WIDTHS:
        pytest.skip(f"FlashAttention-4 is not made for compute capability {capability()}")
    before = routes.mode
    routes.register("fa4")
    yield
    broken, fa4._broken = fa4.broken(), False
    routes.register(before)
    assert not broken, "FlashAttention-4 failed, and torch's own kernels did its work"


def ran(function: Callable[[], object], *parts: str) -> bool:
    """Whether a call launches kernels of FlashAttention-4, by the profiler.

    Each of `parts` has to be in the name of one of them.
    """
    from torch.profiler import ProfilerActivity, profile

    function()  # compiled before the profiler looks
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        function()
        torch.cuda.synchronize()
    names = [event.key for event in trace.key_averages()]
    assert names
    ours = [name for name in names if "FlashAttention" in name and "flash_attncute" in name]
    return bool(ours) and all(any(part in name for name in ours) for part in parts)


def tensors(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype, *, rows_first: bool = False
) -> list[torch.Tensor]:
    """Query, key, value and a gradient. With `rows_first`, as a projection lays them out."""
    batch, heads, keys, length, width = shape
    found = inputs((batch, heads, length, width), dtype, keys)
    if rows_first:
        found = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in found]
    return found


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    ("shape", "dtype", "rows_first"),
    CASES,
    ids=lambda v: "x".join(map(str, v)) if isinstance(v, tuple) else "",
)
def test_matches_float64(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype, rows_first: bool, causal: bool
) -> None:
    *given, upstream = tensors(shape, dtype, rows_first=rows_first)
    exact = [t.double().requires_grad_() for t in given]
    wanted = reference(*exact, causal=causal)
    given = [t.requires_grad_() for t in given]
    grouped = shape[1] != shape[2]
    found = F.scaled_dot_product_attention(*given, is_causal=causal, enable_gqa=grouped)
    gradients = torch.autograd.grad(found, given, upstream)
    close(found, wanted)
    assert found.stride() == given[0].stride()
    theirs = torch.autograd.grad(wanted, exact, upstream.double())
    for ours, exactly in zip(gradients, theirs, strict=True):
        close(ours, exactly)
    if shape[-1] in fa4.WIDTHS[capability()[0]]:
        with torch.no_grad():
            assert ran(
                lambda: F.scaled_dot_product_attention(*given, is_causal=causal, enable_gqa=grouped)
            )


@pytest.mark.parametrize("backend", [None, SDPBackend.FLASH_ATTENTION], ids=["default", "flash"])
def test_takes_flash_attention_4(backend: SDPBackend | None) -> None:
    q, k, v, _ = tensors((2, 4, 4, 512, 128), torch.float16)
    with sdpa_kernel(backend or [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
        assert ran(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    if backend is None:
        assert ran(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_what_was_measured_to_be_slower_is_torchs() -> None:
    """By default FlashAttention-4 is taken for the documents' shape, and not for a small one."""
    routes.register("auto")
    needs(9, 0, "FlashAttention-4 by default")
    small = tensors((2, 4, 4, 512, 128), torch.float16)[:3]
    assert not ran(lambda: F.scaled_dot_product_attention(*small, is_causal=True))
    large = tensors((16, 96, 96, 4096, 128), torch.float16)[:3]
    taken = ran(lambda: F.scaled_dot_product_attention(*large, is_causal=True))
    assert taken == ((capability(), routes._cudnn_release()) in rules.MEASURED)


def in_float64(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **how: object) -> torch.Tensor:
    """The same call in float64, by torch's plain arithmetic."""
    with sdpa_kernel(SDPBackend.MATH):
        doubles = (t.double() for t in (q, k, v))
        return F.scaled_dot_product_attention(*doubles, **how)


@pytest.mark.parametrize("case", ["mask", "more keys", "misaligned"])
def test_what_it_cannot_do_is_torchs(case: str) -> None:
    """Torch's own kernels give their very bits. test_attention.py has all that it cannot do."""
    q, k, v, _ = tensors((2, 4, 4, 512, 128), torch.float16)
    how: dict[str, object] = {"is_causal": True}
    if case == "mask":
        how = {"attn_mask": torch.rand(512, 512, device="cuda") < 0.9}
    elif case == "more keys":  # causal means another mask to FlashAttention then
        q = q[:, :, :200].contiguous()
    else:
        flat = torch.empty(q.numel() + 1, dtype=q.dtype, device="cuda")
        flat[1:] = q.flatten()
        q = flat[1:].view(q.shape)
        assert q.data_ptr() % 16

    def call() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, **how)

    found, taken = call(), ran(call)
    routes.register("stock")
    assert torch.equal(found, call())
    assert not taken


@pytest.mark.parametrize("forward", ["stock", "fa4"])
def test_either_backward_pass_follows_either_forward_pass(forward: str) -> None:
    """The two are chosen each by itself, so they must agree on what the forward pass leaves."""
    *given, upstream = tensors((2, 4, 4, 640, 128), torch.float16)
    exact = [t.double().requires_grad_() for t in given]
    given = [t.requires_grad_() for t in given]
    routes.register(forward)
    found = F.scaled_dot_product_attention(*given, is_causal=True)
    routes.register("fa4" if forward == "stock" else "stock")
    wanted = torch.autograd.grad(reference(*exact, causal=True), exact, upstream.double())
    for ours, theirs in zip(torch.autograd.grad(found, given, upstream), wanted, strict=True):
        close(ours, theirs)


def test_a_scale_of_ones_own() -> None:
    q, k, v, _ = tensors((2, 4, 4, 512, 128), torch.float16)
    found = F.scaled_dot_product_attention(q, k, v, scale=0.3)
    close(found, in_float64(q, k, v, scale=0.3))


def test_a_long_sequence() -> None:
    """65536 rows. Only the last 4 queries are compared, which see nearly all keys."""
    q, k, v, _ = tensors((1, 2, 2, 65536, 128), torch.bfloat16)
    found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q[..., -4:, :].double() @ k.double().mT / math.sqrt(128)
    place = torch.arange(65536, device="cuda")
    scores = scores.masked_fill(place > place[-4:, None], -math.inf)
    close(found[..., -4:, :], scores.softmax(-1) @ v.double(), 3e-2)


@pytest.mark.parametrize(
    "shape", [(65536, 1, 16, 64), (1, 65536, 16, 64)], ids=["batches", "heads"]
)
def test_more_than_a_grid_has_is_torchs(shape: tuple[int, ...], observe: Observe) -> None:
    """Such a call does what torch's own does, which is an error in some releases.

    FlashAttention-4 fails at it. The next call is its own again.
    """
    many = [torch.randn(shape, device="cuda").half() for _ in range(3)]
    found: dict[str, torch.Tensor | str] = {}
    for mode in ("stock", "fa4"):
        routes.register(mode)
        try:
            found[mode] = F.scaled_dot_product_attention(*many)
            torch.cuda.synchronize()
        except RuntimeError as error:
            found[mode] = str(error).splitlines()[0]
    stock, ours = found["stock"], found["fa4"]
    observe(f"attention of {shape}", stock if isinstance(stock, str) else "right")
    if isinstance(stock, str) or isinstance(ours, str):
        assert ours == stock
    else:
        # By the processor: a product of so many matrices in float64 is not what is tested here.
        close(ours, in_float64(*(tensor.cpu() for tensor in many)))
    q, k, v, _ = tensors((2, 4, 4, 512, 128), torch.float16)
    assert ran(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_equal_calls_give_equal_bits() -> None:
    *given, upstream = tensors((2, 4, 4, 1024, 128), torch.float16)
    given = [t.requires_grad_() for t in given]

    def once() -> list[torch.Tensor]:
        found = F.scaled_dot_product_attention(*given, is_causal=True)
        return [found, *torch.autograd.grad(found, given, upstream)]

    torch.use_deterministic_algorithms(mode=True)
    try:
        first = once()
        for _ in range(5):
            assert all(map(torch.equal, first, once()))
    finally:
        torch.use_deterministic_algorithms(mode=False)


class Block(nn.Module):
    """One layer of attention, as programs write it."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.into(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(*parts, is_causal=True)
        out: torch.Tensor = self.out(found.transpose(1, 2).flatten(-2))
        return out


def trained(block: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The output and the gradients of a block."""
    found = block(x)
    return [found, *torch.autograd.grad(found.float().square().sum(), list(block.parameters()))]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_programs(mode: str) -> None:
    """torch.compile calls the same operators, in CUDA graphs, too."""
    block, x = Block().cuda().half(), torch.randn(2, 512, 256, device="cuda").half()
    wanted = trained(block, x)
    compiled = torch.compile(block, mode=mode)
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        found = [t.clone() for t in trained(compiled, x)]
    for ours, theirs in zip(found, wanted, strict=True):
        close(ours, theirs.double(), 1e-2)
    assert ran(lambda: trained(compiled, x), "flash_fwd", "flash_bwd")


def test_a_cuda_graph() -> None:
    """The graph computes for the inputs of its replay, forward and backward."""
    *given, upstream = tensors((2, 4, 4, 512, 128), torch.float16)
    given = [t.requires_grad_() for t in given]

    def step() -> list[torch.Tensor]:
        found = F.scaled_dot_product_attention(*given, is_causal=True)
        return [found, *torch.autograd.grad(found, given, upstream)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for tensor in given:
            tensor.copy_(torch.randn_like(tensor))
    assert ran(graph.replay)
    exact = [t.detach().double().requires_grad_() for t in given]
    wanted = reference(*exact, causal=True)
    close(captured[0], wanted)
    gradients = torch.autograd.grad(wanted, exact, upstream.double())
    for ours, theirs in zip(captured[1:], gradients, strict=True):
        close(ours, theirs)


def test_a_first_call_in_a_capture_is_torchs() -> None:
    """A kernel cannot be compiled there, so the graph has torch's own, and is right."""
    given = tensors((1, 5, 5, 1111, 128), torch.float16)[:3]
    F.scaled_dot_product_attention(*(t[..., :64, :].contiguous() for t in given))  # sets cuDNN up
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = F.scaled_dot_product_attention(*given, is_causal=True)
    assert not ran(graph.replay)
    close(found, reference(*(t.double() for t in given), causal=True))


def test_it_runs_on_the_current_stream() -> None:
    given = tensors((2, 4, 4, 2048, 128), torch.float16)[:3]
    wanted = F.scaled_dot_product_attention(*given, is_causal=True)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)  # whoever does not wait for this stream is too early
        moved = [t * 1 for t in given]
        found = F.scaled_dot_product_attention(*moved, is_causal=True)
    side.synchronize()
    assert torch.equal(found, wanted)


def test_another_gpu() -> None:
    needs_gpus(2)
    given = [t.to("cuda:1").requires_grad_() for t in tensors((2, 4, 4, 512, 128), torch.float16)]
    *given, upstream = given
    found = F.scaled_dot_product_attention(*given, is_causal=True)
    gradients = torch.autograd.grad(found, given, upstream)
    exact = [t.detach().double().requires_grad_() for t in given]
    wanted = reference(*exact, causal=True)
    close(found, wanted)
    for ours, theirs in zip(
        gradients, torch.autograd.grad(wanted, exact, upstream.double()), strict=True
    ):
        close(ours, theirs)
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (64, 0)], ids=["full", "causal", "window"])
def test_sequences_of_several_lengths(window: tuple[int, int]) -> None:
    """Torch's varlen_attn, each sequence against float64. A window is left to torch's kernel."""
    lengths = [200, 2, 513, 64]
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], device="cuda", dtype=torch.int32)
    total, longest = sum(lengths), max(lengths)
    rows = [torch.randn(total, 4, 128, device="cuda").half().requires_grad_() for _ in range(3)]
    found = varlen_attn(*rows, starts, starts, longest, longest, window_size=window)
    assert isinstance(found, torch.Tensor)
    if operators(lambda: varlen_attn(*rows, starts, starts, longest, longest), [FLASH_OPERATOR]):
        # torch 2.15 takes an operator of cuDNN's, which is left alone
        with torch.no_grad():
            taken = ran(
                lambda: varlen_attn(*rows, starts, starts, longest, longest, window_size=window)
            )
        assert taken is (window != (64, 0))
    upstream = torch.randn_like(found)
    gradients = torch.autograd.grad(found, rows, upstream)
    at = 0
    for length in lengths:
        part = slice(at, at + length)
        exact = [r.detach()[part].double().transpose(0, 1).unsqueeze(0) for r in rows]
        exact = [t.requires_grad_() for t in exact]
        scores = exact[0] @ exact[1].mT / math.sqrt(128)
        place = torch.arange(length, device="cuda")
        gap = place[:, None] - place
        keep = torch.ones_like(gap, dtype=torch.bool)
        if window[1] == 0:
            keep &= gap >= 0
        if window[0] > 0:
            keep &= gap <= window[0]
        wanted = scores.masked_fill(~keep, -math.inf).softmax(-1) @ exact[2]
        close(found[part], wanted[0].transpose(0, 1))
        cut = upstream[part].double().transpose(0, 1).unsqueeze(0)
        for ours, theirs in zip(gradients, torch.autograd.grad(wanted, exact, cut), strict=True):
            close(ours[part], theirs[0].transpose(0, 1), 1e-2)
        at += length


def test_the_name_that_torch_has_for_it() -> None:
    """torch.nn.attention.activate_flash_attention_impl("FA4"), and back."""
    from torch.nn.attention import activate_flash_attention_impl, restore_flash_attention_impl

    routes.register("stock")
    q, k, v, _ = tensors((2, 4, 4, 512, 128), torch.float16)
    activate_flash_attention_impl("FA4")
    assert ran(lambda: F.scaled_dot_product_attention(q, k, v))
    restore_flash_attention_impl()
    assert not ran(lambda: F.scaled_dot_product_attention(q, k, v))


def test_the_quick_call_is_the_slow_one() -> None:
    """The compiled function is called by itself from the second call of a shape on."""
    q, k, v, _ = tensors((2, 4, 2, 999, 128), torch.bfloat16)
    first, second = (
        F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) for _ in range(2)
    )
    assert torch.equal(first, second)


def test_graphs_have_rules_of_their_own() -> None:
    """Faster in a graph alone: taken there, and once in its warm-up, but in no other call."""
    *given, upstream = tensors((1, 24, 24, 4096, 64), torch.bfloat16)
    shape = rules.Shape(width=64, causal=True, shortest=4096, operations=5.1e10)
    on = (capability(), routes._cudnn_release())
    taken = [rules.faster("forward", mode, on, shape) for mode in ("usual", "captured")]
    if taken != [False, True]:
        pytest.skip("graphs were not measured with this release")
    routes.register("auto")

    def step() -> list[torch.Tensor]:
        leaves = [t.detach().requires_grad_() for t in given]  # of the stream of this call
        found = F.scaled_dot_product_attention(*leaves, is_causal=True)
        return [found, *torch.autograd.grad(found, leaves, upstream)]

    assert not ran(step)
    stock = step()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        step()
        with torch.cuda.graph(graph, stream=side):
            captured = step()
    assert ran(graph.replay, "flash_fwd", "flash_bwd")
    assert not ran(step)
    for ours, theirs in zip(captured, stock, strict=True):
        close(ours, theirs.double(), 2e-2)
