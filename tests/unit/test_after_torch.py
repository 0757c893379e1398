"""What waits for `import torch`: it must never stop the import, nor run twice, nor be missed.

Each program runs in a Python of its own, with a folder in place of torch. The real one is in
tests/programs/test_precision.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.conftest import ROOT

MODULES = ROOT / "scripts/image/runtime"
# As the .pth file, which Python reads once more by the link lib64.
START = "from _torch_images import after_torch\nafter_torch.at_start()\nafter_torch.at_start()\n"
TORCH = """
class _C:
    allowed, times = False, 0
    def _set_cublas_allow_tf32(value):
        import warnings
        warnings.warn("please use the new API")
        _C.allowed, _C.times = value, _C.times + 1
class cuda: pass
"""
SHOW = "import torch; print(torch._C.allowed, torch._C.times)"
# Ring attention hands on `out`, whose layout the memory-efficient kernel does not look at.
RING = """
class Tensor(str):
    def transpose(self, *axes): return Tensor(self + "t")
    def contiguous(self): return Tensor(self + "c")
class Op(str):
    def __call__(self, query, *, out): return out
def _templated_ring_attention_backward(group, seq_dim, op, *, out):
    return op("q", out=out)
"""
# A finder that asks all others as ours does, as other packages have one.
ANOTHER = """
import sys
class Another:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            for finder in sys.meta_path:
                if finder is not self and (spec := finder.find_spec(name, path, target)):
                    return spec
sys.meta_path.insert(0, Another())
"""
# Another thread imports torch while this one asks the finders, without the lock of the import system.
THREADS = """
import sys, threading
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" and threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=__import__, args=["torch"])
            thread.start()
            thread.join()
sys.meta_path.insert(1, Slow())
assert sys.meta_path[0].find_spec("torch", None, None)
"""


def run(folder: Path, program: str, torch: str = TORCH, **environ: str) -> tuple[str, str]:
    """What a program prints where torch is a module with a text."""
    (folder / "torch.py").write_text(torch)
    (folder / "sitecustomize.py").write_text(START)
    done = subprocess.run(
        [sys.executable, "-B", "-c", program],
        env={"PYTHONPATH": f"{folder}:{MODULES}", **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    "before",
    [
        "",
        "import importlib.util; assert importlib.util.find_spec('torch')",  # as transformers asks
        f"exec({ANOTHER!r})",
        "import sys; sys.meta_path.append(object())",
        THREADS,
    ],
    ids=[
        *("plain", "asked for first", "another finder", "an old finder", "threads"),
    ],
)
def test_tf32_is_set_after_the_import(tmp_path: Path, before: str) -> None:
    assert run(tmp_path, f"{before}\n{SHOW}") == ("True 1\n", "")


@pytest.mark.parametrize(
    "environ",
    [
        {"TORCH_IMAGE_TF32": "Off"},
        {"TORCH_IMAGE_TF32": ""},
        {"TORCH_IMAGE_PROFILE": "False"},
        {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0"},  # torch's own: its user has decided
        {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"},
    ],
    ids=str,
)
def test_tf32_of_the_user_stays(tmp_path: Path, environ: dict[str, str]) -> None:
    assert run(tmp_path, SHOW, **environ)[0].split()[0] == "False"


def test_torch_finds_the_profile_and_another_word_is_one_line(tmp_path: Path) -> None:
    """Whatever started Python: nothing but its own start sets the variables."""
    gemm = "import os; print(os.environ.get('TORCH_IMAGE_GEMM'))\n"
    for quiet in ("no", "yes"):
        words = {"TORCH_IMAGE_GEMM": "fast", "TORCH_IMAGE_TF32": "2", "TORCH_IMAGE_QUIET": quiet}
        out, stderr = run(tmp_path, SHOW, gemm + TORCH, **words)
        assert out.split()[:2] == ["stock", "False"]
        names = [line.partition("=")[0] for line in stderr.splitlines()]
        lines = ["torch-images: TORCH_IMAGE_TF32", "torch-images: TORCH_IMAGE_GEMM"]
        assert names == (lines if quiet == "no" else [])


def test_another_torch_is_imported_all_the_same(tmp_path: Path) -> None:
    """One without these functions, one that fails at first, a folder without code, and none."""
    out, stderr = run(tmp_path, "import torch; print(torch.x)", "x = 1")
    assert out == "1\n"
    assert stderr.startswith("torch-images: TF32 is off, because it could not be set: ")
    assert stderr.count("\n") == 1
    again = (
        "try:\n    import torch\nexcept ZeroDivisionError:\n    import os; os.environ['X'] = ''\n"
    )
    fails_once = f"import os\nif 'X' not in os.environ: 1 / 0\n{TORCH}"
    assert run(tmp_path, again + SHOW, fails_once)[0].split()[0] == "True"
    (tmp_path / "bare/torch/lib").mkdir(parents=True)
    bare = f"import sys; sys.path[:2] = [{str(tmp_path / 'bare')!r}]\n"
    assert run(tmp_path, f"{bare}import torch.lib; print(torch.__file__)") == ("None\n", "")
    none = "import sys; sys.path[:] = sys.path[2:]\ntry: import torch\nexcept ImportError: print('none')"
    assert run(tmp_path, none) == ("none\n", "")


def test_attention_starts_where_it_is_installed(tmp_path: Path) -> None:
    (tmp_path / "torch_image_attention.py").write_text("def activate(): print('attention')")
    assert run(tmp_path, "import torch") == ("attention\n", "")


def test_mend_ring_lays_out_the_result_for_the_efficient_kernel_alone(tmp_path: Path) -> None:
    folder = tmp_path / "torch/distributed/tensor/experimental/_context_parallel"
    folder.mkdir(parents=True)
    (folder / "_attention.py").write_text(RING)
    (tmp_path / "torch/__init__.py").write_text(TORCH)
    program = """
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
for name in ("efficient", "flash"):
    op = ring.Op(f"aten._scaled_dot_product_{name}_attention_backward.default")
    print(ring._templated_ring_attention_backward(None, 2, op, out=ring.Tensor("out ")))
"""
    assert run(tmp_path, program) == ("out tct\nout \n", "")


# torch's builder of extensions, as far as it is changed: what it writes for ninja, and without ninja.
BUILDER = """
import os
import torch
def _get_cuda_arch_flags(cflags=None):
    return os.environ["TORCH_CUDA_ARCH_LIST"]
def _write_ninja_file(path, cflags, post_cflags, **more):
    print("ninja", cflags, post_cflags, more)
def _write_ninja_file_to_build_library(path):
    return ["-fPIC", "-std={default}"]
class BuildExtension:
    def build_extensions(self):
        self.compiler._compile("a.o", "a.cpp", ".cpp", ["-std=c++17"], ["-O2", "-std=c++14"], [])
"""
USE = """
from types import SimpleNamespace
from torch.utils import cpp_extension as builder
builder._write_ninja_file("f", ["-std=c++17"], None, cuda_post_cflags=["-std", "gnu++17", "c++17"])
extension = builder.BuildExtension()
extension.compiler = SimpleNamespace(_compile=lambda *args: print("one", *args))
extension.build_extensions()
"""


def use_builder(folder: Path, default: str, program: str = USE, **environ: str) -> tuple[str, str]:
    (folder / "torch/utils").mkdir(parents=True)
    (folder / "torch/__init__.py").write_text(TORCH)
    (folder / "torch/utils/__init__.py").touch()
    (folder / "torch/utils/cpp_extension.py").write_text(BUILDER.format(default=default))
    return run(folder, program, **environ)


def test_extensions_are_compiled_as_cxx20(tmp_path: Path) -> None:
    """Where torch's headers need that, by ninja and without, and nvcc gets one standard."""
    output, errors = use_builder(tmp_path, "c++20")
    assert output.splitlines() == [
        "ninja ['-std=c++20'] None {'cuda_post_cflags': ['-std', 'gnu++20', 'c++17']}",
        "one a.o a.cpp .cpp ['-std=c++20'] ['-O2', '-std=c++20'] []",
    ]
    assert errors.count("\n") == 1
    assert "TORCH_IMAGE_CXX20" in errors


@pytest.mark.parametrize(
    ("default", "environ"),
    [("c++17", {}), ("c++20", {"TORCH_IMAGE_CXX20": "off"})],
    ids=["an older torch", "switched off"],
)
def test_extensions_keep_their_standard(
    tmp_path: Path, default: str, environ: dict[str, str]
) -> None:
    output, errors = use_builder(tmp_path, default, **environ)
    assert "20" not in output
    assert errors == ""


@pytest.mark.parametrize(
    ("arches", "kept"),
    [
        ("9.0", ["-O3", "-gencode=arch=compute_90,code=sm_90"]),
        ("8.0;9.0+PTX", None),
        ("7.0", None),
        ("Hopper", None),
    ],
)
def test_extensions_have_the_chosen_ones_of_their_architectures(
    tmp_path: Path, arches: str, kept: list[str] | None
) -> None:
    """causal-conv1d gives nvcc nine, by two words each."""
    given = ["-O3", "-gencode", "arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90"]
    program = f"""
from torch.utils import cpp_extension as builder
builder._write_ninja_file("f", None, None, cuda_post_cflags={given})
"""
    environ = {"TORCH_CUDA_ARCH_LIST": arches}
    output, errors = use_builder(tmp_path, "c++17", program, **environ)
    assert output == f"ninja None None {{'cuda_post_cflags': {kept or given}}}\n"
    assert errors.count("\n") == bool(kept)


@pytest.mark.parametrize(
    ("devices", "environ", "arches", "line"),
    [
        (0, {}, "7.5;9.0a;12.0", True),
        (0, {"TORCH_CUDA_ARCH_LIST": "8.6"}, "8.6", False),
        (1, {}, "", False),  # of the GPU
    ],
)
def test_extensions_have_torchs_architectures_where_no_gpu_is(
    tmp_path: Path, devices: int, environ: dict[str, str], arches: str, line: bool
) -> None:
    """As in `docker build`."""
    program = f"""
import os, torch
from types import SimpleNamespace
torch.cuda = SimpleNamespace(device_count=lambda: {devices})
torch._C = SimpleNamespace(_cuda_getArchFlags=lambda: "sm_75 sm_90a sm_120 compute_120")
from torch.utils import cpp_extension as builder
os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "")
print(builder._get_cuda_arch_flags(), builder._get_cuda_arch_flags(["-O2"]))
"""
    output, errors = use_builder(tmp_path, "c++20", program, **environ)
    assert output == f"{arches} {arches}\n"
    assert errors.count("\n") == line
