"""Find the names that a source tree reads as options of its build.

PyTorch passes every variable that looks like an option to CMake, also if nothing reads it. So a
misspelt option has no effect, and there is no message about it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_CMAKE = re.compile(
    r"\b(?:option|cmake_dependent_option)\s*\(\s*(\w+)"
    r"|\bENV\{(\w+)\}"
    r"|\bset\s*\(\s*(\w+)[^()#]*?\bCACHE\b"
    r"|\bDEFINED\s+(?:ENV\{)?(\w+)"
)
_PYTHON = re.compile(r"""["']([A-Z][A-Z0-9_]{2,})["']""")
# Names that CMake itself or compilers read.
_CONVENTIONS = re.compile(r"CMAKE_\w+|CC|CXX|C(?:XX)?FLAGS|LDFLAGS|CUDAHOSTCXX|\w+_(?:ROOT|DIR)")


def read_by(tree: Path) -> frozenset[str]:
    """The names that the build files of a tree read. Those of its submodules do not count."""
    names: set[str] = set()
    for path in _build_files(tree):
        text = path.read_text(errors="replace")
        if path.suffix == ".py":
            names.update(_PYTHON.findall(text))
        else:
            text = re.sub(r"#.*", "", text)
            names.update(name for groups in _CMAKE.findall(text) for name in groups if name)
    return frozenset(names)


def unread(names: Iterable[str], tree: Path) -> list[str]:
    """Those of `names` that nothing in a tree reads, in the order of `names`."""
    known = read_by(tree)
    return [n for n in names if n not in known and not _CONVENTIONS.fullmatch(n)]


def refusal(names: Iterable[str], tree: Path) -> str:
    """The options that nothing in a tree reads, as text, each with a similar name if there is one.

    "" if the tree reads all of them.
    """
    known = read_by(tree)
    told = []
    for name in unread(names, tree):
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        told.append(f"{name} (did you mean {near[0]}?)" if near else name)
    return ", ".join(told)


def _build_files(tree: Path) -> Iterator[Path]:
    for pattern in ("CMakeLists.txt", "setup.py", "pyproject.toml"):
        yield from tree.glob(pattern)
    for folder in ("aten", "c10", "caffe2", "torch"):
        yield from (tree / folder).glob("**/CMakeLists.txt")
    for folder in ("cmake", "tools", "build_tools", "python"):
        yield from (tree / folder).glob("**/*.cmake")
        yield from (tree / folder).glob("**/*.py")
