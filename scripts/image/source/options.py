"""Find the names that a source tree reads as options of its build.

PyTorch passes every variable that looks like an option to CMake, also if nothing reads it. Triton's
setup.py passes a few by name, so most options of its CMake cannot be reached at all. In both cases
an option has no effect, and there is no message about it.

A name counts if it has a way from the environment to a reader:

- Python of the build has it as a string. That is setup.py, what it imports from the tree, and the
  tree's own build backend.
- CMake reads it from the environment, as $ENV{NAME}.
- CMake reads it as a variable, and the build forwards all variables that start as it does. Of
  CMAKE_* any name counts then, because CMake has many of its own.
- CMake itself or the compilers read it: _CONVENTIONS, the only list of such names.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_VARIABLE = re.compile(
    r"\b(?:option|cmake_dependent_option)\s*\(\s*(\w+)"
    r"|\bset\s*\(\s*(\w+)[^()#]*?\bCACHE\b"
    r"|\bDEFINED\s+(\w+)(?!\w*\{)",
    re.IGNORECASE,
)
_FROM_ENVIRONMENT = re.compile(r"\bENV\{(\w+)\}")
# A file that reads variables whose names it computes: its words are their names.
_COMPUTED = re.compile(r"\bENV\{\$\{")
_WORD = re.compile(r"(?<![\w$])[A-Z]\w{2,}")
_NAME = re.compile(r"[A-Z][A-Za-z0-9_]{2,}")
_PREFIX = re.compile(r"[A-Z][A-Z0-9]*_")
# What CMake 3.31 documents as its environment, and what it gives to compilers.
_CONVENTIONS = re.compile(
    r"CC|CXX|CUDACXX|CUDAHOSTCXX|CUDAARCHS|(?:C|CXX|CUDA|LD)FLAGS|\w+_(?:ROOT|DIR)"
    r"|CMAKE_(?:\w+_(?:COMPILER|LINKER)_LAUNCHER|(?:PREFIX|INCLUDE|LIBRARY|PROGRAM)_PATH"
    r"|BUILD_TYPE|BUILD_PARALLEL_LEVEL|GENERATOR|TOOLCHAIN_FILE|EXPORT_COMPILE_COMMANDS"
    r"|INSTALL_PREFIX|COLOR_DIAGNOSTICS)"
)


@dataclass(frozen=True)
class Reads:
    """What a tree's build reads of its environment.

    `names`: single names; `prefixes`: what all names begin with that are forwarded to CMake;
    `variables`: what CMake reads as its own variables.
    """

    names: frozenset[str]
    prefixes: tuple[str, ...]
    variables: frozenset[str]

    @property
    def known(self) -> frozenset[str]:
        """The names that the tree's own files give an effect."""
        return self.names | {v for v in self.variables if v.startswith(self.prefixes)}

    def __contains__(self, name: str) -> bool:
        """Whether a name has an effect."""
        of_cmake = name.startswith("CMAKE_") and "CMAKE_" in self.prefixes
        return of_cmake or name in self.known or bool(_CONVENTIONS.fullmatch(name))


def reads(tree: Path) -> Reads:
    """What the build of a tree reads. Files of its submodules do not count."""
    names: set[str] = set()
    prefixes: set[str] = set()
    variables: set[str] = set()
    for path in _python(tree):
        for text, forwards in _strings(path):
            if forwards and _PREFIX.fullmatch(text):
                prefixes.add(text)
            elif _NAME.fullmatch(text):
                names.add(text)
    for path in _cmake(tree):
        text = re.sub(r"#.*", "", path.read_text(errors="replace"))
        names.update(_FROM_ENVIRONMENT.findall(text))
        variables.update(n for groups in _VARIABLE.findall(text) for n in groups if n)
        if _COMPUTED.search(text):
            words = set(_WORD.findall(text))
            prefixes.update(word for word in words if _PREFIX.fullmatch(word))
            names.update(words)
    return Reads(frozenset(names), tuple(sorted(prefixes)), frozenset(variables))


def unread(names: Iterable[str], tree: Path) -> list[str]:
    """Those of `names` that have no effect on the build of a tree, in the order of `names`."""
    options = reads(tree)
    return [name for name in names if name not in options]


def refusal(names: Iterable[str], tree: Path) -> str:
    """The options that have no effect, as text, each with a similar name if there is one.

    "" if the build of the tree reads all of them.
    """
    options = reads(tree)
    refused = []
    for name in (name for name in names if name not in options):
        near = difflib.get_close_matches(name, options.known, n=1, cutoff=0.8)
        if name in options.variables:
            refused.append(f"{name} (its CMake has it, but the build does not pass it on)")
        else:
            refused.append(f"{name} (did you mean {near[0]}?)" if near else name)
    return ", ".join(refused)


def lack(needs: Mapping[str, str], tree: Path) -> str:
    """Which folders a tree lacks that features are compiled from, as text; "" if it has them all.

    `needs` has the folder, relative to the tree, by the feature's name. An empty folder is a
    submodule that was not checked out.
    """
    missing = [
        f"{folder}, which feature {feature} is compiled from"
        for feature, folder in needs.items()
        if not (tree / folder).is_dir() or not any((tree / folder).iterdir())
    ]
    return f"lacks {'; '.join(missing)}: fetch it, or leave the feature out" if missing else ""


def _strings(path: Path) -> Iterator[tuple[str, bool]]:
    """The strings of a Python file, each with whether `startswith` compares with it."""
    try:
        tree = ast.parse(path.read_text(errors="replace"))
    except (SyntaxError, ValueError):
        return
    compared = {
        id(node)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "startswith"
        for argument in call.args
        for node in ast.walk(argument)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, id(node) in compared


def _python(tree: Path) -> Iterator[Path]:
    """The files of a build in Python: setup.py, and what it imports from the tree in turn.

    Also a build backend that is a file of the tree.
    """
    project = tree / "pyproject.toml"
    text = project.read_text(errors="replace") if project.is_file() else ""
    backend = re.search(r"^build-backend\s*=\s*[\"']([\w.]+)", text, re.MULTILINE)
    folder = re.search(r"^backend-path\s*=\s*\[\s*[\"']([\w./-]+)", text, re.MULTILINE)
    waiting = [tree / "setup.py"]
    if backend and folder:
        waiting += _module(tree / folder[1], backend[1])
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        yield path
        waiting += _imports(path, tree)


def _imports(path: Path, tree: Path) -> list[Path]:
    """The places below `tree` where the modules may be that a Python file imports."""
    try:
        parsed = ast.parse(path.read_text(errors="replace"))
    except (SyntaxError, ValueError):
        return []
    candidates = []
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            candidates += [p for alias in node.names for p in _module(tree, alias.name)]
        elif isinstance(node, ast.ImportFrom):
            start = path.parents[node.level - 1] if node.level else tree
            module = f"{node.module}." if node.module else ""
            candidates += [
                p for alias in node.names for p in _module(start, f"{module}{alias.name}")
            ]
            candidates += _module(start, node.module) if node.module else []
    return candidates


def _module(folder: Path, name: str) -> list[Path]:
    path = folder.joinpath(*name.split("."))
    return [path.with_suffix(".py"), path / "__init__.py"]


def _cmake(tree: Path) -> Iterator[Path]:
    yield from tree.glob("CMakeLists.txt")
    for folder in ("aten", "c10", "caffe2", "torch"):
        yield from (tree / folder).glob("**/CMakeLists.txt")
    for folder in ("cmake", "tools", "build_tools", "python"):
        yield from (tree / folder).glob("**/*.cmake")
