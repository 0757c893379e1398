"""The compiling step's own parts; the whole of it runs in integration tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import compiling
import pytest

from tests.scripts import installed, load


@pytest.fixture
def step() -> ModuleType:
    """scripts/image/source/build-wheel as a module."""
    before = sys.dont_write_bytecode, list(sys.path)
    module = load("scripts/image/source/build-wheel")
    sys.dont_write_bytecode, sys.path[:] = before
    return module


def test_a_context_has_all_that_the_step_imports(tmp_path: Path) -> None:
    folder = installed(tmp_path / "source", "source")
    code = "import runpy, sys; runpy.run_path(sys.argv[1])"
    subprocess.run([sys.executable, "-IB", "-c", code, folder / "build-wheel"], check=True)


@pytest.mark.parametrize(
    "text",
    [
        "c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n",
        "/bin/sh: line 1:  4711 Killed\n/bin/sh: 1: ptxas: Killed\n",
        "collect2: fatal error: ld terminated with signal 9 [Killed]\ncompilation terminated.\n",
        "virtual memory exhausted: Cannot allocate memory\n",
    ],
)
def test_running_out_of_memory_is_recognised(text: str) -> None:
    """Each was printed by gcc 12 or nvcc 13.0 after such an end, but for the shell's."""
    assert compiling.KILLED.search(text)


@pytest.fixture
def finishing(step: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A recipe for what is in tmp_path. Wheels are plain archives here: `wheel` is not installed."""

    def unpack(wheel: Path, folder: Path) -> Path:
        shutil.unpack_archive(wheel, folder, "zip")
        return folder

    def pack(files: Path, folder: Path) -> Path:
        name = str(folder / "triton-3.7.1-cp311-cp311-linux_x86_64")
        return Path(shutil.make_archive(name, "zip", files)).rename(f"{name}.whl")

    monkeypatch.setattr(step.repair, "unpack", unpack)
    monkeypatch.setattr(step.repair, "pack", pack)
    monkeypatch.setattr(step, "WORK", tmp_path / "src")
    monkeypatch.setattr(step, "OUTPUT", tmp_path / "wheels")
    monkeypatch.setattr(step, "SITE", tmp_path / "venv")
    (tmp_path / "venv" / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    for release, folder in (("13.0", "cuda"), ("12.8", "published")):
        (tmp_path / folder / "include").mkdir(parents=True)
        (tmp_path / folder / "include" / "cuda.h").write_text(release)
        tool = tmp_path / folder / ("ptxas" if folder == "cuda" else "cuobjdump")
        tool.write_text(f"#!/bin/sh\necho release {release}, V1\n")
        tool.chmod(0o755)
    return {
        "version": "3.7.1",
        "cuda": "13.0",
        "programs": {
            "triton/bin/ptxas": [f"{tmp_path}/cuda/ptxas"],
            "triton/bin/cuobjdump": [
                f"{tmp_path}/cuda/cuobjdump",
                f"{tmp_path}/published/cuobjdump",
            ],
        },
        "headers": ["triton/include", f"{tmp_path}/cuda/include", f"{tmp_path}/published/include"],
        "removals": {"files": ["triton/extra/*"], "symbols": ["triton/*.so"]},
        "searches": False,
        "tools": [],
    }


def built(tmp_path: Path, text: str, version: str = "3.7.1") -> Path:
    """A wheel as setup.py would build it, with a library."""
    files = tmp_path / "built"
    (files / "triton" / "extra").mkdir(parents=True)
    (files / "triton" / "extra" / "example.so").write_text("")
    (files / "triton" / "__init__.py").write_text("")
    command = ["gcc", "-x", "c", "-g", "-w", "-shared", "-fPIC", "-std=gnu11"]
    command += ["-o", str(files / "triton" / "lib.so"), "-"]
    subprocess.run(command, input=text, text=True, check=True)
    name = f"{tmp_path}/triton-{version}-cp311-cp311-linux_x86_64"
    return Path(shutil.make_archive(name, "zip", files)).rename(f"{name}.whl")


@pytest.mark.parametrize(
    ("text", "version", "changes", "message"),
    [
        ("int f(void){return g();}", "3.7.1", {}, "triton/lib.so has 1 undefined symbol: g"),
        ("", "3.7.0", {}, "triton-3.7.0-cp311-cp311-linux_x86_64.whl is not version 3.7.1"),
        ("", "3.7.1", {"programs": {"x": ["/nowhere/a"]}}, "/nowhere/a do not exist"),
        (
            "",
            "3.7.1",
            {"headers": ["x", "/nowhere/a", "/nowhere/b"]},
            "/nowhere/a has none of the headers that /nowhere/b has",
        ),
    ],
)
def test_finish_refuses_incomplete_wheels(
    step: ModuleType,
    finishing: dict[str, Any],
    tmp_path: Path,
    text: str,
    version: str,
    changes: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(SystemExit) as error:
        step.finish("triton", finishing | changes, built(tmp_path, text, version), "")
    assert error.value.code == f"build-wheel: {message}"


def test_git_tells_a_tree_without_history_its_commit(step: ModuleType, tmp_path: Path) -> None:
    commit = "06eb133f9769fcb2031fdcec90023215ef13d437"
    step.pretend_repository(tmp_path, commit)
    assert step.untold_commit(tmp_path, commit) == ""
    other = "0" * 40
    assert step.untold_commit(tmp_path, other) == (
        f"git should tell the commit {other}, but says: {commit}"
    )
