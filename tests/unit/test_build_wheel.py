"""The compiling step's own parts; the whole of it runs in integration tests."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import compiling
import pytest


@pytest.fixture
def step(root: Path) -> ModuleType:
    """scripts/image/source/build-wheel as a module."""
    path = str(root / "scripts" / "image" / "source" / "build-wheel")
    loader = importlib.machinery.SourceFileLoader("build_wheel", path)
    spec = importlib.util.spec_from_loader("build_wheel", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    before = sys.dont_write_bytecode, list(sys.path)
    loader.exec_module(module)
    sys.dont_write_bytecode, sys.path[:] = before
    return module


@pytest.mark.parametrize(
    ("hits", "misses", "said"),
    [
        ({}, {"C/C++": 3}, "compile cache hits: C/C++ 0 of 3\n"),
        ({"C/C++": 2, "CUDA": 1}, {"C/C++": 1}, "compile cache hits: C/C++ 2 of 3, CUDA 1 of 1\n"),
        (
            {"C/C++": 2},
            {"CUDA": 4, "PTX": 1},
            "compile cache hits: C/C++ 2 of 2, CUDA 0 of 4, PTX 0 of 1\n"
            "warning: torch: the compile cache never hits for nvcc\n",
        ),
        ({}, {}, "compile cache hits: no requests\n"),
    ],
)
def test_what_the_cache_was_good_for(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    hits: dict[str, int],
    misses: dict[str, int],
    said: str,
) -> None:
    stats = {"stats": {"cache_hits": {"counts": hits}, "cache_misses": {"counts": misses}}}
    monkeypatch.setattr(compiling, "cache", lambda *_: json.dumps(stats))
    kinds = ("C/C++", "CUDA")
    assert compiling.report_cache("torch", {}) == sum(hits.get(kind, 0) for kind in kinds)
    assert capsys.readouterr().out == f"torch: {said}"


def test_results_that_the_cache_did_not_keep(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    none: dict[str, dict[str, int]] = {"counts": {}}
    stats = {"stats": {"cache_hits": none, "cache_misses": none, "cache_write_errors": 2}}
    monkeypatch.setattr(compiling, "cache", lambda *_: json.dumps(stats))
    compiling.report_cache("torch", {})
    assert "warning: torch: the compile cache did not keep 2 results\n" in capsys.readouterr().out


def test_a_cache_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiling, "cache", lambda *_: "")
    assert compiling.report_cache("torch", {}) == 0
    assert capsys.readouterr().out == "warning: torch: the compile cache does not answer\n"


@pytest.mark.parametrize(
    "text",
    [
        "c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n",
        "sccache: Compiler killed by signal 9\n",
        "/bin/sh: line 1:  4711 Killed\n/bin/sh: 1: ptxas: Killed\n",
        "collect2: fatal error: ld terminated with signal 9 [Killed]\ncompilation terminated.\n",
        "virtual memory exhausted: Cannot allocate memory\n",
    ],
)
def test_running_out_of_memory_is_recognised(text: str) -> None:
    """Each was printed by gcc 12, nvcc 13.0 or sccache 0.16 after such an end, but for the shell's."""
    assert compiling.KILLED.search(text)


@pytest.mark.parametrize("text", ["error: 'Killed' was not declared\n", "-- Killed processes: 0\n"])
def test_other_failures_are_not(text: str) -> None:
    assert not compiling.KILLED.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "Fatal error: can't write 3888 bytes to section .rodata of x.o: 'No space left on device'\n",
        'sccache: caused by: Compiler not supported: "failed to write temporary file"\n',
    ],
)
def test_a_full_disk_is_recognised(text: str) -> None:
    """As gcc's assembler said it of a full build folder, and sccache of a full /tmp."""
    assert compiling.FULL.search(text)


def test_archives_with_and_without_a_folder_at_the_top(step: ModuleType, tmp_path: Path) -> None:
    header = tmp_path / "header.h"
    header.write_text("x")
    with tarfile.open(tmp_path / "llvm.tar.gz", "w:gz") as tar:
        tar.add(header, "llvm-1/include/header.h")
    with zipfile.ZipFile(tmp_path / "include.zip", "w") as zipped:
        zipped.write(header, "include/header.h")
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as zipped:
        zipped.write(header, "include/header.h")
        zipped.write(header, "LICENSE")
    for name in ("llvm.tar.gz", "include.zip", "more.zip"):
        folder = tmp_path / name.partition(".")[0]
        step.unpack_archive(tmp_path / name, folder)
        assert (folder / "include" / "header.h").read_text() == "x"
