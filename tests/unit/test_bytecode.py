"""scripts/image/build/compile-bytecode: equal sources give equal bytecode, on any machine."""

from __future__ import annotations

import marshal
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Names that many files have, which the interpreter keeps once for all.
SOURCE = "def {name}(self, value, name='{name}'):\n    return self, value, name, ('shared', 'x')\n"
FOLDERS = {"a": 5, "a/b": 3, "c": 1}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder, count in FOLDERS.items():
        (tmp_path / "t" / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            path = tmp_path / "t" / folder / f"m{number}.py"
            path.write_text(SOURCE.format(name=f"f{number}"))
    (tmp_path / "t" / "a" / "template.py").write_text("{{ not Python }} !\n")
    return tmp_path / "t"


def compiled(root: Path, tree: Path, **env: str) -> dict[str, bytes]:
    script = root / "scripts" / "image" / "build" / "compile-bytecode"
    subprocess.run([sys.executable, script, tree], env={**os.environ, **env}, check=True)
    return {str(p.relative_to(tree)): p.read_bytes() for p in sorted(tree.rglob("*.pyc"))}


def test_compile_bytecode_of_every_file(root: Path, tree: Path) -> None:
    cached = compiled(root, tree)
    assert len(cached) == sum(FOLDERS.values())  # all but the template
    flags = {int.from_bytes(data[4:8], "little") for data in cached.values()}
    assert flags == {1}  # by hash, unchecked
    names = {marshal.loads(data[16:]).co_names for data in cached.values()}  # noqa: S302  just written
    assert names == {(f"f{number}",) for number in range(5)}


def test_compile_bytecode_leaves_out_tests(root: Path, tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    kept = ("torch/testing/a.py", "latest/a.py", "contests/x/a.py", "test.py")
    left_out = ("torch/testing/_internal/a.py", "numpy/tests/a.py", "test/x/a.py")
    for path in (*kept, *left_out):
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text("x = 1\n")
    cached = {Path(path).parent.parent for path in compiled(root, site)}
    assert cached == {Path(path).parent for path in kept}


def test_compile_bytecode_on_one_processor_and_with_other_seeds(root: Path, tree: Path) -> None:
    first = compiled(root, tree, PYTHONHASHSEED="7")
    for cache in tree.rglob("__pycache__"):
        shutil.rmtree(cache)
    all_of_them = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_of_them)})
    try:
        assert compiled(root, tree, PYTHONHASHSEED="11") == first
    finally:
        os.sched_setaffinity(0, all_of_them)


def clean(tree: Path) -> None:
    for cache in tree.rglob("__pycache__"):
        shutil.rmtree(cache)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    return folder


def test_bytecode_is_taken_from_the_cache(root: Path, tree: Path, cache: Path) -> None:
    first = compiled(root, tree, BYTECODE_CACHE=str(cache))
    for path in cache.iterdir():
        made = marshal.loads(path.read_bytes())  # noqa: S302  made above
        path.write_bytes(marshal.dumps({n: b"kept" if "m4." in n else c for n, c in made.items()}))
    clean(tree)
    second = compiled(root, tree, BYTECODE_CACHE=str(cache))
    assert [name for name in first if first[name] != second[name]] == [
        name for name, data in second.items() if data == b"kept"
    ]
    assert b"kept" in second.values()


def test_changed_source_is_compiled_again(root: Path, tree: Path, cache: Path) -> None:
    first = compiled(root, tree, BYTECODE_CACHE=str(cache))
    (tree / "c" / "m0.py").write_text("x = 1\n")
    clean(tree)
    second = compiled(root, tree, BYTECODE_CACHE=str(cache))
    clean(tree)
    assert second == compiled(root, tree) != first


def test_sources_elsewhere_are_compiled_again(root: Path, tree: Path, cache: Path) -> None:
    compiled(root, tree, BYTECODE_CACHE=str(cache))
    clean(tree)
    elsewhere = tree.rename(tree.with_name("elsewhere"))
    second = compiled(root, elsewhere, BYTECODE_CACHE=str(cache))
    clean(elsewhere)
    assert second == compiled(root, elsewhere)
