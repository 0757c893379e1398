"""The entrypoint: PyTorch uses the settings that it makes, and it says which libcuda it chose.

And what shells read that it did not start.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from packaging.version import Version
from testinfra.host import Host

# What torch takes from the start's variables, also without a GPU; a product; what torch-info prints;
# and NVRTC, which cuDNN's attention and torch's own kernels that are compiled at run time open by its
# name, and which opens its builtins by theirs: torch must have loaded both.
PROGRAM = """
import contextlib, ctypes, io, json, runpy, torch
matmul = torch.backends.cuda.matmul
settings = {
    "precision": torch.get_float32_matmul_precision(),
    "allowed": matmul.allow_tf32,
    "matmul": getattr(matmul, "fp32_precision", None),
    "convolutions": torch.backends.cudnn.allow_tf32,
    "expandable": torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"],
}
library = ctypes.CDLL(f"libnvrtc.so.{torch.version.cuda.partition('.')[0]}")
program, options = ctypes.c_void_p(), (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_80")
code = b"__global__ void f(float *x) { *x = sinf(*x); }"
nvrtc = [
    library.nvrtcCreateProgram(ctypes.byref(program), code, b"f.cu", 0, None, None),
    library.nvrtcCompileProgram(program, 1, options),
]
with contextlib.redirect_stdout(io.StringIO()) as info:
    runpy.run_path("/usr/local/bin/torch-info", run_name="__main__")
product = (torch.ones(2, 2) @ torch.ones(2, 2)).sum().item()
print(json.dumps({"settings": settings, "nvrtc": nvrtc, "info": info.getvalue(), "sum": product}))
"""
ANYONE = "setpriv --reuid=12345 --regid=12345 --clear-groups --no-new-privs env HOME=/"
# What torch.compile may choose from for matrix products, where that is not torch's own default.
PRINT_GEMM = """
import os
if "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS" in os.environ:
    from torch._inductor import config
    assert not config.max_autotune and not config.max_autotune_gemm
    print(config.max_autotune_gemm_backends.upper().replace(",", " "))
"""


@pytest.fixture(scope="module")
def process(host: Host) -> dict[str, Any]:
    """What PROGRAM prints, started by the entrypoint as a user without a name.

    One process for all: it takes seconds to import torch.
    """
    done = host.run(f"{ANYONE} TORCH_IMAGE_QUIET=1 torch-entrypoint python -c %s", PROGRAM)
    if done.rc:
        pytest.fail(f"torch does not work for any user: {done.stderr[-500:]}", pytrace=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_torch_works_for_any_user(process: dict[str, Any]) -> None:
    assert process["sum"] == 8.0


def test_profile_is_in_force(host: Host, expected: dict[str, Any], process: dict[str, Any]) -> None:
    """Importing torch makes what the profile says. Where processes here cannot share memory of
    expandable segments, it leaves those out, and cuda-doctor says so.
    """
    found = process["settings"]
    assert found["precision"] == "high"
    assert found["allowed"] is True
    assert found["matmul"] in ("tf32", None)  # torch has this word for it from 2.9 on
    assert found["convolutions"]  # torch's own default
    # Before 2.9, torch reads an older name of the allocator's setting.
    knows = Version(expected["torch"]) >= Version("2.9.0a0")
    doctor = json.loads(host.run(f"{ANYONE} cuda-doctor --json").stdout)
    assert found["expandable"] is (knows and not doctor["cannot_share"])


def test_nvrtc_compiles_once_torch_is_imported(process: dict[str, Any]) -> None:
    assert process["nvrtc"] == [0, 0]


def test_summary(process: dict[str, Any], expected: dict[str, Any]) -> None:
    """What torch-info prints."""
    text = process["info"]
    assert f"PyTorch {expected['torch']}" in text
    assert f"CUDA {expected['cuda']}" in text
    assert "GPUs: " in text
    built_for = text.partition("architectures: ")[2].partition("\n")[0].split()
    assert built_for
    assert built_for == (expected["arch_list"] or built_for)


@pytest.mark.parametrize("asked", ["", "cutlass"])
def test_cutlass_competes_where_the_image_has_it(
    host: Host, expected: dict[str, Any], asked: str
) -> None:
    """TORCH_IMAGE_GEMM=cutlass adds CUTLASS to torch's default, and max-autotune stays off.

    An image without CUTLASS or nvcc says that it cannot.
    """
    able = "nvidia-cutlass" in expected["unpacked"] and bool(expected["cuda_home"])
    done = host.run(f"TORCH_IMAGE_GEMM={asked} torch-entrypoint python -c %s", PRINT_GEMM)
    assert done.rc == 0, done.stderr
    competing = {"ATEN", "TRITON", "CPP", "CUTLASS"} if able and asked else set()
    assert set(done.stdout.split()) == competing
    assert ("TORCH_IMAGE_GEMM=cutlass has no effect" in done.stderr) == (asked != "" and not able)


def test_start_says_what_it_chose(host: Host) -> None:
    done = host.run("torch-entrypoint true")
    assert done.rc == 0
    assert done.stdout == ""
    assert done.stderr.startswith("torch-images: CUDA ")
    assert done.stderr.count("\n") == 1


def test_doctor_agrees_with_the_start(host: Host) -> None:
    line = host.run("torch-entrypoint true").stderr.removeprefix("torch-images: ").strip()
    assert json.loads(host.run("cuda-doctor --json").stdout)["summary"] == line


def test_bashs_own_file_has_one_more_line(host: Host) -> None:
    """The rest is Debian's, so an update of bash has nothing to ask about."""
    lines = host.check_output("head -n 1 /etc/bash.bashrc")
    assert lines == ". /usr/local/lib/torch-images/shell.sh # by torch-images"
    told = host.check_output("dpkg-query -W -f='${Conffiles}' bash").split()
    rest = host.check_output("tail -n +2 /etc/bash.bashrc | md5sum").split()[0]
    assert rest == told[told.index("/etc/bash.bashrc") + 1]


def test_nothing_is_in_the_environment_for_the_shells_sake(host: Host) -> None:
    """Programs read ENV as "dev" or "prod". Only bash reads BASH_ENV."""
    names = host.check_output("python -c 'import os; print(*os.environ)'").split()
    assert not {"ENV", "PROMPT_COMMAND"} & set(names)
