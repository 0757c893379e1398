"""What is checked: every program by linters, also without an extension; every extra in its image."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def tools(root: Path) -> dict[str, Any]:
    """The settings of the tools."""
    tables: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["tool"]
    return tables


@pytest.fixture(scope="module")
def programs(root: Path) -> set[str]:
    """Python's programs that have no extension."""
    paths = (p for p in (root / "scripts").rglob("*") if p.is_file() and not p.suffix)
    return {
        str(path.relative_to(root))
        for path in paths
        if "python" in path.read_text().partition("\n")[0]
    }


def test_programs_without_an_extension_are_linted(
    tools: dict[str, Any], programs: set[str]
) -> None:
    assert set(tools["ruff"]["extend-include"]) == programs


def test_programs_without_an_extension_are_type_checked(
    tools: dict[str, Any], programs: set[str]
) -> None:
    """By the one call without arguments; what mypy is told to look at is there."""
    assert programs <= set(tools["mypy"]["files"])
    assert tools["mypy"]["scripts_are_modules"]
