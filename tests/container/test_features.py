"""Each feature that the image claims is used, or found in the library if it needs a GPU.

images.yaml lists the features. Some have a compile-time switch that leaves no trace in the API;
the probe then looks for the names of their kernels in libtorch_cuda.so.
"""

from __future__ import annotations

import mmap
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

Probe = Callable[[dict[str, Any]], None]


def locked(expected: dict[str, Any], prefix: str) -> list[int]:
    """The version of the locked package whose name begins with `prefix`, as numbers."""
    [found] = [v for name, v in expected["packages"].items() if name.startswith(prefix)]
    return [int(part) for part in found.split(".")]


def in_libtorch_cuda(name: bytes) -> bool:
    path = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(name) >= 0


def cudnn(expected: dict[str, Any]) -> None:
    major, minor, patch, *_ = locked(expected, "nvidia-cudnn-cu")
    assert torch.backends.cudnn.version() == major * 10000 + minor * 100 + patch
    assert torch._C._cudnn.getCompileVersion()[0] == major


def nccl(expected: dict[str, Any]) -> None:
    assert dist.is_nccl_available()
    assert list(torch.cuda.nccl.version()) == locked(expected, "nvidia-nccl-")


def gloo(expected: dict[str, Any]) -> None:
    del expected
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        value = torch.arange(3.0)
        dist.all_reduce(value)
        assert value.tolist() == [0, 1, 2]
    finally:
        dist.destroy_process_group()


def fbgemm(expected: dict[str, Any]) -> None:
    del expected
    assert "fbgemm" in torch.backends.quantized.supported_engines
    if platform.machine() != "x86_64":  # FBGEMM has its quantized products for x86-64 alone
        return
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        generator = torch.Generator().manual_seed(0)
        weight = torch.quantize_per_tensor(
            torch.randn(8, 16, generator=generator), 0.1, 0, torch.qint8
        )
        x = torch.quantize_per_tensor(
            torch.randn(4, 16, generator=generator), 0.1, 128, torch.quint8
        )
        packed = torch.ops.quantized.linear_prepack(weight, None)
        found = torch.ops.quantized.linear(x, packed, 0.2, 128).dequantize()
        error = (found - x.dequantize() @ weight.dequantize().T).abs().max()
        assert error <= 0.1 + 1e-5  # half a quantisation step of the output
    finally:
        torch.backends.quantized.engine = before


def kineto(expected: dict[str, Any]) -> None:
    del expected
    assert torch.autograd.kineto_available()
    with torch.profiler.profile(acc_events=True) as trace:
        torch.ones(8, 8) @ torch.ones(8, 8)
    assert any(event.key == "aten::mm" for event in trace.key_averages())


def lapack(expected: dict[str, Any]) -> None:
    del expected
    assert torch._C.has_lapack
    a = torch.tensor([[4.0, 2.0], [2.0, 3.0]], dtype=torch.float64)
    root = torch.linalg.cholesky(a)
    assert torch.allclose(root @ root.T, a)


def libuv(expected: dict[str, Any]) -> None:
    """What torchrun's processes meet at; other stores work without it."""
    del expected
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, use_libuv=True)
    store.set("key", "value")
    assert store.get("key") == b"value"


def scaled_mm(expected: dict[str, Any]) -> None:
    del expected
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(32, 64, generator=generator).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.tensor(1.0)
    # Torch 2.6 has it for GPUs only.
    if torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm", "CPU"):
        found = torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=torch.float32)
        assert torch.allclose(found, a.float() @ b.float().T, atol=1e-5)
    assert in_libtorch_cuda(b"f8f8bf16")  # the row-wise scaled kernel for GPUs


def tf32(expected: dict[str, Any]) -> None:
    """A program can turn it on and off. test_start.py looks at what the start sets."""
    del expected
    before = torch.get_float32_matmul_precision()
    try:
        for precision, on in (("high", True), ("highest", False)):
            torch.set_float32_matmul_precision(precision)
            assert torch.backends.cuda.matmul.allow_tf32 is on
    finally:
        torch.set_float32_matmul_precision(before)


def expandable_segments(expected: dict[str, Any]) -> None:
    del expected
    older = "_cuda_cudaCachingAllocator_set_allocator_settings"  # before torch 2.9
    tell = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or getattr(torch._C, older)
    tell("expandable_segments:True")
    with pytest.raises((ValueError, RuntimeError), match="Unrecognized"):
        tell("expandable_segmentz:True")


def is_true(check: Callable[[], object]) -> Probe:
    def probe(expected: dict[str, Any]) -> None:
        del expected
        assert check()

    return probe


def has_kernels(name: bytes) -> Probe:
    return is_true(lambda: in_libtorch_cuda(name))


def built_with(flag: str) -> Probe:
    return is_true(lambda: f"-D{flag}" in torch.__config__.show())


PROBES: dict[str, Probe] = {
    "cudnn": cudnn,
    "cudnn-frontend": has_kernels(b"cudnn_frontend"),
    "cufile": is_true(lambda: hasattr(torch._C, "_gds_register_handle")),
    "cusparselt": is_true(lambda: torch._C._has_cusparselt),
    "distributed": is_true(dist.is_available),
    "expandable-segments": expandable_segments,
    "fbgemm": fbgemm,
    "fbgemm-genai": built_with("USE_FBGEMM_GENAI"),
    "flash-attention": is_true(torch.backends.cuda.is_flash_attention_available),
    "gloo": gloo,
    "kineto": kineto,
    "lapack": lapack,
    "libuv": libuv,
    "magma": is_true(lambda: torch._C._has_magma),
    "mem-efficient-attention": has_kernels(b"fmha_cutlassF"),
    "mkldnn": is_true(torch.backends.mkldnn.is_available),
    "mslk": built_with("USE_MSLK"),
    "nccl": nccl,
    # torch has this one from 2.8 on.
    "nvshmem": is_true(
        lambda: torch._C._distributed_c10d._is_nvshmem_available()  # noqa: PLW0108
    ),
    "openmp": is_true(torch.backends.openmp.is_available),
    "scaled-mm": scaled_mm,
    "tensorexpr": is_true(torch._C._jit_texpr_fuser_enabled),
    "tf32": tf32,
}


def test_feature(feature: str, expected: dict[str, Any]) -> None:
    assert feature in PROBES, f"images.yaml names feature '{feature}', which has no probe here"
    PROBES[feature](expected)
