"""What a compiled wheel is held to, on files made for it; the real ones are in integration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gate
import pytest

from torch_images.config.types import Config
from torch_images.inside.features import FEATURES

COMMIT = "a" * 40
LOG = """\
-- The CXX compiler identification is GNU 12.2.0
CMake Warning at cmake/public/cuda.cmake:70 (message):
  Cannot find cuSPARSELt library. Turning the option off
-- Could NOT find CUDNN (missing: CUDNN_LIBRARY_PATH)
--   USE_KINETO            : ON
--   USE_FBGEMM            : OFF
"""
LISTINGS = {
    "elf": "ELF file    1: libtorch_cuda.1.sm_90.cubin\nELF file    2: libtorch_cuda.2.sm_120.cubin\n",
    "ptx": "",
}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The files of a wheel that is all that `recipe` asks for."""
    files = tmp_path / "files"
    (files / "torch" / "lib").mkdir(parents=True)
    (files / "torch" / "version.py").write_text(
        f"__version__ = '2.12'\ncuda: Optional[str] = '13.0'\ngit_version = '{COMMIT}'\n"
    )
    (files / "torch" / "lib" / "libtorch_cpu.so").write_bytes(b"\0 -DUSE_KINETO -DUSE_FBGEMM \0")
    (files / "torch" / "lib" / "libtorch_cuda.so").write_bytes(b"\0fmha_cutlassF\0")
    return files


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A stand-in for cuobjdump, which lists what the files beside it say."""
    script = tmp_path / "cuobjdump"
    script.write_text(f'#!/bin/sh\ncat "{tmp_path}/listing${{1#--list}}"\n')
    script.chmod(0o755)
    for kind, text in LISTINGS.items():
        (tmp_path / f"listing-{kind}").write_text(text)
    return tmp_path


def recipe(**changes: Any) -> dict[str, Any]:
    features = ["kineto", "fbgemm", "mem-efficient-attention"]
    known = {"version": "2.12", "commit": COMMIT, "cuda": "13.0", "arches": "9.0;12.0"}
    return {**known, "features": features, **changes}


def problems(files: Path, tools: Path, **changes: Any) -> list[str]:
    return list(gate.problems(recipe(**changes), files, LOG, tools))


def test_problems_of_a_sound_wheel(wheel: Path, tools: Path) -> None:
    assert problems(wheel, tools) == []


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ("cusparselt", "Cannot find cuSPARSELt library. Turning the option off"),
        ("cudnn", "Could NOT find CUDNN (missing: CUDNN_LIBRARY_PATH)"),
        ("nccl", ""),
    ],
)
def test_problems_of_missing_feature(wheel: Path, tools: Path, feature: str, message: str) -> None:
    expected = f"feature {feature} is not in the wheel" + (
        f'; CMake said: "{message}"' if message else ""
    )
    assert problems(wheel, tools, features=[feature]) == [expected]


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("version", "2.13", "torch.version.version is 2.12, expected 2.13"),
        ("cuda", "12.8", "torch.version.cuda is 13.0, expected 12.8"),
        ("commit", "b" * 40, f"torch.version.git_version is {COMMIT}, expected {'b' * 40}"),
    ],
)
def test_another_version(wheel: Path, tools: Path, key: str, value: str, line: str) -> None:
    assert problems(wheel, tools, **{key: value}) == [line]


@pytest.mark.parametrize(
    ("arches", "lines"),
    [
        ("9.0;12.0", []),
        ("12.0", ["libtorch_cuda.so has machine code for 9.0, which was not asked for"]),
        ("8.0;9.0;12.0", ["libtorch_cuda.so has no machine code for 8.0"]),
    ],
)
def test_other_machine_code(wheel: Path, tools: Path, arches: str, lines: list[str]) -> None:
    assert problems(wheel, tools, arches=arches) == lines


def test_linear_algebra_without_magma_may_have_no_code(wheel: Path, tools: Path) -> None:
    """The stand-in for cuobjdump lists by kind, so the library's own listing is told by its name."""
    (wheel / "torch" / "lib" / "libtorch_cuda_linalg.so").write_bytes(b"\0magma_queue_create\0")
    script = tools / "cuobjdump"
    script.write_text(
        f'#!/bin/sh\ncase $2 in *_linalg.so) exit 0 ;; esac\ncat "{tools}/listing${{1#--list}}"\n'
    )
    assert problems(wheel, tools) == []
    assert problems(wheel, tools, features=["magma"]) == [
        "libtorch_cuda_linalg.so has no machine code for 9.0",
        "libtorch_cuda_linalg.so has no machine code for 12.0",
    ]
    script.write_text(script.read_text().replace("*_linalg.so", "*"))
    lines = problems(wheel, tools)
    assert lines == [f"libtorch_cuda.so has no machine code for {arch}" for arch in ("9.0", "12.0")]


def test_options_of_features_were_looked_up(real: Config, root: Path) -> None:
    """Each in the source of PyTorch 2.6.0 and, as a feature, in a published wheel."""
    known = FEATURES
    looked_up = json.loads((root / "tests/fixtures/torch-options.json").read_text())
    assert not {*looked_up["has"]} & {*looked_up["lacks"]}
    options = {feature["option"] for feature in known.values()} - {""}
    assert options == {*looked_up["has"], *looked_up["lacks"]}
    assert known.keys() == {name for facts in real.facts for name in facts.features}
