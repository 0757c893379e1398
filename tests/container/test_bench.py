"""torch-bench and torch's own counter agree on the operations of every shape.

This needs no GPU: the tensors are fake, with shapes and no content.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

FOLDER = Path(__file__).resolve().parents[2] / "scripts" / "bench"
PRODUCTS = ("gemm", "precision", "batched gemm", "conv2d", "depthwise conv2d", "sdpa", "linear")
IMAGE = (3, 224, 224)


@pytest.fixture(scope="module")
def cases(expected: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The cases of torch-bench by key."""
    del expected  # skips outside an image: only an image's torch can count them
    sys.path.insert(0, str(FOLDER))
    try:
        from cases import cases as listed

        yield {case.key: case for case in listed()}
    finally:
        sys.path.remove(str(FOLDER))


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


def test_list_is_that_of_the_cases(cases: dict[str, Any]) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER), "--list"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == list(cases)


@pytest.mark.parametrize("table", PRODUCTS)
def test_operations_of_products(cases: dict[str, Any], table: str) -> None:
    chosen = {key: case for key, case in cases.items() if case.table == table}
    if torch.__version__ < "2.7":
        if table == "depthwise conv2d":
            pytest.skip("torch 2.6 asks the driver which kernel it would take")
        # Its counter does not know these.
        chosen = {key: case for key, case in chosen.items() if not key.endswith("/fp8")}
    assert chosen
    assert {k: c.flops for k, c in chosen.items()} == {k: counted(c) for k, c in chosen.items()}


def test_a_causal_mask_leaves_half(cases: dict[str, Any]) -> None:
    chosen = {key: case for key, case in cases.items() if case.table == "sdpa baseline"}
    whole = counted(
        next(case for key, case in chosen.items() if key.endswith("D=128, default/fp16"))
    )
    assert {key: whole // 2 if "causal" in key else whole for key in chosen} == {
        key: case.flops for key, case in chosen.items()
    }


def test_operations_of_models(cases: dict[str, Any]) -> None:
    """Count one image, or one sequence of each length. A batch is a multiple of that."""
    from models import encoder, resnet50

    # The fast path is a single operator that the counter does not know.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.device("meta"), torch.inference_mode(), sdpa_kernel(SDPBackend.MATH):
            with FlopCounterMode(display=False) as image:
                resnet50()(torch.empty(1, *IMAGE))
            for case in cases.values():
                if case.table in ("resnet-50", "torch.compile"):
                    wanted = case.items * image.get_total_flops()
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
        )
    } == {
        "layernorm/[32, 512, 4096]/fp16": 2 * 2 * 32 * 512 * 4096,
        "softmax/[8, 32, 2048, 2048]/fp16": 2 * 2 * 8 * 32 * 2048 * 2048,
        "linear/[32,1,4096]->[32,1,4096]/fp16": 2 * (32 * (4096 + 4096) + 4096 * 4096),
        "memory bandwidth/vector add, 512 MiB/fp16": 3 * 512 * 2**20,
        "memory bandwidth/copy, 2 GiB/bytes": 2 * 2 * 2**30,
        "gpu to gpu/both ways, 1 GiB each/bytes": 2 * 2**30,
    }
