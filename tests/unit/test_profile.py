"""The profile: what a real shell exports that reads it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.conftest import ROOT

PROFILE = ROOT / "scripts" / "image" / "runtime" / "profile.sh"
SHELLS = [["sh"], ["sh", "-eu"], ["bash"], ["bash", "-eu"]]
SHOW = "import json, os; print(json.dumps(dict(os.environ)))"
BACKENDS = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"
# What the profile sets without CUTLASS, which this machine does not have at /opt/cutlass.
ALWAYS = {
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}


def start(
    environ: dict[str, str], *, shell: list[str] | None = None, says: str = "--say"
) -> tuple[dict[str, str], str]:
    """What the profile adds to an environment or changes there, and what it says.

    `says` is what the entrypoint leaves for it; "" where a shell of `docker exec` reads it.
    """
    given = {"PATH": "/nowhere", **environ}
    words = [*(shell or ["sh"]), "-c", f'. "$0"; exec "$1" -sESc "{SHOW}"', str(PROFILE)]
    words[0] = shutil.which(words[0]) or words[0]
    done = subprocess.run(
        ["/usr/bin/env", "-i", *(f"{k}={v}" for k, v in given.items()), f"torch_image_says={says}",
         *words, sys.executable],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    ignored = {"PWD", "SHLVL", "_", "LC_CTYPE", "torch_image_says"}
    kept = {k: v for k, v in found.items() if k not in ignored and given.get(k) != v}
    assert given.keys() <= found.keys()
    return kept, done.stderr


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """The environment of an image with CUTLASS and nvcc."""
    (tmp_path / "cutlass/include/cutlass").mkdir(parents=True)
    (tmp_path / "cuda/bin").mkdir(parents=True)
    (tmp_path / "cuda/bin/nvcc").write_text("#!/bin/sh\n")
    (tmp_path / "cuda/bin/nvcc").chmod(0o755)
    return {
        "TORCHINDUCTOR_CUTLASS_DIR": str(tmp_path / "cutlass"),
        "CUDA_HOME": str(tmp_path / "cuda"),
    }


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("value", [None, "", "stock"])
def test_without_the_setting_inductor_keeps_its_own(
    shell: list[str], value: str | None, tools: dict[str, str]
) -> None:
    asked = {} if value is None else {"TORCH_IMAGE_GEMM": value}
    assert start({**tools, **asked}, shell=shell) == (ALWAYS, "")


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_cutlass_competes_with_what_is_tried_by_default(
    shell: list[str], tools: dict[str, str]
) -> None:
    found, said = start({**tools, "TORCH_IMAGE_GEMM": "cutlass"}, shell=shell)
    assert found == {**ALWAYS, BACKENDS: "ATEN,TRITON,CPP,CUTLASS"}
    assert said == ""


def test_nvcc_may_be_in_path(tools: dict[str, str]) -> None:
    asked = {"TORCH_IMAGE_GEMM": "cutlass", "PATH": f"{tools.pop('CUDA_HOME')}/bin"}
    assert BACKENDS in start({**tools, **asked})[0]


@pytest.mark.parametrize("own", ["CUTLASS", ""])
def test_backends_that_are_set_stay(own: str, tools: dict[str, str]) -> None:
    asked = {**tools, "TORCH_IMAGE_GEMM": "cutlass", BACKENDS: own}
    assert start(asked) == (ALWAYS, "")


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    ("value", "lacks", "said"),
    [
        ("triton", "", "is not cutlass or stock, and taken as not set"),
        ("on", "", "is not cutlass or stock, and taken as not set"),
        ("cutlass", "TORCHINDUCTOR_CUTLASS_DIR", "has no effect: no CUTLASS at /opt/cutlass; variant pod has it"),
        ("cutlass", "CUDA_HOME", "has no effect: no nvcc here; variant pod has it"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_in_one_line(
    value: str, lacks: str, said: str, shell: list[str], tools: dict[str, str]
) -> None:
    tools.pop(lacks, None)
    found = start({**tools, "TORCH_IMAGE_GEMM": value}, shell=shell)
    assert found == (ALWAYS, f"torch-images: TORCH_IMAGE_GEMM={value} {said}\n")


def test_only_the_entrypoint_says_it() -> None:
    wrong = {"TORCH_IMAGE_GEMM": "triton"}
    assert start(wrong, says="") == (ALWAYS, "")
    assert start({**wrong, "TORCH_IMAGE_QUIET": "1"}) == (ALWAYS, "")


def test_a_value_is_shown_as_it_is() -> None:
    _, said = start({"TORCH_IMAGE_GEMM": r"$(echo no) * \n%s"})
    assert said.startswith(r"torch-images: TORCH_IMAGE_GEMM=$(echo no) * \n%s is not ")


def test_what_the_user_sets_stays() -> None:
    own = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "", "PYTORCH_CUDA_ALLOC_CONF": "x"}
    assert start(own) == ({}, "")
