"""torch.compile works: the image has the compiler, headers and libraries that it needs."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.cpu_vec_isa as vectors
import torch._inductor.metrics


def test_compiled_function_equals_eager() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.nn.functional.gelu(x @ y) + x.sin()).softmax(-1)

    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, 64, generator=generator) for _ in range(2))
    torch._inductor.metrics.reset()
    # Both pay off for many kernels. tests/programs compiles with torch's defaults.
    config = torch._inductor.config
    one_kernel = {"compile_threads": 1, "cpp_cache_precompile_headers": False}
    with config.patch({name: to for name, to in one_kernel.items() if hasattr(config, name)}):
        found = torch.compile(function, fullgraph=True)(x, y)
    assert torch._inductor.metrics.generated_kernel_count > 0  # it did not fall back to eager
    torch.testing.assert_close(found, function(x, y), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("expected")
def test_products_are_torchs_own_choice() -> None:
    """The image's environment leaves max-autotune off, and what it would try to torch."""
    config = torch._inductor.config
    assert not config.max_autotune
    assert not config.max_autotune_gemm
    assert {"ATEN", "TRITON", "CPP"} <= set(config.max_autotune_gemm_backends.upper().split(","))
    assert "CUTLASS" not in config.max_autotune_gemm_backends.upper()


@pytest.fixture
def untried(expected: dict[str, Any]) -> None:
    """The image tells Inductor that it need not try which vectors can be compiled."""
    if expected["environment"].get("TORCHINDUCTOR_VEC_ISA_OK") != "1":
        pytest.skip("Inductor tries for itself on this platform")
    if torch._inductor.config.cpp.vec_isa_ok is None:
        pytest.skip("this release has no such setting")


def test_inductor_uses_vectors() -> None:
    """It tries them with the compiler and headers of the image, unless it need not."""
    if platform.machine() == "x86_64" and not torch.cpu._is_avx2_supported():
        pytest.skip("the processor has no vectors of 256 bits")
    assert vectors.pick_vec_isa()


@pytest.mark.usefixtures("untried")
def test_vectors_need_no_trial() -> None:
    """What a trial finds out holds for every x86-64: see the note in torch's cpu_vec_isa.py.

    torch has the functions that vectors of 256 and of 512 bits call, and g++ knows the flags.
    """
    torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    for bits in (256, 512):
        assert hasattr(torch_cpu, f"Sleef_expf{bits // 32}_u10")
    flags = [v.build_arch_flags() for v in vectors.supported_vec_isa_list if "avx" in str(v)]
    assert len(flags) == 4
    for some in flags:
        command = ["g++", *some.split(), "-fsyntax-only", "-x", "c++", "/dev/null"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (some, done.stderr)


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("there", [[], ["avx2"]], ids=["none", "avx2"])
def test_vectors_are_those_of_the_processor(
    there: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image's setting leaves a trial out; it does not make up vectors."""
    monkeypatch.setattr(vectors, "x86_isa_checker", lambda: there)
    assert [str(v) for v in vectors.valid_vec_isa_list.__wrapped__()] == there
