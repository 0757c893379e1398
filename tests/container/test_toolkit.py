"""CUDA's toolkit, in images that have one, compiles for the image's architectures."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

CODE = """
#include <cuda_runtime.h>
__global__ void twice(float *x) { x[threadIdx.x] *= 2.0f; }
int main() { twice<<<1, 32>>>(nullptr); int v = 0; cudaRuntimeGetVersion(&v); return v != VERSION; }
"""

CMAKE = """
cmake_minimum_required(VERSION 3.27)
project(look LANGUAGES CXX CUDA)
find_package(CUDAToolkit REQUIRED)
foreach(name cublas cublasLt cuda_driver cudart cudart_static cufft cuFile cupti curand cusolver cusparse nvJitLink nvrtc nvtx3)
  if(NOT TARGET CUDA::${name})
    message(FATAL_ERROR "no target CUDA::${name}")
  endif()
endforeach()
add_executable(look look.cu)
target_link_libraries(look CUDA::cublas CUDA::nvrtc CUDA::nvJitLink)
add_library(driver SHARED driver.cpp)
target_link_libraries(driver CUDA::cuda_driver)
"""

# One of CUB's headers, because an emulator takes a minute for this one already.
SUM = """
#include <cub/block/block_reduce.cuh>
__global__ void sum(int *x) {
  using Reduce = cub::BlockReduce<int, 32>;
  __shared__ typename Reduce::TempStorage scratch;
  *x = Reduce(scratch).Sum(x[threadIdx.x]);
}
int main() { sum<<<1, 32>>>(nullptr); return 0; }
"""

EXTENSION = """
#include <ATen/cuda/CUDAContext.h>
#include <torch/library.h>
__global__ void scale(float *x, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= by;
}
at::Tensor scaled(const at::Tensor &x, double by) {
  at::Tensor out = x.contiguous().clone();
  int n = static_cast<int>(out.numel());
  scale<<<(n + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(out.data_ptr<float>(), by, n);
  return out;
}
TORCH_LIBRARY(torch_images_check, m) { m.def("scaled(Tensor x, float by) -> Tensor"); }
TORCH_LIBRARY_IMPL(torch_images_check, CUDA, m) { m.impl("scaled", &scaled); }
"""


@pytest.fixture(scope="module")
def home(expected: dict[str, Any]) -> str:
    """The CUDA_HOME that the image claims to have; skips if there is none."""
    if not expected.get("cuda_home"):
        pytest.skip("the image claims to have no toolkit")
    return str(expected["cuda_home"])


def run(*words: str, cwd: Path) -> str:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return done.stdout


def flags(expected: dict[str, Any]) -> list[str]:
    """The options of nvcc that compile for the image's architectures."""
    numbers = [arch.replace(".", "") for arch in expected["arches"]]
    return [f"-gencode=arch=compute_{n},code=sm_{n}" for n in numbers]


def machine_code(path: Path) -> set[str]:
    """The targets, such as "sm_90", that a library has machine code for, from cuobjdump."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    listing = run(str(tool), "--list-elf", str(path), cwd=path.parent)
    return set(re.findall(r"\.(sm_\d+a?)\.", listing))


def sm(expected: dict[str, Any]) -> set[str]:
    return {f"sm_{arch.replace('.', '')}" for arch in expected["arches"]}


def test_nvcc_is_of_the_cuda_version(home: str, expected: dict[str, Any], tmp_path: Path) -> None:
    assert f"release {expected['cuda']}," in run("nvcc", "--version", cwd=tmp_path)
    assert os.environ["CUDA_HOME"] == home


def test_nvcc_compiles_links_and_runs(home: str, expected: dict[str, Any], tmp_path: Path) -> None:
    """For every architecture, so without large headers: an emulator takes a minute for each."""
    major, minor = map(int, expected["cuda"].split("."))
    version = 1000 * major + 10 * minor  # as cudaRuntimeGetVersion counts
    (tmp_path / "look.cu").write_text(CODE.replace("VERSION", str(version)))
    run("nvcc", *flags(expected), "look.cu", "-o", "look", cwd=tmp_path)
    assert machine_code(tmp_path / "look") == sm(expected)
    run("./look", cwd=tmp_path)


def test_cmake_finds_every_part(home: str, expected: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(CMAKE)
    (tmp_path / "look.cu").write_text(SUM)
    code = "#include <cuda.h>\n#include <nvml.h>\nint init() { return cuInit(0) + cuCtxSynchronize(); }"
    (tmp_path / "driver.cpp").write_text(code)
    arch = expected["arches"][0].replace(".", "")
    run("cmake", "-G", "Ninja", "-B", "b", f"-DCMAKE_CUDA_ARCHITECTURES={arch}", cwd=tmp_path)
    run("cmake", "--build", "b", cwd=tmp_path)
    run("b/look", cwd=tmp_path)


def test_an_extension_of_torch_is_compiled(
    home: str, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For one architecture: each takes seconds, and nvcc compiles for all of them above.

    It asks for C++17, as many do, which headers of torch 2.14 refuse: see builder.py.
    """
    from torch.utils import cpp_extension

    arch = expected["arches"][-1]
    if torch.cuda.is_available():
        arch = "{}.{}".format(*torch.cuda.get_device_capability())
    (tmp_path / "check.cu").write_text(EXTENSION)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", arch)
    library = cpp_extension.load(
        name="torch_images_check",
        sources=[str(tmp_path / "check.cu")],
        build_directory=str(tmp_path),
        is_python_module=False,
        extra_cflags=["-std=c++17"],
        extra_cuda_cflags=["-std=c++17"],
    )
    made = machine_code(Path(library or tmp_path / "torch_images_check.so"))
    assert made == {f"sm_{arch.replace('.', '')}"}
    if torch.cuda.is_available():
        x = torch.arange(1000.0, device="cuda")
        assert torch.equal(torch.ops.torch_images_check.scaled(x, 3.0), x * 3)
    else:
        with pytest.raises((NotImplementedError, RuntimeError)):
            torch.ops.torch_images_check.scaled(torch.ones(3), 3.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch compiles for the GPU")
def test_an_extension_has_the_images_architectures(
    home: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`docker build` has no GPU: see builder.py. `setenv` lets the value go with the check."""
    from torch.utils import cpp_extension

    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "")
    flags = cpp_extension._get_cuda_arch_flags()
    own = [arch for arch in torch._C._cuda_getArchFlags().split() if arch.startswith("sm_")]
    assert {flag.rpartition("=")[2] for flag in flags} == set(own)
