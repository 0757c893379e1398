"""What a compiled wheel goes without, on real libraries; and what its recipe asks for."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import removals

from torch_images.build.compile_recipe import recipes
from torch_images.config.choose import choose
from torch_images.config.types import Config, Removal
from torch_images.locks.image_lock import image_lock


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """An unpacked wheel with a library that has debug information."""
    folder = tmp_path / "triton"
    (folder / "_C").mkdir(parents=True)
    (folder / "lib" / "cupti").mkdir(parents=True)
    for name in ("lib/cupti/libx_static.a", "lib/cupti/libx.so", "lib/keep.a"):
        (folder / name).write_text("x")
    command = ["gcc", "-x", "c", "-g", "-shared", "-fPIC", "-o", f"{folder}/_C/libtriton.so", "-"]
    text = "static int hidden(void) { return 41; } int answer(void) { return hidden() + 1; }"
    subprocess.run(command, input=text, text=True, check=True)
    return tmp_path


def sections(path: Path) -> str:
    command = ["readelf", "--sections", "--wide", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_symbols_go_and_the_library_works(files: Path) -> None:
    library = files / "triton" / "_C" / "libtriton.so"
    assert ".debug_info" in sections(library)
    summary = removals.apply(files, {"files": [], "symbols": ["triton/_C/lib*.so"]})
    assert summary.startswith("0 files left out, 1 libraries stripped, 0.0 MB less")
    assert not {".debug_info", ".symtab", ".strtab"} & set(sections(library).split())
    assert ".dynsym" in sections(library)
    assert ctypes.CDLL(str(library)).answer() == 42


def test_files_go(files: Path) -> None:
    summary = removals.apply(files, {"files": ["triton/lib/*_static.a"], "symbols": []})
    assert summary.startswith("1 files left out, 0 libraries stripped")
    names = {path.name for path in files.rglob("*") if path.is_file()}
    assert names == {"libtriton.so", "libx.so", "keep.a"}


def test_recipes_have_the_removals_of_their_wheel(config: Config, root: Path) -> None:
    spec = choose(config, cuda="13.0", arch="12.0", source="fork")
    lock = image_lock(config, spec, root / "locks")
    left = (
        Removal(wheels=("torch", "x"), reason="", files=("torch/a",), code=("torch/b",)),
        Removal(wheels=("triton",), reason="", symbols=("triton/c",)),
        Removal(wheels=("torch",), reason="", symbols=("torch/d",), narrowed=True),
        Removal(wheels=("torch",), reason="", files=("torch/e",), cuda=("12.8",)),
        Removal(wheels=("sympy",), reason="", files=("sympy/f",)),
    )
    result = recipes(replace(config, removals=left), spec, lock)
    assert result["torch"]["removals"] == {"files": ["torch/a"], "symbols": []}
    assert result["triton"]["removals"] == {"files": [], "symbols": ["triton/c"]}
    assert not spec.narrowed  # it is compiled for its architectures alone
