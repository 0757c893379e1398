"""Kernels of one's own as a part of torch: CuPy's in autograd, and CUTLASS's as an extension."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.container.gpu import capability, close, needs
from tests.container.processes import child, environment

pytestmark = pytest.mark.gpu

# x * sigmoid(x), and the gradient of it times the gradient that comes from above.
KERNELS = """
extern "C" __global__ void forward(const REAL *x, REAL *y, int n) {
  int i = blockDim.x * blockIdx.x + threadIdx.x;
  if (i < n) y[i] = x[i] / (1 + exp(-x[i]));
}
extern "C" __global__ void backward(const REAL *x, const REAL *up, REAL *down, int n) {
  int i = blockDim.x * blockIdx.x + threadIdx.x;
  if (i < n) {
    REAL s = 1 / (1 + exp(-x[i]));
    down[i] = up[i] * s * (1 + x[i] * (1 - s));
  }
}
"""
REALS = {torch.float32: "float", torch.float64: "double"}


def swish(cupy: Any) -> Any:
    """A function of autograd for x * sigmoid(x), whose two kernels are CuPy's."""

    def run(name: str, like: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        kernel = cupy.RawKernel(KERNELS.replace("REAL", REALS[like.dtype]), name)
        arrays = [cupy.from_dlpack(t.detach().contiguous()) for t in tensors]
        assert arrays[0].data.ptr == tensors[0].data_ptr()  # not a copy
        out = cupy.empty_like(arrays[0])
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernel((-(-out.size // 128),), (128,), (*arrays, out, out.size))
        return torch.from_dlpack(out)

    class Swish(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return run("forward", x, x)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, up: torch.Tensor) -> torch.Tensor:
            [x] = ctx.saved_tensors
            return run("backward", x, x, up)

    return Swish.apply


def test_a_cupy_kernel_is_part_of_autograd() -> None:
    """In float64 it agrees with numerical differences, in float32 with torch's own in float64."""
    function = swish(pytest.importorskip("cupy", reason="no CuPy here"))
    x = torch.randn(5, 7, device="cuda", dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (x,), eps=1e-6, atol=1e-7, rtol=1e-5)
    x = torch.randn(1000, device="cuda", requires_grad=True)
    exact = x.detach().double().requires_grad_()
    weight = torch.randn(1000, device="cuda")
    found, wanted = function(x.square()), torch.nn.functional.silu(exact.square())
    close(found, wanted)
    [ours] = torch.autograd.grad((found * weight).sum(), x)
    [theirs] = torch.autograd.grad((wanted * weight.double()).sum(), exact)
    close(ours, theirs)


# CUTLASS 4.2 imports NVIDIA's bindings by their older names; those of today come with torch. Its list of
# kernels, made here as it makes it at first use, would ask the older bindings for the device.
EMIT = """
import sys, cuda.bindings.driver, cuda.bindings.runtime
folder, out = sys.argv[1:3]
sys.modules["cuda.cuda"] = cuda.bindings.driver
sys.modules["cuda.cudart"] = cuda.bindings.runtime
sys.path.insert(0, folder + "/python")
import torch, cutlass_cppgen
from cutlass_cppgen.library_defaults import OptionRegistry
cutlass_cppgen._nvcc_version = torch.version.cuda
cutlass_cppgen._option_registry = OptionRegistry(80)
types = {"element": torch.float16, "element_accumulator": torch.float32}
common = {**types, "layout": cutlass_cppgen.LayoutType.RowMajor, "cc": 80}
plan = cutlass_cppgen.op.Gemm(**common)
plan.activation = cutlass_cppgen.epilogue.relu
cutlass_cppgen.emit.pytorch(plan.construct(), name="fused", cc=80, sourcedir=out)
plan = cutlass_cppgen.op.GroupedGemm(**common)
cutlass_cppgen.emit.pytorch(plan.construct(), name="grouped", cc=80, sourcedir=out)
"""
# Kernels of 8.0 run on all newer chips when they are compiled for them.
BUILD = """
import sys, torch
from torch.utils.cpp_extension import load
folder, out, name = sys.argv[1:4]
torch.manual_seed(0)
draw = lambda *shape: torch.randn(shape, device="cuda").half()
made = load(name, [f"{out}/{name}.cpp", f"{out}/{name}_kernel.cu"], build_directory=sys.argv[4],
            extra_include_paths=[f"{folder}/include", f"{folder}/tools/util/include"])
def near(found, wanted):
    assert found.dtype == torch.float16 and found.shape == wanted.shape
    error = float((found.double() - wanted).abs().max() / wanted.abs().max())
    assert error < 4e-3, error
if name == "fused":
    a, b, c = draw(256, 512), draw(512, 384), draw(256, 384)
    wanted = (2 * (a.double() @ b.double()) - c.double()).relu()
    near(made.run(a, b, c, 2.0, -1.0), wanted)
    near(made.run(a, b), (a.double() @ b.double()).relu())
else:
    shapes = [(128, 64, 256), (256, 512, 64), (72, 40, 16)]
    a, b = [draw(m, k) for m, n, k in shapes], [draw(k, n) for m, n, k in shapes]
    for found, x, y in zip(made.run(a, b), a, b, strict=True):
        near(found, x.double() @ y.double())
torch.cuda.synchronize()
print("equal")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[str]]]:
    """What the programs say that compile and try the two extensions, side by side."""
    folder = os.environ.get("TORCHINDUCTOR_CUTLASS_DIR", "")
    if not Path(folder, "python/cutlass_cppgen").is_dir():
        pytest.skip("no CUTLASS here: TORCHINDUCTOR_CUTLASS_DIR is not a folder that has it")
    if not shutil.which("nvcc"):
        pytest.skip("no nvcc here, which compiles CUTLASS's kernels")
    if not shutil.which("ninja"):
        pytest.skip("no ninja here, which builds extensions of torch")
    pytest.importorskip("cuda.bindings", reason="no cuda-bindings here, which CUTLASS imports")
    needs(8, 0, "CUTLASS's tensor core kernels")
    out = tmp_path_factory.mktemp("emitted")
    child(EMIT, folder, str(out), env=environment({"CUTLASS_PATH": folder}), cwd=out)
    env = environment({"TORCH_CUDA_ARCH_LIST": ".".join(map(str, capability()))})

    def build(name: str) -> str:
        made = tmp_path_factory.mktemp(name)
        return child(BUILD, folder, str(out), name, str(made), env=env)

    with ThreadPoolExecutor() as side:
        yield {name: side.submit(build, name) for name in ("fused", "grouped")}


@pytest.mark.parametrize("name", ["fused", "grouped"])
def test_cutlass_emits_an_extension(name: str, built: dict[str, Future[str]]) -> None:
    """One kernel for relu(alpha a b + beta c), and one for products of three shapes."""
    assert built[name].result().endswith("equal\n")
