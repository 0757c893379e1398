"""Modules import without circles, and each folder of torch_images imports only lower ones."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

# From the ground up. The modules beside the folders are the ground: images copy some of them.
FLOORS = (
    *("", "inside", "config", "host", "oci", "locks", "fetch", "layers", "build", "verify"),
    *("maintain", "pick", "publish", "pipeline", "cli"),
)
# Where functions import modules of the project, so that other verbs start faster: all of cli, and
LAZY = {"torch_images.verify.ledger"}
Trees = Mapping[str, ast.Module]


@pytest.fixture(scope="module")
def trees(root: Path) -> Trees:
    """Each module by its dotted name."""
    return parsed(root)


def parsed(root: Path) -> Trees:
    """Each module of torch_images by its dotted name."""
    paths = (root / "torch_images").rglob("*.py")
    names = {path: path.relative_to(root).with_suffix("").parts for path in paths}
    return {
        ".".join(parts).removesuffix(".__init__"): ast.parse(path.read_text())
        for path, parts in names.items()
    }


@functools.cache
def imported(tree: ast.AST) -> frozenset[str]:
    """What a module imports, in functions and for types too."""
    return frozenset(_imported(tree))


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports name the whole module"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(trees: Trees, tree: ast.AST) -> set[str]:
    """The modules of this project that a module imports."""
    names = {n if n in trees else n.rpartition(".")[0] for n in imported(tree)}
    return (names & trees.keys()) - {"torch_images"}


def floor(module: str) -> int:
    """The floor of a module such as "torch_images.build.bake"; 0 for one on the ground."""
    folder = module.split(".")[1:2]
    return FLOORS.index(folder[0]) if folder and folder[0] in FLOORS else 0


def test_each_floor_imports_only_lower_ones(trees: Trees) -> None:
    upward = {
        (module, name)
        for module, tree in trees.items()
        for name in ours(trees, tree)
        if floor(name) > floor(module)
    }
    # `python -m torch_images` stands on the ground and is the door to the verbs.
    assert upward == {("torch_images.__main__", "torch_images.cli.program")}


def test_no_circle_of_modules(trees: Trees) -> None:
    graph = {module: ours(trees, tree) for module, tree in trees.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_only_the_verbs_import_in_functions(trees: Trees) -> None:
    lazy = {
        module
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and ours(trees, node)
    }
    assert {module for module in lazy if ".cli." not in module} == LAZY


def test_every_folder_is_a_floor_and_says_what_it_is_for(trees: Trees) -> None:
    folders = {module.split(".")[1] for module in trees if module.count(".") > 1}
    assert folders == set(FLOORS) - {""}
    for folder in folders:
        text = ast.get_docstring(trees[f"torch_images.{folder}"]) or ""
        assert "Enters: " in text, folder
        assert " Leaves: " in text, folder


@pytest.mark.parametrize(
    ("packages", "modules"),
    [
        ({"docker"}, {"host.engine", "host.container", "host.connection"}),
        ({"subprocess", "pty", "multiprocessing"}, {"host.runner"}),
    ],
)
def test_only_some_modules_import_a_package(
    trees: Trees, packages: set[str], modules: set[str]
) -> None:
    users = {m for m, tree in trees.items() if packages & {n.split(".")[0] for n in imported(tree)}}
    assert users == {f"torch_images.{module}" for module in modules}
