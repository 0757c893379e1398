"""The profile: what a start sets for PyTorch, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import defaults
import pytest

BACKENDS = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"
# What the profile sets without CUTLASS, which this machine does not have at /opt/cutlass.
ALWAYS = {"TORCH_IMAGE_TF32": "1", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}


@pytest.fixture(autouse=True)
def _sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "cannot_share", lambda: "")


def profile(environ: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    return defaults.profile({"PATH": "/nowhere", **environ})


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


def test_cutlass_competes_with_what_is_tried_by_default(
    tools: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {**tools, "TORCH_IMAGE_GEMM": "cutlass"}
    competing = {**ALWAYS, BACKENDS: "ATEN,TRITON,CPP,CUTLASS"}
    assert profile(asked) == (competing, [])
    # In an image that has it, its place need not be named.
    place = asked.pop("TORCHINDUCTOR_CUTLASS_DIR")
    monkeypatch.setattr(defaults, "CUTLASS", place)
    assert profile(asked) == ({**competing, "TORCHINDUCTOR_CUTLASS_DIR": place}, [])


@pytest.mark.parametrize(
    ("value", "lacks", "said"),
    [
        ("triton", "", "is neither cutlass nor stock; ignored"),
        ("on", "", "is neither cutlass nor stock; ignored"),
        ("cutlass", "TORCHINDUCTOR_CUTLASS_DIR", "has no effect: no CUTLASS at /opt/cutlass; variant pod has it"),
        ("cutlass", "CUDA_HOME", "has no effect: no nvcc here; variant pod has it"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_in_one_line(
    value: str, lacks: str, said: str, tools: dict[str, str]
) -> None:
    tools.pop(lacks, None)
    found = profile({**tools, "TORCH_IMAGE_GEMM": value})
    assert found == (ALWAYS, [f"TORCH_IMAGE_GEMM={value} {said}"])


@pytest.mark.parametrize("own", ["mine", ""])
def test_what_the_user_sets_stays(own: str, tools: dict[str, str]) -> None:
    """Also what is set to nothing; the older name of the allocator's setting counts, too."""
    names = ("TORCH_IMAGE_TF32", "PYTORCH_CUDA_ALLOC_CONF", BACKENDS)
    asked = {**tools, **dict.fromkeys(names, own), "TORCH_IMAGE_GEMM": "cutlass"}
    assert profile(asked) == ({}, [])
