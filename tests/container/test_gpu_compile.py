"""torch.compile on this GPU: every mode, FlexAttention, a Triton kernel, and CUTLASS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from tests.container.gpu import close, needs

pytestmark = pytest.mark.gpu


class Block(torch.nn.Module):
    """Operations that fuse (norm, activation, sum) around two products, which do not."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.wide = torch.nn.Linear(width, 4 * width)
        self.back = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block of a transformer without its attention; shapes (n, width) -> (n, width)."""
        return x + self.back(torch.nn.functional.gelu(self.wide(self.norm(x))))


@pytest.mark.parametrize(
    "mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
)
def test_every_mode_equals_eager(mode: str) -> None:
    torch.set_float32_matmul_precision("highest")
    model = Block(128).cuda()
    compiled = torch.compile(model, mode=mode, fullgraph=True)
    torch._inductor.metrics.reset()
    for _ in range(4):  # CUDA graphs are recorded in the second run and replayed from the third
        x = torch.randn(64, 128, device="cuda")
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    assert torch._inductor.metrics.generated_kernel_count > 0


def test_gradients_equal_eager() -> None:
    torch.set_float32_matmul_precision("highest")
    model = Block(64).cuda()
    x = torch.randn(32, 64, device="cuda")
    wanted = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    found = torch.autograd.grad(torch.compile(model)(x).square().mean(), list(model.parameters()))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_flex_attention() -> None:
    """A causal mask and a bias by distance become one fused kernel; no existing kernel has both."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    needs(8, 0, "FlexAttention")
    q, k, v = (torch.randn(2, 4, 512, 64, device="cuda", dtype=torch.float16) for _ in range(3))

    def causal(_b: object, _h: object, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return i >= j

    def nearer(
        score: torch.Tensor, _b: object, _h: object, i: torch.Tensor, j: torch.Tensor
    ) -> torch.Tensor:
        return score + 0.01 * (j - i)

    mask = create_block_mask(causal, None, None, 512, 512, device="cuda")
    found = torch.compile(flex_attention, fullgraph=True)(
        q, k, v, score_mod=nearer, block_mask=mask
    )
    place = torch.arange(512, device="cuda")
    scores = q.double() @ k.double().mT / 8 + 0.01 * (place[None, :] - place[:, None])
    scores = scores.masked_fill(place[None, :] > place[:, None], float("-inf"))
    close(found, scores.softmax(-1) @ v.double())


@triton.jit
def _softmax(x, out, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    row = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + place, mask=place < columns, other=-float("inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + place, values / tl.sum(values, axis=0), mask=place < columns)


def test_triton_kernel() -> None:
    x = torch.randn(33, 700, device="cuda")
    out = torch.empty_like(x)
    _softmax[(33,)](x, out, 700, BLOCK=1024)
    close(out, x.double().softmax(-1))


CUTLASS = """
import torch
from torch._inductor import config
from torch._inductor.utils import run_and_get_code
a, b = (torch.randn(2048, 2048, device="cuda", dtype=torch.float16) for _ in range(2))
found, codes = run_and_get_code(torch.compile(lambda x, y: x @ y, mode="max-autotune-no-cudagraphs"), a, b)
exact = a.double() @ b.double()
error = float((found.double() - exact).abs().max() / exact.abs().max())
assert error < 4e-3, error
assert any("cutlass" in code for code in codes), "another kernel was chosen"
print("chosen")
"""


def test_cutlass_is_chosen_by_max_autotune(tmp_path: Path) -> None:
    """CUTLASS is the only candidate. It is found, compiles and runs, and its result is right."""
    folder = os.environ.get("TORCHINDUCTOR_CUTLASS_DIR", "")
    if not Path(folder, "include/cutlass").is_dir():
        pytest.skip("no CUTLASS here: TORCHINDUCTOR_CUTLASS_DIR is not a folder that has it")
    if not shutil.which("nvcc"):
        pytest.skip("no nvcc here, which compiles CUTLASS's kernels")
    needs(8, 0, "CUTLASS's tensor core kernels")
    env = {
        **os.environ,
        "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS": "CUTLASS",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "TORCHINDUCTOR_CUTLASS_MAX_PROFILING_CONFIGS": "4",
    }
    code = CUTLASS.replace("a, b =", "config.cutlass.cutlass_max_profiling_configs = 4\na, b =", 1)
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert done.stdout.endswith("chosen\n")
