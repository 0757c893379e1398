"""The packages that variants add, on this GPU: a kernel of each, and arrays without copies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.container.gpu import close, needs
from tests.container.test_vllm import MODEL

pytestmark = pytest.mark.gpu


def test_cupy_shares_memory() -> None:
    """CuPy and torch use the same memory, by DLPack and by the array interface.

    A kernel of CuPy runs on it.
    """
    cupy = pytest.importorskip("cupy", reason="no CuPy here")
    x = torch.randn(1000, device="cuda")
    array = cupy.from_dlpack(x)
    assert array.data.ptr == x.data_ptr() == cupy.asarray(x).data.ptr
    back = torch.from_dlpack(array)
    assert back.data_ptr() == x.data_ptr()
    kernel = cupy.RawKernel(
        'extern "C" __global__ void relu(const float* x, float* y, int n) {'
        " int i = blockDim.x * blockIdx.x + threadIdx.x; if (i < n) y[i] = x[i] > 0 ? x[i] : 0; }",
        "relu",
    )
    y = cupy.empty_like(array)
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        kernel((8,), (128,), (array, y, 1000))
    assert torch.equal(torch.from_dlpack(y), x.relu())


def test_cuda_python_sees_the_device() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="no cuda-python here")
    torch.cuda.init()
    error, device = driver.cuDeviceGet(torch.cuda.current_device())
    assert error == driver.CUresult.CUDA_SUCCESS
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    error, major = driver.cuDeviceGetAttribute(attribute, device)
    assert (error, major) == (driver.CUresult.CUDA_SUCCESS, torch.cuda.get_device_capability()[0])


def test_torchvision_kernels() -> None:
    ops = pytest.importorskip("torchvision.ops", reason="no torchvision here")
    boxes = torch.rand(200, 4, device="cuda")
    boxes[:, 2:] += boxes[:, :2]
    scores = torch.rand(200, device="cuda")
    found = ops.nms(boxes, scores, 0.3)
    assert torch.equal(found.cpu(), ops.nms(boxes.cpu(), scores.cpu(), 0.3))


def test_torchaudio_resamples() -> None:
    functional = pytest.importorskip("torchaudio.functional", reason="no torchaudio here")
    x = torch.randn(1, 16000)
    found = functional.resample(x.cuda(), 16000, 8000)
    close(found, functional.resample(x.double(), 16000, 8000), 1e-3)


def test_xformers_attention() -> None:
    ops = pytest.importorskip("xformers.ops", reason="no xFormers here")
    needs(8, 0, "xFormers' attention")
    q, k, v = (torch.randn(2, 128, 4, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    found = ops.memory_efficient_attention(q, k, v)
    exact = [t.transpose(1, 2).double() for t in (q, k, v)]
    wanted = (exact[0] @ exact[1].mT / 8).softmax(-1) @ exact[2]
    close(found, wanted.transpose(1, 2))


def test_fbgemm_embeddings() -> None:
    pytest.importorskip("fbgemm_gpu", reason="no FBGEMM GPU operators here")
    from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
        IntNBitTableBatchedEmbeddingBagsCodegen,
    )

    assert IntNBitTableBatchedEmbeddingBagsCodegen
    rows = torch.randn(64, 32, device="cuda")
    packed = torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(rows)
    close(torch.ops.fbgemm.Fused8BitRowwiseQuantizedToFloat(packed), rows.double(), 2e-2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [8, 2], ids=["all heads", "grouped queries"])
def test_flash_attn(causal: bool, heads: int) -> None:
    """FlashAttention-2 of its own package, forward and backward."""
    flash_attn = pytest.importorskip("flash_attn", reason="no flash-attn here")
    if not hasattr(flash_attn, "flash_attn_func"):
        pytest.skip("flash_attn is FlashAttention-4 here")
    needs(8, 0, "FlashAttention-2")
    shapes = ((2, 200, 8, 64), (2, 200, heads, 64), (2, 200, heads, 64))
    given = [torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in shapes]
    mine = [t.clone().requires_grad_() for t in given]
    exact = [t.double().requires_grad_() for t in given]
    found = flash_attn.flash_attn_func(*mine, causal=causal)
    q, k, v = (t.transpose(1, 2) for t in exact)
    k, v = (t.repeat_interleave(8 // heads, 1) for t in (k, v))
    scores = q @ k.mT / 8
    if causal:
        scores = scores.masked_fill(scores.new_ones(200, 200).triu(1).bool(), -torch.inf)
    wanted = (scores.softmax(-1) @ v).transpose(1, 2)
    compared(found, wanted, mine, exact)


def test_causal_conv1d() -> None:
    module = pytest.importorskip("causal_conv1d", reason="no causal-conv1d here")
    given = [torch.randn(*s, device="cuda") for s in ((2, 64, 300), (64, 4), (64,))]
    mine = [t.clone().requires_grad_() for t in given]
    exact = [t.double().requires_grad_() for t in given]
    found = module.causal_conv1d_fn(*mine, activation="silu")
    x, weight, bias = exact
    padded = torch.nn.functional.pad(x, (3, 0))
    wanted = torch.nn.functional.conv1d(padded, weight[:, None], bias, groups=64)
    compared(found, torch.nn.functional.silu(wanted), mine, exact, 1e-4)


def test_mamba_scan() -> None:
    """Mamba's selective scan, by the recurrence that it stands for."""
    pytest.importorskip("mamba_ssm", reason="no mamba-ssm here")
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    shapes = ((2, 32, 100), (2, 32, 100), (32, 8), (2, 8, 100), (2, 8, 100), (32,))
    given = [torch.randn(s, device="cuda") for s in shapes]
    given[2] = -given[2].exp()
    mine = [t.clone().requires_grad_() for t in given]
    exact = [t.double().requires_grad_() for t in given]
    found = selective_scan_fn(*mine, delta_softplus=True)
    u, delta, a, b, c, d = exact
    delta = torch.nn.functional.softplus(delta)
    state, outputs = u.new_zeros(2, 32, 8), []
    for step in range(100):
        now = delta[:, :, step, None]
        state = state * (now * a).exp() + now * b[:, None, :, step] * u[:, :, step, None]
        outputs.append((state * c[:, None, :, step]).sum(-1) + d * u[:, :, step])
    compared(found, torch.stack(outputs, -1), mine, exact, 1e-4)


def compared(
    found: torch.Tensor,
    wanted: torch.Tensor,
    mine: list[torch.Tensor],
    exact: list[torch.Tensor],
    limit: float | None = None,
) -> None:
    """Compare a result, and the gradients of all inputs, with the exact ones."""
    close(found, wanted, limit)
    gradient = torch.randn_like(found)
    found.backward(gradient)
    wanted.backward(gradient.double())
    for own, other in zip(mine, exact, strict=True):
        assert own.grad is not None
        assert other.grad is not None
        close(own.grad, other.grad, limit)


CUTE = """
import cutlass, torch
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack

@cute.kernel
def kernel(x: cute.Tensor):
    place, _, _ = cute.arch.thread_idx()
    x[place] = x[place] * cutlass.Float32(2.0)

@cute.jit
def double(x: cute.Tensor):
    kernel(x).launch(grid=(1, 1, 1), block=(128, 1, 1))

x = torch.arange(128.0, device="cuda")
wanted = x * 2
double(from_dlpack(x))
torch.cuda.synchronize()
assert torch.equal(x, wanted)
"""


def test_cutlass_dsl_kernel(tmp_path: Path) -> None:
    """A kernel in CuTe's language is compiled from a file and runs on memory of torch."""
    pytest.importorskip("cutlass.cute", reason="no CUTLASS DSL here")
    needs(8, 0, "CuTe's language")
    (tmp_path / "double.py").write_text(CUTE)
    done = subprocess.run(
        [sys.executable, tmp_path / "double.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_vllm_generates(tmp_path: Path) -> None:
    """A small model with random weights: the engine starts, and gives as many tokens as asked."""
    pytest.importorskip("vllm", reason="no vLLM here")
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    code = (
        "import sys; from vllm import LLM, SamplingParams\n"
        "if __name__ == '__main__':\n"
        "    model = LLM(sys.argv[1], load_format='dummy', skip_tokenizer_init=True,\n"
        "                max_model_len=128, gpu_memory_utilization=0.2)\n"
        "    wanted = SamplingParams(max_tokens=8, ignore_eos=True, detokenize=False)\n"
        "    [answer] = model.generate([{'prompt_token_ids': [1, 2, 3]}], wanted)\n"
        "    print('tokens:', len(answer.outputs[0].token_ids))\n"
    )
    program = tmp_path / "generate.py"
    program.write_text(code)
    command = [sys.executable, str(program), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # The engine is a process of its own, whose error comes first.
    said = [line for line in f"{done.stdout}{done.stderr}".splitlines() if "Error" in line]
    assert done.returncode == 0, "\n".join(said)[:3000]
    # vLLM writes lines of its own to the same stream, also at its end.
    assert "tokens: 8" in done.stdout.splitlines()
