"""FlashAttention-4 behind torch's attention, without a GPU: who is asked, and what falls back.

Torch is real. FlashAttention-4 is a stand-in that computes on the CPU and counts its calls, and
torch's own kernels for CUDA are stand-ins that note theirs. `test_gpu_attention.py` has the real ones.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torch_image_attention", reason="no FlashAttention-4 in this image")
from torch_image_attention import fa4, routes

HOPPER, BLACKWELL, ADA = (9, 0), (10, 0), (8, 9)


class Stock:
    """Torch's own kernel of an operator."""

    def __init__(self, name: str) -> None:
        self.name = name

    def call_boxed(self, *_: object, **__: object) -> str:
        return self.name


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of FlashAttention-4, as on a Hopper GPU with all kernels there."""
    calls: list[str] = []

    def forward(attention: fa4.Attention, out: torch.Tensor, lse: torch.Tensor | None) -> bool:
        calls.append("forward")
        rows = [t.transpose(1, 2).double() for t in (attention.query, attention.key)]
        groups = rows[0].shape[1] // rows[1].shape[1]
        key, value = (
            t.transpose(1, 2).double().repeat_interleave(groups, 1)
            for t in (attention.key, attention.value)
        )
        scores = rows[0] @ key.mT * attention.scale
        if attention.causal:
            scores = scores.masked_fill(~torch.ones_like(scores).tril().bool(), -torch.inf)
        out.copy_((scores.softmax(-1) @ value).transpose(1, 2))
        if lse is not None:
            lse.copy_(scores.logsumexp(-1))
        return True

    def backward(attention: fa4.Attention, **given: Any) -> bool:
        calls.append("backward")
        assert given["lse"].shape[:2] == (attention.query.shape[0], attention.query.shape[2])
        for gradient in given["grads"]:
            gradient.fill_(1)
        return True

    def forward_ragged(attention: fa4.Attention) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append("ragged")
        return torch.empty_like(attention.query), torch.empty(attention.query.shape[:2]).T

    monkeypatch.setattr(fa4, "forward", forward)
    monkeypatch.setattr(fa4, "backward", backward)
    monkeypatch.setattr(fa4, "forward_ragged", forward_ragged)
    monkeypatch.setattr(fa4, "_module", object())
    monkeypatch.setattr(fa4, "_broken", False)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(routes, "_stock", {name: Stock(name) for name in routes.KERNELS})
    monkeypatch.setattr(routes, "_capabilities", {torch.device("cpu"): HOPPER})
    monkeypatch.setattr(routes, "_cudnn_version", ["9.19"])
    monkeypatch.setattr(routes, "mode", "fa4")
    return calls


def tensors(
    heads: int = 4, keys: int = 0, rows: int = 16, width: int = 64, dtype: torch.dtype = torch.half
) -> list[torch.Tensor]:
    """Query, key and value: batch, heads, rows, width."""
    return [torch.randn(2, n, rows, width).to(dtype) for n in (heads, keys or heads, keys or heads)]


def by_cudnn(*given: torch.Tensor, causal: bool = False, lse: bool = True, **more: Any) -> Any:
    """The operator of cuDNN, whose tensors have heads before rows."""
    how = {"dropout_p": 0.0, "is_causal": causal, "return_debug_mask": False, **more}
    bias = how.pop("bias", None)
    return routes._cudnn(None, *given, bias, lse, **how)


def by_flash(*given: torch.Tensor, causal: bool = False, **more: Any) -> Any:
    """The flash operator, whose tensors have rows before heads."""
    rows = [t.transpose(1, 2).contiguous() for t in given]
    dropout, mask = more.pop("dropout_p", 0.0), more.pop("return_debug_mask", False)
    size = rows[0].shape[1]
    return routes._flash(None, *rows, None, None, size, size, dropout, causal, mask, **more)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", [4, 2, 1])
def test_it_computes_attention(taken: list[str], keys: int, causal: bool) -> None:
    given = tensors(4, keys)
    exact = [t.double().repeat_interleave(4 // t.shape[1], 1) for t in given]
    wanted = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=causal).half()
    found = by_cudnn(*given, causal=causal)
    assert torch.allclose(found[0], wanted, atol=2e-3)
    assert found[1].shape == (2, 4, 16, 1)
    assert found[4:6] == (16, 16)
    assert torch.allclose(by_flash(*given, causal=causal)[0].transpose(1, 2), wanted, atol=2e-3)
    assert by_flash(*given)[1].shape == (2, 4, 16)
    assert by_cudnn(*given, lse=False)[1] is None
    assert taken == ["forward"] * 4


def test_the_version_of_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_cudnn_version", [])
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    assert routes._cudnn_release() == "9.19"
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92400)
    assert routes._cudnn_release() == "9.19"  # read once
    monkeypatch.setattr(routes, "_cudnn_version", [])
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: None)
    assert routes._cudnn_release() == "0.0"


@pytest.mark.parametrize("scale", [0.0, -0.1])
def test_a_scale_that_turns_the_order_around_is_torchs(taken: list[str], scale: float) -> None:
    assert by_cudnn(*tensors(), scale=scale) == routes.CUDNN
    assert by_flash(*tensors(), scale=scale) == routes.FLASH
    assert backward_of(*tensors(), scale=scale) == routes.CUDNN_BACKWARD
    assert taken == []


def test_a_scale(taken: list[str]) -> None:
    given = tensors()
    found = by_cudnn(*given, scale=0.5)[0]
    exact = torch.nn.functional.scaled_dot_product_attention(
        *(t.double() for t in given), scale=0.5
    )
    assert torch.allclose(found, exact.half(), atol=2e-3)


def many(batches: int, heads: int) -> list[torch.Tensor]:
    return [torch.empty(batches, heads, 1, 64, dtype=torch.half) for _ in range(3)]


def misaligned() -> list[torch.Tensor]:
    query, key, value = tensors()
    flat = torch.empty(query.numel() + 1, dtype=query.dtype)
    return [flat[1:].view(query.shape), key, value]


def gapped() -> list[torch.Tensor]:
    query, _, value = tensors()
    return [query, torch.empty(2, 4, 16, 128).half()[..., ::2], value]


NOT_FOR_IT: dict[str, Callable[[], list[torch.Tensor]]] = {
    "float32": lambda: tensors(dtype=torch.float32),
    "two types": lambda: [*tensors()[:2], tensors()[2].bfloat16()],
    "width 72": lambda: tensors(width=72),
    "width 512": lambda: tensors(width=512),
    "heads that do not divide": lambda: tensors(4, 3),
    "a key of another width": lambda: [tensors()[0], *tensors(width=128)[1:]],
    "a value of another width": lambda: [*tensors()[:2], tensors(width=128)[2]],
    "misaligned": misaligned,
    "gaps in a row": gapped,
    "one head for all": lambda: [tensors()[0], *(t[:, :1].expand(2, 4, 16, 64) for t in tensors()[1:])],
    "one batch for all": lambda: [tensors()[0], *(t[:1] for t in tensors()[1:])],
    "nothing": lambda: tensors(rows=0),
    "65536 batches": lambda: many(65536, 1),
    "65536 heads": lambda: many(1, 65536),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_FOR_IT)
def test_what_it_cannot_do_is_torchs(taken: list[str], case: str) -> None:
    given = NOT_FOR_IT[case]()
    assert by_cudnn(*given) == routes.CUDNN
    assert taken == []


def test_so_many_batches_and_heads_it_can_do(taken: list[str]) -> None:
    assert by_cudnn(*many(65535, 1)) != routes.CUDNN
    assert by_cudnn(*many(1, 65535)) != routes.CUDNN
    assert by_flash(*many(65536, 1)) == routes.FLASH
    assert by_flash(*many(1, 65536)) == routes.FLASH
    assert backward_of(*many(65536, 1)) == routes.CUDNN_BACKWARD
    assert not fa4.broken()


@pytest.mark.parametrize(
    "more", [{"bias": torch.ones(1)}, {"dropout_p": 0.1}, {"return_debug_mask": True}]
)
def test_what_is_asked_for_beside_is_torchs(taken: list[str], more: dict[str, Any]) -> None:
    assert by_cudnn(*tensors(), **more) == routes.CUDNN
    if "bias" not in more:
        assert by_flash(*tensors(), **more) == routes.FLASH
    assert taken == []


@pytest.mark.parametrize(
    ("more", "causal", "ours"),
    [
        ({}, False, True),
        ({"window_size_left": -1, "window_size_right": -1}, False, True),
        ({"window_size_left": -1, "window_size_right": 0}, True, True),
        ({"window_size_left": -1, "window_size_right": 0}, False, False),
        ({"window_size_left": 64, "window_size_right": 0}, True, False),
        ({"window_size_right": 8}, False, False),
        ({"seqused_k": None, "num_splits": None, "flag": False}, False, True),
        ({"seqused_k": torch.ones(1)}, False, False),
        ({"num_splits": 2}, False, False),
    ],
)
def test_windows_and_what_newer_releases_ask_for(
    taken: list[str], more: dict[str, Any], causal: bool, ours: bool
) -> None:
    found = by_flash(*tensors(), causal=causal, **more)
    assert (found != routes.FLASH) is ours
    assert taken == ["forward"] * ours


def test_causal_means_another_mask_where_lengths_differ(taken: list[str]) -> None:
    query, key, value = tensors()
    assert by_cudnn(query[:, :, :8].contiguous(), key, value, causal=True) == routes.CUDNN
    assert by_cudnn(query[:, :, :8].contiguous(), key, value) != routes.CUDNN


@pytest.mark.parametrize("capability", [HOPPER, BLACKWELL, ADA, (12, 0), (9, 1)])
@pytest.mark.parametrize("mode", ["auto", "fa4", "stock"])
def test_which_gpus_take_it(
    taken: list[str], monkeypatch: pytest.MonkeyPatch, mode: str, capability: tuple[int, int]
) -> None:
    """By default only those that were measured, and there only what is large."""
    monkeypatch.setattr(routes, "mode", mode)
    monkeypatch.setattr(routes, "_capabilities", {torch.device("cpu"): capability})
    small = by_cudnn(*tensors()) != routes.CUDNN
    with torch.device("meta"):
        large = [torch.empty(16, 96, 4096, 128, dtype=torch.half) for _ in range(3)]
    monkeypatch.setitem(routes._capabilities, torch.device("meta"), capability)
    monkeypatch.setattr(routes, "_readable", lambda _: True)
    causal = True
    chosen = routes._chosen("forward", *large, causal, heads=1, rows=2)
    assert small is (mode == "fa4" and capability[0] == 9)
    assert chosen is (
        (mode == "auto" and capability == HOPPER) or (mode == "fa4" and capability[0] == 9)
    )
    monkeypatch.setattr(routes, "_cudnn_version", ["9.99"])  # not measured
    assert routes._chosen("forward", *large, causal, heads=1, rows=2) is (chosen and mode == "fa4")


def test_deterministic_programs_have_rules_of_their_own(
    taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "mode", "auto")
    monkeypatch.setattr(routes.rules, "faster", lambda _, mode, *__: mode == "deterministic")
    assert by_cudnn(*tensors()) == routes.CUDNN
    torch.use_deterministic_algorithms(mode=True)
    try:
        assert by_cudnn(*tensors()) != routes.CUDNN
    finally:
        torch.use_deterministic_algorithms(mode=False)


@pytest.mark.parametrize("mode", ["usual", "captured"])
def test_what_is_faster_in_a_graph_alone_is_taken_there_and_in_its_warm_up(
    taken: list[str], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Once for each shape in a warm-up, on a stream of its own, and each time in the graph."""
    capturing, side = [False], [False]
    monkeypatch.setattr(routes, "mode", "auto")
    monkeypatch.setattr(routes, "_warmed", set())
    monkeypatch.setattr(routes.rules, "faster", lambda _, asked, *__: asked == mode)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: side[0])
    monkeypatch.setattr(torch.cuda, "default_stream", lambda _: False)

    def ours(*given: torch.Tensor) -> bool:
        return bool(by_cudnn(*given) != routes.CUDNN)

    usual = mode == "usual"
    assert [ours(*tensors()) for _ in range(2)] == [usual, usual]
    side[0] = True
    assert [ours(*tensors()) for _ in range(3)] == [True, usual, usual]
    capturing[0] = True
    assert [ours(*tensors()) for _ in range(2)] == [not usual, not usual]
    capturing[0] = False
    assert ours(*(t[:, :, :8].contiguous() for t in tensors()))  # another shape


def test_a_program_that_wants_cudnn_gets_it(taken: list[str]) -> None:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
        assert by_cudnn(*tensors()) == routes.CUDNN
    assert taken == []


def backward_of(*given: torch.Tensor, causal: bool = False, **more: Any) -> Any:
    """The gradients by cuDNN's operator."""
    out, lse = torch.empty_like(given[0]), torch.empty(2, 4, 16, 1)
    seed = torch.zeros((), dtype=torch.int64)
    size = given[0].shape[2]
    how = {"dropout_p": 0.0, "bias": None, "grad": torch.ones_like(out), **more}
    return routes._cudnn_backward(
        None, how["grad"], *given, out, lse, seed, seed, how["bias"], None, None, size, size,
        how["dropout_p"], causal, scale=more.get("scale"),
    )  # fmt: skip


def test_gradients(taken: list[str]) -> None:
    given = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors()]
    found = backward_of(*given, grad=torch.ones(()).half().expand(given[0].shape))
    assert [g.stride() for g in found] == [t.stride() for t in given]
    assert all((g == 1).all() for g in found)
    assert backward_of(*tensors(), dropout_p=0.1) == routes.CUDNN_BACKWARD
    assert backward_of(*tensors(), bias=torch.ones(1)) == routes.CUDNN_BACKWARD
    assert backward_of(*tensors(dtype=torch.float32)) == routes.CUDNN_BACKWARD
    rows = [t.transpose(1, 2).contiguous() for t in tensors()]
    out, lse, state = torch.empty_like(rows[0]), torch.empty(2, 4, 16), torch.zeros(2)
    arguments = (None, out, *rows, out, lse, None, None, 16, 16, 0.0, False, state, state)
    assert len(routes._flash_backward(*arguments)) == 3
    assert routes._flash_backward(*arguments, window_size_left=4) == routes.FLASH_BACKWARD
    assert taken == ["backward"] * 2


def test_sequences_of_several_lengths(taken: list[str]) -> None:
    rows = [torch.randn(20, 4, 64).half() for _ in range(3)]
    starts = torch.tensor([0, 4, 20], dtype=torch.int32)

    def call(begin: torch.Tensor, **more: Any) -> Any:
        causal, mask = True, False
        return routes._flash(None, *rows, begin, begin, 16, 16, 0.0, causal, mask, **more)

    assert call(starts)[1].shape == (4, 20)
    assert call(starts.long()) == routes.FLASH
    assert call(torch.zeros(65537, dtype=torch.int32)) == routes.FLASH
    assert taken == ["ragged"]
    routes.mode = "auto"  # not measured, so it is torch's by default
    assert call(starts) == routes.FLASH


def test_a_failure_is_said_once_and_torch_goes_on(
    taken: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TORCH_IMAGE_QUIET", raising=False)
    calls = []

    def fail(*_: object) -> bool:
        calls.append(1)
        raise ValueError("no kernel of this kind")

    monkeypatch.setattr(fa4, "forward", fail)
    assert by_cudnn(*tensors()) == routes.CUDNN
    assert by_cudnn(*tensors()) == routes.CUDNN
    assert len(calls) == 1
    said = capsys.readouterr().err
    assert said == (
        "torch-images: attention is torch's own from now on, because FlashAttention-4 failed: "
        "no kernel of this kind\n"
    )


def test_full_memory_is_not_the_end(taken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object) -> bool:
        raise torch.OutOfMemoryError

    good = fa4.forward
    monkeypatch.setattr(fa4, "forward", fill)
    assert by_cudnn(*tensors()) == routes.CUDNN
    monkeypatch.setattr(fa4, "forward", good)
    assert by_cudnn(*tensors()) != routes.CUDNN


def test_nothing_is_imported_while_a_graph_is_captured(
    taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(fa4, "_module", None)
    monkeypatch.setattr(fa4, "_load", lambda: loaded.append("once"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert by_cudnn(*tensors()) == routes.CUDNN
    assert loaded == taken == []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert by_cudnn(*tensors()) == routes.CUDNN
    assert loaded == ["once"]


@pytest.mark.parametrize("told", [None, "0", "1"])
@pytest.mark.parametrize("writable", [True, False])
def test_where_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, writable: bool, told: str | None
) -> None:
    """A folder that cannot be written, such as a volume that is mounted read-only, or by request."""
    monkeypatch.setenv(fa4.CACHE_DIR, str(tmp_path / "cache"))
    monkeypatch.delenv(fa4.CACHE_ON, raising=False)
    if told:
        monkeypatch.setenv(fa4.CACHE_ON, told)
    monkeypatch.setattr(os, "access", lambda *_: writable)
    kept = tmp_path / "cache" if writable and told != "0" else None
    assert fa4._folder() == kept


@pytest.mark.parametrize("told", [None, "1"])
def test_a_failed_import_is_said_and_changes_no_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: str | None
) -> None:
    """While FlashAttention-4 is imported its own cache is off."""
    monkeypatch.setenv(fa4.CACHE_DIR, str(tmp_path))
    monkeypatch.delenv(fa4.CACHE_ON, raising=False)
    if told:
        monkeypatch.setenv(fa4.CACHE_ON, told)
    seen: list[str] = []

    def fail() -> None:
        seen.append(os.environ[fa4.CACHE_ON])
        raise ImportError("no FlashAttention-4")

    monkeypatch.setattr(fa4.loading, "interface", fail)
    monkeypatch.setattr(fa4, "_broken", False)
    monkeypatch.setattr(fa4, "_module", None)
    fa4._load()
    assert seen == ["0"]
    assert os.environ.get(fa4.CACHE_ON) == told
    assert fa4.broken()


def kind_of(batches: int, longest: int) -> tuple[object, ...]:
    rows = [torch.empty(20, 4, 64).half() for _ in range(3)]
    starts = torch.zeros(batches + 1, dtype=torch.int32)
    ragged = fa4.Ragged(starts, starts, longest, longest)
    kind: tuple[object, ...] = fa4.Attention(*rows, causal=True, scale=1.0, ragged=ragged).kind
    return kind


def test_what_has_other_kernels_is_of_another_kind() -> None:
    """Else a kernel would be compiled while a CUDA graph is captured."""
    assert kind_of(256, 1000) != kind_of(257, 1000)
    assert kind_of(255, 1000) == kind_of(256, 2000)
    assert kind_of(2, 100) != kind_of(2, 513)


@pytest.mark.parametrize("name", routes.KERNELS)
def test_torchs_operators_are_those_that_it_knows(name: str) -> None:
    """A release that puts an argument before others would be misread without an error."""
    theirs = [a.name for a in getattr(torch.ops.aten, name).default._schema.arguments]
    by_place = [
        a.name for a in getattr(torch.ops.aten, name).default._schema.arguments if not a.kwarg_only
    ]
    ours = list(inspect.signature(routes.KERNELS[name]).parameters.values())[1:]
    assert [p.name for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD] == by_place
    others = any(p.kind is p.VAR_KEYWORD for p in ours)
    named = {p.name for p in ours}
    assert others or set(theirs) <= named


PROGRAM = """
import json, sys, torch
import torch_image_attention
routes = sys.modules.get("torch_image_attention.routes")
found = {"mode": routes.mode if routes else "", "heavy": [m for m in ("flash_attn", "cutlass") if m in sys.modules]}
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("settings", "mode", "complaint"),
    [
        ({}, "auto", ""),
        ({"TORCH_IMAGE_ATTENTION": "fa4"}, "fa4", ""),
        ({"TORCH_IMAGE_ATTENTION": "FA4", "TORCH_IMAGE_PROFILE": "off"}, "fa4", ""),
        ({"TORCH_IMAGE_ATTENTION": "stock"}, "", ""),
        ({"TORCH_IMAGE_PROFILE": "off"}, "", ""),
        (
            {"TORCH_IMAGE_ATTENTION": "fast"},
            "auto",
            "torch-images: TORCH_IMAGE_ATTENTION=fast is not fa4 or stock, and is ignored\n",
        ),
        ({"TORCH_IMAGE_ATTENTION": "fast", "TORCH_IMAGE_QUIET": "1"}, "auto", ""),
    ],
)
def test_import_of_torch_puts_it_there(settings: dict[str, str], mode: str, complaint: str) -> None:
    """And imports nothing large. Warnings are errors: torch warns of a kernel that is replaced."""
    ours = ("TORCH_IMAGE_ATTENTION", "TORCH_IMAGE_PROFILE", "TORCH_IMAGE_QUIET")
    environ = {k: v for k, v in os.environ.items() if k not in ours}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", PROGRAM],
        env={**environ, **settings}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == complaint
    assert json.loads(done.stdout) == {"mode": mode, "heavy": []}


def test_flash_attention_4_has_what_is_called() -> None:
    """Imported without a GPU. Its inner functions are no interface that it promises."""
    interface = pytest.importorskip("flash_attn.cute.interface", reason="no FlashAttention-4 here")
    from flash_attn.cute.utils import AuxData

    assert AuxData(None, None) is not None
    forward = inspect.signature(interface._flash_attn_fwd).parameters
    assert {"softmax_scale", "causal", "out", "lse", "return_lse", "cu_seqlens_q"} <= set(forward)
    backward = inspect.signature(interface._flash_attn_bwd).parameters
    assert list(backward)[:6] == ["q", "k", "v", "out", "dout", "lse"]
    assert {"deterministic", "dq", "dk", "dv", "max_seqlen_k"} <= set(backward)
    assert hasattr(interface._flash_attn_fwd, "compile_cache")


COMPILES = """
import json, os, sys, torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_image_attention import fa4

before = set(sys.modules)
assert fa4.ready(waits=True)
heavy = {"quack", "torch._dynamo", "sympy", "triton"} & set(sys.modules) - before
with FakeTensorMode():
    query = torch.empty(2, 512, 4, 64, dtype=torch.half, device="cuda:0")
    lse = torch.empty(2, 4, 512, device="cuda:0")
    fa4._module._flash_attn_fwd(query, query, query, out=torch.empty_like(query), lse=lse)
print(json.dumps(sorted(heavy)))
"""


def test_it_compiles_without_a_gpu_and_keeps_what_it_compiled(tmp_path: Path) -> None:
    """For compute capability 9.0, in three processes: one compiles, one loads, one finds damage."""
    pytest.importorskip("flash_attn.cute", reason="no FlashAttention-4 here")
    target = {
        "CUTE_DSL_ARCH": "sm_90a", "FLASH_ATTENTION_ARCH": "sm_90",
        "FLASH_ATTENTION_NUM_SMS": "132", fa4.CACHE_DIR: str(tmp_path),
    }  # fmt: skip
    environ = {k: v for k, v in os.environ.items() if k not in ("TORCH_IMAGE_QUIET", fa4.CACHE_ON)}

    def call() -> str:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", COMPILES],
            env={**environ, **target}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == []  # at the first call only what it needs is imported
        ours = (line for line in done.stderr.splitlines() if line.startswith("torch-images: "))
        return "\n".join(ours)

    assert " compiled attention's forward pass (FlashAttention-4) in " in call()
    [file] = tmp_path.glob("*/*/*.o")
    whole = file.read_bytes()
    assert call() == ""
    file.write_bytes(whole[:4096] + bytes(4096) + whole[8192:])
    assert " is damaged; " in call()
    assert file.read_bytes() == whole
