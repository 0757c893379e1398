"""What the mutation tester is given; the mutants themselves are docs/mutation.md's."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.mutation.__main__ import MODULES, Result, plain, source
from benchmarks.mutation.__main__ import tests as files_of


@pytest.mark.parametrize("module", MODULES)
def test_modules_and_their_tests_are_there(root: Path, module: str) -> None:
    assert (root / source(module)).is_file()
    assert [name for name in files_of(module) if not (root / name).is_file()] == []


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_a_score(root: Path, module: str) -> None:
    assert f"\n| {module} | " in (root / "docs/mutation.md").read_text()


def test_a_property_becomes_a_method_made_a_property() -> None:
    text = (
        "class A:\n"
        "    @property\n"
        "    def one(self) -> int:\n"
        "        return 1\n"
        "\n"
        "    @classmethod\n"
        "    def two(cls) -> int:\n"
        "        return 2\n"
    )
    names: dict[str, type] = {}
    changed = plain(text)
    exec(changed, names)  # noqa: S102  the text above
    assert "@property" not in changed
    assert names["A"]().one == 1
    assert names["A"].two() == 2  # type: ignore[attr-defined]
    assert plain("x = 1\n") == "x = 1\n"


def test_a_row_of_the_table() -> None:
    assert Result("jobs", 200, ("a", "b", "c")).row == "| jobs | 200 | 197 | 3 | 98.5 % |"
