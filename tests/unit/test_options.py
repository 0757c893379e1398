"""Options that nothing in a tree reads, by the files of its own build."""

from __future__ import annotations

from pathlib import Path

import options
import pytest

from torch_images.build.compile_recipe import recipes
from torch_images.config.matrix import choose
from torch_images.config.types import Config
from torch_images.locks.image_lock import image_lock


@pytest.mark.parametrize("source", ["fork", "fork-slim"])
@pytest.mark.parametrize("cuda", ["12.8", "13.0"])
def test_every_option_is_told_to_the_build(
    config: Config, root: Path, source: str, cuda: str
) -> None:
    spec = choose(config, cuda=cuda, arch="10.0,12.0", source=source)
    for recipe in recipes(spec, image_lock(config, spec, root / "locks")).values():
        assert set(recipe["options"]) <= set(recipe["environment"])


def test_features_become_options(config: Config, root: Path) -> None:
    for source, kineto, features in (("fork", "1", "kineto"), ("fork-slim", "0", "")):
        spec = choose(config, arch="12.0", source=source)
        torch = recipes(spec, image_lock(config, spec, root / "locks"))["torch"]
        assert torch["environment"]["USE_KINETO"] == kineto
        assert torch["environment"]["USE_MAGMA"] == "0"
        assert ("kineto" in torch["features"]) == bool(features)
        assert "mslk" not in torch["features"]  # only with 10.0
        assert torch["environment"]["TORCH_CUDA_ARCH_LIST"] == "12.0"


def test_what_the_stand_in_reads(root: Path) -> None:
    tree = root / "tests" / "fixtures" / "pytorch"
    found = options.read_by(tree)
    assert {"USE_FBGEMM", "USE_CUSPARSELT", "BUILD_TEST", "MAX_JOBS", "CUDA_HOME"} <= found
    assert {"PYTORCH_BUILD_VERSION", "TORCH_CUDA_ARCH_LIST"} <= found
    assert options.unread(["USE_FBGEMM", "USE_NCCL", "CMAKE_BUILD_TYPE"], tree) == ["USE_NCCL"]


@pytest.mark.parametrize(
    ("name", "text", "option"),
    [
        ("CMakeLists.txt", 'option(USE_A "words" ON)', "USE_A"),
        ("CMakeLists.txt", 'cmake_dependent_option(\n    USE_A "words" ON\n  "X" OFF)', "USE_A"),
        ("CMakeLists.txt", 'set(USE_A ""\n  CACHE STRING "words")', "USE_A"),
        ("CMakeLists.txt", 'if("$ENV{USE_A}" STREQUAL "1")', "USE_A"),
        ("CMakeLists.txt", "if(NOT DEFINED USE_A)", "USE_A"),
        ("cmake/Modules/FindX.cmake", "if(DEFINED ENV{USE_A})", "USE_A"),
        ("aten/src/CMakeLists.txt", 'option(USE_A "words" ON)', "USE_A"),
        ("setup.py", "x = os.getenv('USE_A', '')", "USE_A"),
        ("tools/setup_helpers/cmake.py", 'check_env_flag("USE_A")', "USE_A"),
    ],
)
def test_where_options_are_read(tmp_path: Path, name: str, text: str, option: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    assert options.unread([option], tmp_path) == []
    assert options.unread([f"{option}B"], tmp_path) == [f"{option}B"]


@pytest.mark.parametrize("text", ["# option(USE_A words)", "set(USE_A ON)", "message(USE_A)"])
def test_what_reads_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "CMakeLists.txt").write_text(text)
    assert options.unread(["USE_A"], tmp_path) == ["USE_A"]


def test_a_refusal_names_what_may_be_meant(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text('option(USE_FBGEMM "words" ON)')
    told = options.refusal(["USE_FBGEM", "USE_FBGEMM", "NCCL_IB_DISABLE", "CC"], tmp_path)
    assert told == "USE_FBGEM (did you mean USE_FBGEMM?), NCCL_IB_DISABLE"
    assert options.refusal(["USE_FBGEMM"], tmp_path) == ""
