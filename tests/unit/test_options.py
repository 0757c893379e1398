"""Options that nothing in a tree reads, by the files of its own build."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import options
import pytest

from torch_images.build.compile_recipe import recipes
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.locks.image_lock import image_lock


@pytest.mark.parametrize("cuda", ["12.8", "13.0"])
def test_recipes_pass_every_option(config: Config, root: Path, cuda: str) -> None:
    spec = choose(config, cuda=cuda, arch="10.0,12.0", source="fork")
    for recipe in recipes(config, spec, image_lock(config, spec, root / "locks")).values():
        assert set(recipe["options"]) <= set(recipe["environment"])


def test_features_become_options(config: Config, root: Path) -> None:
    """Those that a source has, and those that it goes without."""
    fork = choose(config, arch="12.0", source="fork")
    [kineto] = [f for f in fork.source.features if f.name == "kineto"]
    slim = replace(
        fork.source,
        features=tuple(f for f in fork.source.features if f != kineto),
        without=(*fork.source.without, kineto),
    )
    for source, switch in ((fork.source, "1"), (slim, "0")):
        spec = replace(fork, source=source)
        torch = recipes(config, spec, image_lock(config, fork, root / "locks"))["torch"]
        assert torch["environment"]["USE_KINETO"] == switch
        assert torch["environment"]["USE_MAGMA"] == "0"
        assert ("kineto" in torch["features"]) == (switch == "1")
        assert "mslk" not in torch["features"]  # only with 10.0
        assert torch["environment"]["TORCH_CUDA_ARCH_LIST"] == "12.0"


@pytest.mark.parametrize("cuda", ["12.8", "13.0"])
def test_triton_reads_what_its_recipe_sets(config: Config, root: Path, cuda: str) -> None:
    """By two versions of its setup.py, one before the pinned commit and one after it."""
    spec = choose(config, cuda=cuda, arch="12.0", source="fork")
    triton = recipes(config, spec, image_lock(config, spec, root / "locks"))["triton"]
    known = json.loads((root / "tests" / "fixtures" / "triton-reads.json").read_text())
    for version in (known["older"], known["newer"]):
        mine = {name for name in triton["environment"] if not name.startswith("CMAKE_")}
        assert mine <= {*version["passed"], *version["read"]}
    assert triton["environment"]["TRITON_BUILD_PROTON"] == "OFF"  # else more is needed offline


def test_an_option_of_cmake_that_setup_py_does_not_pass(root: Path) -> None:
    tree = root / "tests" / "fixtures" / "triton"
    assert options.refusal(["TRITON_BUILD_UT", "TRITON_BUILD_PROTON"], tree) == (
        "TRITON_BUILD_UT (its CMake has it, but the build does not pass it on)"
    )


SETUP = "for name in os.environ:\n    name.startswith(('BUILD_', 'USE_'))\n"
FORWARDING = """\
set(_ENV_PASSTHROUGH
  BLAS
)
foreach(_var IN LISTS _ENV_PASSTHROUGH)
  if(DEFINED ENV{${_var}} AND NOT DEFINED ${_var})
    set(${_var} "$ENV{${_var}}" CACHE STRING "" FORCE)
  endif()
endforeach()
string(REGEX MATCH "^(BUILD_|USE_)" _has_prefix "${_var_name}")
"""
CMAKE = "CMakeLists.txt"


@pytest.mark.parametrize(
    "files",
    [
        {CMAKE: 'option(USE_A "words" ON)', "setup.py": SETUP},
        {CMAKE: 'cmake_dependent_option(\n    USE_A "words" ON\n  "X" OFF)', "setup.py": SETUP},
        {CMAKE: "if(NOT DEFINED USE_A)", "setup.py": SETUP},
        {"aten/src/CMakeLists.txt": 'option(USE_A "words" ON)', "setup.py": SETUP},
        {CMAKE: 'option(USE_A "words" ON)', "setup.py": "import tools.b", "tools/b.py": SETUP},
        {CMAKE: 'option(USE_A "words" ON)', "cmake/Forwarding.cmake": FORWARDING},
        {"cmake/Forwarding.cmake": FORWARDING.replace("BLAS", "USE_A")},
        {CMAKE: 'if("$ENV{USE_A}" STREQUAL "1")'},
        {"setup.py": "x = os.getenv('USE_A', '')"},
        {"setup.py": "from tools.b import x", "tools/b.py": 'check_env_flag("USE_A")'},
        {
            "setup.py": "import tools.b",
            "tools/b.py": "from .c import x",
            "tools/c/__init__.py": 'y = "USE_A"',
        },
        {
            "pyproject.toml": 'build-backend = "b"\nbackend-path = ["tools/own"]',
            "tools/own/b.py": 'x = "USE_A"',
        },
    ],
)
def test_unread_omits_options_that_a_tree_reads(tmp_path: Path, files: Mapping[str, str]) -> None:
    write(tmp_path, files)
    assert options.unread(["USE_A"], tmp_path) == []
    assert options.unread(["USE_AB"], tmp_path) == ["USE_AB"]


@pytest.mark.parametrize(
    "files",
    [
        {CMAKE: "# option(USE_A words)", "setup.py": SETUP},
        {CMAKE: "set(USE_A ON)", "setup.py": SETUP},
        {CMAKE: 'option(USE_A "words" ON)'},
        {CMAKE: 'option(USE_A "words" ON)', "setup.py": SETUP.replace("USE_", "WITH_")},
        {CMAKE: 'option(USE_A "words" ON)', "tools/not_imported.py": SETUP},
        {"python/package/knobs.py": "os.getenv('USE_A')", "setup.py": "import json"},
        {"setup.py": "x = '-DUSE_A=OFF'"},
    ],
)
def test_unread_lists_options_that_nothing_reads(tmp_path: Path, files: Mapping[str, str]) -> None:
    write(tmp_path, files)
    assert options.unread(["USE_A"], tmp_path) == ["USE_A"]


def test_a_refusal_names_what_may_be_meant(tmp_path: Path) -> None:
    write(tmp_path, {CMAKE: 'option(USE_FBGEMM "words" ON)', "setup.py": SETUP})
    refusal = options.refusal(["USE_FBGEM", "USE_FBGEMM", "NCCL_IB_DISABLE", "CC"], tmp_path)
    assert refusal == "USE_FBGEM (did you mean USE_FBGEMM?), NCCL_IB_DISABLE"
    assert options.refusal(["USE_FBGEMM"], tmp_path) == ""


def write(tree: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)


def test_folders_that_features_are_compiled_from(tmp_path: Path) -> None:
    needs = {"fbgemm": "third_party/fbgemm", "kineto": "third_party/kineto"}
    (tmp_path / "third_party" / "kineto").mkdir(parents=True)  # as git leaves a submodule
    reason = options.lack(needs, tmp_path)
    assert reason == (
        "lacks third_party/fbgemm, which feature fbgemm is compiled from; third_party/kineto, "
        "which feature kineto is compiled from: fetch it, or leave the feature out"
    )
    for folder in needs.values():
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "CMakeLists.txt").touch()
    assert not options.lack(needs, tmp_path)
    assert not options.lack({}, tmp_path)
