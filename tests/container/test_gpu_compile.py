"""torch.compile on this GPU: every mode, FlexAttention, a Triton kernel, and CUTLASS."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from tests.container.gpu import close, needs
from tests.container.processes import child, environment

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


def test_triton_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # without it, Triton 3.9 warns
    x = torch.randn(33, 700, device="cuda")
    out = torch.empty_like(x)
    _softmax[(33,)](x, out, 700, BLOCK=1024)
    close(out, x.double().softmax(-1))


# `tried` compiles a linear layer from 2048 to 4096 in float16, compares it with float64, and gives the
# candidates that torch.compile measured: it prints them on standard error, the chosen one first.
CUTLASS = r"""
import contextlib, io, re, torch
from torch._inductor import config
from torch._inductor.utils import run_and_get_code
assert config.max_autotune_gemm_backends == "ATEN,TRITON,CPP,CUTLASS", config.max_autotune_gemm_backends
assert not config.max_autotune and config.cutlass.cutlass_enabled_ops.lower() == "all"
config.autotune_num_choices_displayed = None
config.cutlass.cutlass_max_profiling_configs = 2
config.cutlass.cutlass_max_profiling_swizzle_options = [1, 2]
layer = torch.nn.Linear(2048, 4096, bias=False, device="cuda", dtype=torch.float16).requires_grad_(False)
def tried(mode, rows, **changes):
    torch.compiler.reset()
    x = torch.randn(rows, 2048, device="cuda", dtype=torch.float16)
    with config.patch(changes), contextlib.redirect_stderr(io.StringIO()) as said:
        compiled = torch.compile(lambda x: layer(x), mode=mode)
        found, codes = run_and_get_code(compiled, x)
    exact = x.double() @ layer.weight.double().t()
    error = float((found.double() - exact).abs().max() / exact.abs().max())
    assert error < 4e-3, (mode, error)
    names = re.findall(r"^  (\S+) (?:[\d.]+|inf) ms", said.getvalue(), re.MULTILINE)
    made = [name for name in names if name.startswith("cutlass")]
    return {n.split("_")[0] for n in names}, len(made), any('#include "cutlass/' in code for code in codes)
for mode in ("default", "reduce-overhead"):
    assert tried(mode, 512) == (set(), 0, False), mode
kinds, number, _ = tried("max-autotune-no-cudagraphs", 2048)
assert {"mm", "triton", "cutlass"} <= kinds, kinds
assert 0 < number <= 2 * 2, number  # so many kernels, each with two orders of its tiles
kinds, number, _ = tried("max-autotune-no-cudagraphs", 1024, **{"cutlass.cutlass_enabled_ops": "addmm,bmm"})
assert {"mm", "triton"} <= kinds and number == 0, (kinds, number)
for mode in ("max-autotune", "max-autotune-no-cudagraphs"):
    kinds, _, chosen = tried(mode, 2048, max_autotune_gemm_backends="CUTLASS")
    assert kinds <= {"cutlass"} and chosen, (mode, kinds, chosen)
print("chosen")
"""


def profile(**changes: str) -> dict[str, str]:
    """The environment that the profile makes, of the image or of this checkout."""
    here = Path(__file__).resolve().parents[2] / "scripts/image/runtime"
    places = (Path("/usr/local/lib/torch-images"), here)
    folder = next(place for place in places if (place / "_torch_images").is_dir())
    asked = environment({**changes, "PYTHONPATH": str(folder)})
    found: dict[str, str] = json.loads(child(SHOW, env=asked))
    return environment({**changes, **found})


SHOW = """
import json, os
from _torch_images import defaults
print(json.dumps(defaults.profile(os.environ)[0]))
"""


def test_cutlass_is_chosen_by_max_autotune(tmp_path: Path) -> None:
    """TORCH_IMAGE_GEMM=cutlass puts it beside ATen's and Triton's kernels, for max-autotune alone.

    It is also tried as the only candidate: so it is chosen, and its result is compared.
    """
    env = profile(TORCH_IMAGE_GEMM="cutlass", TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    if not Path(env.get("TORCHINDUCTOR_CUTLASS_DIR", ""), "include/cutlass").is_dir():
        pytest.skip("no CUTLASS here: TORCHINDUCTOR_CUTLASS_DIR is not a folder that has it")
    if not shutil.which("nvcc"):
        pytest.skip("no nvcc here, which compiles CUTLASS's kernels")
    needs(8, 0, "CUTLASS's tensor core kernels")
    assert child(CUTLASS, env=env).endswith("chosen\n")


MEGA = """
import sys, torch
from torch._dynamo.utils import counters
path, write = sys.argv[1], sys.argv[2] == "write"
if not write:
    torch.compiler.load_cache_artifacts(open(path, "rb").read())
x = torch.linspace(0, 1, 1000, device="cuda", dtype=torch.float64)
found = torch.compile(lambda x: torch.sin(x) * 2 + 1)(x)
assert (found - (torch.sin(x.cpu()) * 2 + 1).cuda()).abs().max() < 1e-12
if write:
    open(path, "wb").write(torch.compiler.save_cache_artifacts()[0])
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


def test_what_was_compiled_can_be_carried_to_another_cache(tmp_path: Path) -> None:
    """One file has all of it (the mega cache). With it, a process with an empty cache compiles nothing."""
    if not hasattr(torch.compiler, "save_cache_artifacts"):
        pytest.skip("this release cannot save what it compiled")
    said = {}
    for what in ("write", "read"):
        folders = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
        env = environment({name: str(tmp_path / what / own) for name, own in folders.items()})
        said[what] = child(MEGA, str(tmp_path / "artifacts"), what, env=env).split()
    assert said == {"write": ["0", "1"], "read": ["1", "0"]}
