"""torch-bench and torch's own counter agree on the operations of every shape.

This needs no GPU: the tensors are fake, with shapes and no content.
"""

from __future__ import annotations

import runpy
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

FOLDER = Path(__file__).resolve().parents[2] / "scripts" / "bench"
PRODUCTS = ("gemm", "precision", "batched gemm", "sdpa", "linear")
IMAGE = (3, 224, 224)


@pytest.fixture(scope="module")
def path(expected: dict[str, Any]) -> Iterator[None]:
    """The benchmark's modules can be imported."""
    del expected  # skips outside an image: only an image's torch can count them
    sys.path.insert(0, str(FOLDER))
    try:
        yield
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def cases(path: None) -> dict[str, Any]:
    """The cases of torch-bench by key."""
    from cases import cases as listed

    return {case.key: case for case in listed()}


def counted(case: Any) -> int:
    """The operations of one call of a case, as torch counts them.

    Attention is computed by the math backend, because the other ones need a GPU.
    """
    with ExitStack() as modes:
        modes.enter_context(FakeTensorMode())
        counter = modes.enter_context(FlopCounterMode(display=False))
        modes.enter_context(sdpa_kernel(SDPBackend.MATH))
        case.make(1)(0)
    found: int = counter.get_total_flops()
    return found


def test_list_is_that_of_the_cases(
    cases: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(FOLDER), "--list"])
    before = signal.getsignal(signal.SIGPIPE)  # which the program sets
    try:
        runpy.run_path(str(FOLDER), run_name="__main__")
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert capsys.readouterr().out.splitlines() == list(cases)


def test_no_product_runs_in_what_is_timed_but_the_one_that_is_counted(
    cases: dict[str, Any],
) -> None:
    """The scales of FP8 are made beforehand: the call itself is one operator."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.found.append(str(func))
            return func(*args, **(kwargs or {}))

    with FakeTensorMode():
        call = cases["precision/8192x8192/fp8"].make(1)
        with Names() as names:
            call(0)
    assert names.found == ["aten._scaled_mm.default"]


@pytest.mark.parametrize("table", PRODUCTS)
def test_operations_of_products(cases: dict[str, Any], table: str) -> None:
    chosen = {key: case for key, case in cases.items() if case.table == table}
    if torch.__version__ < "2.7":
        # Its counter does not know these.
        chosen = {key: case for key, case in chosen.items() if not key.endswith("/fp8")}
    assert chosen
    assert {k: c.flops for k, c in chosen.items()} == {k: counted(c) for k, c in chosen.items()}


def real(x: tuple[int, ...], weight: tuple[int, ...], stride: int, padding: int) -> int:
    """Multiplications by real values: a convolution of ones by ones adds up one for each.

    `x` and `weight` are shapes. torch's counter has those by padding, too.
    """
    ones = torch.ones(1, 1, *x[2:]), torch.ones(1, 1, *weight[2:])
    once = F.conv2d(*ones, stride=stride, padding=padding).sum()
    return int(once.item()) * x[0] * weight[0] * weight[1]


@pytest.mark.parametrize("table", ["conv2d", "depthwise conv2d"])
def test_operations_of_convolutions(cases: dict[str, Any], table: str) -> None:
    """Taps on padding are left out."""
    chosen = {key: case for key, case in cases.items() if case.table == table}
    assert chosen
    calls: list[tuple[Any, ...]] = []

    def conv2d(x: Any, weight: Any, *, padding: int, groups: int) -> None:
        calls.append((x.shape, weight.shape, padding))

    for key, case in chosen.items():
        with FakeTensorMode(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(F, "conv2d", conv2d)
            case.make(1)(0)
        x, weight, padding = calls[-1]
        assert case.flops == 2 * real(x, weight, 1, padding), key


def test_a_causal_mask_leaves_half(cases: dict[str, Any]) -> None:
    chosen = {key: case for key, case in cases.items() if case.table == "sdpa baseline"}
    whole = counted(
        next(case for key, case in chosen.items() if key.endswith("D=128, default/fp16"))
    )
    assert {key: whole // 2 if "causal" in key else whole for key in chosen} == {
        key: case.flops for key, case in chosen.items()
    }


def test_operations_of_other_shapes_of_attention(cases: dict[str, Any]) -> None:
    """All have a causal mask. In a CUDA graph, the row is about one of its calls."""
    chosen = {key: case for key, case in cases.items() if case.table == "attention shapes"}
    for case in chosen.values():
        plain = chosen.get(case.baseline, case)
        assert case.flops == counted(plain) // 2, case.key


def test_operations_of_attention_forward_and_backward(cases: dict[str, Any]) -> None:
    """Two products forward and five backward; a causal mask leaves half of each."""
    for case in cases.values():
        if case.table == "attention training":
            batch, heads, length, dim = (
                int(part.split("=")[1]) for part in case.name.split(", ")[:4]
            )
            assert case.flops == 7 * 2 * batch * heads * length**2 * dim / 2, case.key


def of_convolutions(net: torch.nn.Module, x: torch.Tensor) -> int:
    """Operations of a network of convolutions and linear layers, without taps on padding."""
    found = 0

    def seen(layer: Any, inputs: Any, _: object) -> None:
        nonlocal found
        shape = inputs[0].shape
        if isinstance(layer, torch.nn.Linear):
            found += 2 * shape.numel() * layer.out_features
        else:
            with torch.device("cpu"):
                found += 2 * real(shape, layer.weight.shape, layer.stride[0], layer.padding[0])

    for layer in net.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            layer.register_forward_hook(seen)
    net(x)
    return found


def test_operations_of_models(cases: dict[str, Any]) -> None:
    """Count one image, or one sequence of each length. A batch is a multiple of that."""
    from models import encoder, resnet50

    # The fast path is a single operator that the counter does not know.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.device("meta"), torch.inference_mode(), sdpa_kernel(SDPBackend.MATH):
            image = of_convolutions(resnet50(), torch.empty(1, *IMAGE))
            for case in cases.values():
                if case.table in ("resnet-50", "torch.compile"):
                    wanted = case.items * image
                elif case.table == "transformer encoder":
                    length = int(case.name.rpartition("S=")[2])
                    with FlopCounterMode(display=False) as sequence:
                        encoder()(torch.empty(1, length, 1024))
                    wanted = case.items * sequence.get_total_flops()
                else:
                    continue
                assert case.flops == pytest.approx(wanted, rel=1e-3), case.key
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_bytes_follow_from_the_shapes(cases: dict[str, Any]) -> None:
    """In bytes: each input is read once, each output written once. Each direction counts."""
    assert {
        key: cases[key].moved
        for key in (
            "layernorm/[32, 512, 4096]/fp16",
            "softmax/[8, 32, 2048, 2048]/fp16",
            "linear/[32,1,4096]->[32,1,4096]/fp16",
            "memory bandwidth/vector add, 512 MiB/fp16",
            "memory bandwidth/copy, 2 GiB/bytes",
            "gpu to gpu/both ways, 1 GiB each/bytes",
            "adamw/124M parameters, fused/fp32",
            "weight-only linear/[32,4096]->[32,11008]/int4",
        )
    } == {
        "layernorm/[32, 512, 4096]/fp16": 2 * 2 * 32 * 512 * 4096,
        "softmax/[8, 32, 2048, 2048]/fp16": 2 * 2 * 8 * 32 * 2048 * 2048,
        "linear/[32,1,4096]->[32,1,4096]/fp16": 2 * (32 * (4096 + 4096) + 4096 * 4096),
        "memory bandwidth/vector add, 512 MiB/fp16": 3 * 512 * 2**20,
        "memory bandwidth/copy, 2 GiB/bytes": 2 * 2 * 2**30,
        "gpu to gpu/both ways, 1 GiB each/bytes": 2 * 2**30,
        # The parameters of GPT-2: value, gradient and two moments are read, all but one written.
        "adamw/124M parameters, fused/fp32": (4 + 3) * 4 * 124_439_808,
        "weight-only linear/[32,4096]->[32,11008]/int4": 4096 * 11008 // 2
        + 2 * 32 * (4096 + 11008),
    }
