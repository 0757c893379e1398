"""What a program gets that the entrypoint starts: the process of these checks is such a program.

Without GPUs it runs as a user without a name, see torch_images/verify/suites.py.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import subprocess
from typing import Any

import pytest
import torch
from packaging.version import Version

from tests.container.conftest import SETTINGS


@pytest.mark.usefixtures("expected")
def test_torch_works_for_any_user() -> None:
    """All checks beside this one show it."""
    assert os.getuid() != 0 or torch.cuda.is_available()


def test_profile_is_in_force(expected: dict[str, Any]) -> None:
    """Importing torch makes what the profile says. Where processes here cannot share memory of
    expandable segments, it leaves those out, and cuda-doctor says so.
    """
    assert SETTINGS["precision"] == "high"
    assert SETTINGS["allowed"] is True
    assert SETTINGS["matmul"] in ("tf32", None)  # torch has this word for it from 2.9 on
    assert SETTINGS["convolutions"]  # torch's own default
    # Before 2.9, torch reads an older name of the allocator's setting.
    knows = Version(expected["torch"]) >= Version("2.9.0a0")
    done = subprocess.run(["cuda-doctor", "--json"], stdout=subprocess.PIPE, text=True, check=False)
    cannot_share = json.loads(done.stdout)["cannot_share"]
    assert SETTINGS["expandable"] is (knows and not cannot_share)


def test_nvrtc_compiles_once_torch_is_imported() -> None:
    """Torch must have loaded NVRTC and its builtins.

    cuDNN's attention and torch's own kernels that are compiled at run time open it by its name, and
    NVRTC its builtins by theirs.
    """
    library = ctypes.CDLL(f"libnvrtc.so.{torch.version.cuda.partition('.')[0]}")
    program, options = ctypes.c_void_p(), (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_80")
    code = b"__global__ void f(float *x) { *x = sinf(*x); }"
    assert not library.nvrtcCreateProgram(ctypes.byref(program), code, b"f.cu", 0, None, None)
    assert not library.nvrtcCompileProgram(program, 1, options)


def test_summary(
    expected: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torch-info prints."""
    monkeypatch.setattr("sys.argv", ["torch-info"])
    runpy.run_path("/usr/local/bin/torch-info", run_name="__main__")
    text = capsys.readouterr().out
    assert f"PyTorch {expected['torch']}" in text
    assert f"CUDA {expected['cuda']}" in text
    assert "GPUs: " in text
    built_for = text.partition("architectures: ")[2].partition("\n")[0].split()
    assert built_for
    assert built_for == (expected["arch_list"] or built_for)
