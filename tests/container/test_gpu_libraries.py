"""A kernel of each library that torch uses, on this GPU, compared with float64."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from tests.container.gpu import TOLERANCE, close, needs
from tests.container.processes import ALLOCATOR, SETTING, environment
from torch_images.arch import Capability, coverage

pytestmark = pytest.mark.gpu
Observe = Callable[[str, object], None]


def test_this_gpu_is_served(observe: Observe) -> None:
    flags = torch.cuda.get_arch_list()
    here = Capability.parse(".".join(map(str, torch.cuda.get_device_capability())))
    how = coverage(here, flags, [f for f in flags if f.startswith("compute_")])
    observe("gpu", torch.cuda.get_device_name())
    observe(f"gpu arch {here}", how)
    assert how is not None, f"torch was compiled for {flags}, none of which runs on {here}"


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda d: str(d).removeprefix("torch."))
def test_cublas(dtype: torch.dtype) -> None:
    torch.set_float32_matmul_precision("highest")
    a, b = (torch.randn(3, 257, 129, device="cuda").to(dtype) for _ in range(2))
    close(a @ b.mT, a.double() @ b.double().mT)


def test_cublaslt_epilogue() -> None:
    """One kernel of cuBLASLt computes product, bias and activation."""
    layer = torch.nn.Linear(256, 512, device="cuda", dtype=torch.float16)
    x = torch.randn(64, 256, device="cuda", dtype=torch.float16)
    found = torch._addmm_activation(layer.bias, x, layer.weight.t(), use_gelu=True)
    exact = torch.nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double())
    close(found, torch.nn.functional.gelu(exact, approximate="tanh"), 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_cudnn_convolution(dtype: torch.dtype) -> None:
    x = torch.randn(2, 16, 33, 33, device="cuda").to(dtype).requires_grad_()
    weight = torch.randn(32, 16, 3, 3, device="cuda").to(dtype).requires_grad_()
    exact = [t.detach().double().requires_grad_() for t in (x, weight)]
    upstream = torch.randn(2, 32, 33, 33, device="cuda").to(dtype)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        found = torch.nn.functional.conv2d(x, weight, padding=1)
        gradients = torch.autograd.grad(found, (x, weight), upstream)
    wanted = torch.nn.functional.conv2d(*exact, padding=1)
    close(found, wanted)
    for ours, theirs in zip(
        gradients, torch.autograd.grad(wanted, exact, upstream.double()), strict=True
    ):
        close(ours, theirs)


def test_cudnn_recurrence() -> None:
    layer = torch.nn.LSTM(32, 64, num_layers=2, device="cuda")
    x = torch.randn(7, 3, 32, device="cuda")
    found, _ = layer(x)
    exact = torch.nn.LSTM(32, 64, num_layers=2).double()
    exact.load_state_dict({k: v.cpu().double() for k, v in layer.state_dict().items()})
    close(found, exact(x.cpu().double())[0], 1e-3)


def test_cufft() -> None:
    x = torch.randn(4, 1000, device="cuda")
    exact = torch.fft.rfft(x.double())
    close(torch.view_as_real(torch.fft.rfft(x)), torch.view_as_real(exact))
    close(torch.fft.irfft(torch.fft.rfft(x), n=1000), x.double())


def test_cusolver() -> None:
    a = torch.randn(2, 100, 100, device="cuda", dtype=torch.float64)
    spd = a @ a.mT + 100 * torch.eye(100, device="cuda", dtype=torch.float64)
    factor = torch.linalg.cholesky(spd)
    close(factor @ factor.mT, spd)
    u, s, vh = torch.linalg.svd(a)
    close(u @ torch.diag_embed(s) @ vh, a, 1e-10)
    close(a @ torch.linalg.solve(a, spd), spd, 1e-9)


def test_cusparse() -> None:
    dense = torch.randn(64, 48, device="cuda") * (torch.rand(64, 48, device="cuda") < 0.1)
    x = torch.randn(48, 16, device="cuda")
    close(dense.to_sparse_csr() @ x, dense.double() @ x.double())


def test_sparse_coordinates() -> None:
    """Entries at one place add up; the product and its gradient are those of the dense matrix."""
    index = torch.randint(0, 40, (2, 300), device="cuda")
    values = torch.randn(300, device="cuda")
    x = torch.randn(40, 16, device="cuda", requires_grad=True)
    exact = torch.zeros(40, 40, device="cuda", dtype=torch.float64)
    exact.index_put_((index[0], index[1]), values.double(), accumulate=True)
    sparse = torch.sparse_coo_tensor(index, values, (40, 40), check_invariants=True).coalesce()
    assert sparse.layout == torch.sparse_coo
    assert sparse.indices().shape[1] == int((exact != 0).sum()) < 300
    close(sparse.to_dense(), exact)
    upstream = torch.randn(40, 16, device="cuda")
    found = sparse @ x
    close(found.detach(), exact @ x.detach().double())
    [gradient] = torch.autograd.grad(found, x, upstream)
    close(gradient, exact.t() @ upstream.double())


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128])
def test_complex_numbers(dtype: torch.dtype) -> None:
    """Products by element, sums and transforms, in each of the three widths."""
    drawn = [torch.randn(8, 256, device="cuda", dtype=torch.complex128) for _ in range(2)]
    a, b = (t.to(dtype) for t in drawn)
    exact = [t.to(torch.complex128) for t in (a, b)]
    for found, wanted in (
        (a * b, exact[0] * exact[1]),
        (a + b, exact[0] + exact[1]),
        (torch.fft.fft(a), torch.fft.fft(exact[0])),
    ):
        assert found.dtype == dtype
        close(torch.view_as_real(found), torch.view_as_real(wanted))


def test_cusparselt() -> None:
    """Two of each four weights are zero. The matrix units skip them."""
    needs(8, 0, "2:4 sparsity")
    weight = torch.randn(128, 128, device="cuda", dtype=torch.float16)
    weight = weight * torch.tensor([0, 0, 1, 1], device="cuda").tile(128, 32)
    x = torch.randn(128, 64, device="cuda", dtype=torch.float16)
    found = torch._cslt_sparse_mm(torch._cslt_compress(weight), x)
    close(found, weight.double() @ x.double())


def test_nvrtc() -> None:
    """NVRTC compiles a kernel at run time, for this GPU."""
    code = "template <typename T> T twice_plus(T x, T y) { return 2 * x + y; }"
    x, y = (torch.randn(1000, device="cuda") for _ in range(2))
    close(torch.cuda.jiterator._create_jit_fn(code)(x, y), 2 * x.double() + y.double())


def test_random_numbers() -> None:
    x = torch.randn(1_000_000, device="cuda", dtype=torch.float64)
    assert abs(x.mean().item()) < 0.01
    assert abs(x.std().item() - 1) < 0.01
    torch.manual_seed(0)
    first = torch.randn(1000, device="cuda")
    torch.manual_seed(0)
    assert torch.equal(first, torch.randn(1000, device="cuda"))


def test_int8_products() -> None:
    a, b = (torch.randint(-128, 127, (64, 64), device="cuda", dtype=torch.int8) for _ in range(2))
    found = torch._int_mm(a, b)
    assert torch.equal(found.cpu().long(), a.cpu().long() @ b.cpu().long())


def test_fbgemm_int8() -> None:
    """FBGEMM's kernels run quantized models on the CPU, also on a machine with a GPU."""
    if "-DUSE_FBGEMM" not in torch.__config__.show():
        pytest.skip("torch was compiled without FBGEMM")
    assert "fbgemm" in torch.backends.quantized.supported_engines
    layer = torch.nn.Linear(64, 32)
    quantized = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(layer))
    x = torch.randn(8, 64)
    close(quantized(x), layer(x).double(), 5e-2)


SEGMENTS = """
import json, torch
x = torch.empty(100_000_000, dtype=torch.uint8, device="cuda")
found = torch.cuda.memory._snapshot()
kinds = sorted({s["is_expandable"] for s in found["segments"] if s["total_size"] > 50_000_000})
print(json.dumps([found["allocator_settings"]["expandable_segments"], kinds]))
"""


@pytest.mark.parametrize("on", [True, False], ids=["expandable", "plain"])
def test_allocator_settings_are_in_force(on: bool) -> None:
    """Memory is allocated in the way that the profile's setting says."""
    env = environment({SETTING: f"expandable_segments:{on}"}, ALLOCATOR)
    done = subprocess.run(
        [sys.executable, "-c", SEGMENTS], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-1000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [on, [on]]
