"""What the mutation tester is given; the mutants themselves are docs/mutation.md's."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.mutation.__main__ import MODULES, source
from benchmarks.mutation.__main__ import tests as files_of


@pytest.mark.parametrize("module", MODULES)
def test_modules_and_their_tests_are_there(root: Path, module: str) -> None:
    assert (root / source(module)).is_file()
    assert [name for name in files_of(module) if not (root / name).is_file()] == []


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_a_score(root: Path, module: str) -> None:
    assert f"\n| {module} | " in (root / "docs/mutation.md").read_text()
