"""The folders of torch_images/ are floors: each imports only lower ones."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

# From the ground up. The modules beside the folders are the ground: images copy some of them.
FLOORS = (
    *(
        "",
        "inside",
        "config",
        "host",
        "oci",
        "bench",
        "locks",
        "fetch",
        "layers",
        "build",
        "verify",
    ),
    *("maintain", "publish", "cli"),
)


def floor(module: str) -> str:
    """The folder of a module such as "torch_images.build.bake"; "" for one on the ground."""
    parts = module.split(".")[1:]
    return parts[0] if parts and parts[0] in FLOORS else ""


def imported(source: str) -> Iterator[str]:
    """The modules of this project that a source imports, wherever it does so."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports name the whole module"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def upward(path: str, source: str) -> list[str]:
    """The imports of a file that lead to a higher floor."""
    module = "torch_images." + path.removesuffix(".py").replace("/", ".")
    own = FLOORS.index(floor(module))
    ours = (name for name in imported(source) if name.startswith("torch_images."))
    return [name for name in ours if FLOORS.index(floor(name)) > own]


def modules(root: Path) -> dict[str, str]:
    """The text of each module by its path below torch_images/."""
    package = root / "torch_images"
    return {str(path.relative_to(package)): path.read_text() for path in package.rglob("*.py")}


def test_each_floor_imports_only_lower_ones(root: Path) -> None:
    found = {path: names for path, text in modules(root).items() if (names := upward(path, text))}
    # `python -m torch_images` stands on the ground and is the door to the verbs.
    assert found == {"__main__.py": ["torch_images.cli.program.main"]}


def test_every_folder_is_a_floor_and_says_what_it_is_for(root: Path) -> None:
    held = modules(root)
    folders = {path.split("/")[0] for path in held if "/" in path}
    assert folders == set(FLOORS) - {""}
    for folder in folders:
        text = ast.get_docstring(ast.parse(held[f"{folder}/__init__.py"])) or ""
        assert "Enters: " in text, folder
        assert " Leaves: " in text, folder


def test_only_three_modules_speak_to_docker(root: Path) -> None:
    """The folder docker/ is a namespace, too: what is imported is docker-py all the same."""
    found = {
        path
        for path, text in modules(root).items()
        if any(name.split(".")[0] == "docker" for name in imported(text))
    }
    assert found == {"host/engine.py", "host/container.py", "host/connection.py"}


def test_only_the_runner_starts_processes(root: Path) -> None:
    starters = {"subprocess", "pty", "multiprocessing"}
    found = {
        path
        for path, text in modules(root).items()
        if any(name.split(".")[0] in starters for name in imported(text))
    }
    assert found == {"host/runner.py"}
