"""ARCHITECTURE.md says what the code does: its folders, their imports, and the names in its walk."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from tests.unit.test_floors import FLOORS, floor, ours, parsed
from torch_images.cli.verb import Verb

ROOT = Path(__file__).resolve().parents[2]
TREES = parsed(ROOT)
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
FOLDERS = FLOORS[1:]  # the first is the ground, which has no folder
WALK = re.findall(r"`([a-z_]+(?:\.\w+)+)\(\)`", TEXT)
PLACES = re.findall(r"`([\w./]+(?:\.py|\.j2|/[a-z]+|/))`", TEXT)


def imports(folder: str) -> list[str]:
    """The other folders that a folder imports, in the order of the floors."""
    names = {
        FLOORS[floor(name)]
        for module, tree in TREES.items()
        if module.startswith(f"torch_images.{folder}.")
        for name in ours(TREES, tree)
    }
    return [other for other in FOLDERS if other in names - {folder}]


def row(folder: str) -> str:
    """The row that a folder should have: its docstring's first line, and what it really imports."""
    source = (ROOT / "torch_images" / folder / "__init__.py").read_text()
    summary = (ast.get_docstring(ast.parse(source)) or "").split("\n")[0]
    cells = (f"`{folder}`", summary, ", ".join(imports(folder)))
    return re.sub(" +", " ", f"| {' | '.join(cells)} |")


def test_the_table_of_floors_is_the_code() -> None:
    """Rows stand in the order of the floors; a failure shows the rows that the table should have."""
    table = TEXT.partition("## The floors")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `\w+` \|.*$", table, re.MULTILINE) == [row(f) for f in FOLDERS]


@pytest.mark.parametrize("name", WALK)
def test_the_walk_names_functions_that_exist(name: str) -> None:
    words = name.split(".")
    path = name if words[0] == "tasks" else f"torch_images.{name}"
    longest_first = [path.rsplit(".", cut)[0] for cut in range(1, path.count(".") + 1)]
    for module in longest_first:
        try:
            value: object = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        for attribute in path.removeprefix(module).strip(".").split("."):
            value = getattr(value, attribute)
        assert callable(value) or isinstance(value, Verb)
        return
    pytest.fail(f"no module has {name}")


@pytest.mark.parametrize("path", sorted(set(PLACES)))
def test_each_path_exists(path: str) -> None:
    assert (ROOT / path).exists() or (ROOT / "torch_images" / path).exists()


@pytest.mark.parametrize(
    ("name", "path"), re.findall(r"`(\w+)\(\)` in `([\w./]+)`", TEXT), ids=lambda word: word
)
def test_each_function_is_where_the_table_says(name: str, path: str) -> None:
    source = ast.parse((ROOT / path).read_text())
    assert name in {node.name for node in source.body if isinstance(node, ast.FunctionDef)}
