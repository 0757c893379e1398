"""What the mutation tester is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.mutation.__main__ import MODULES, source
from benchmarks.mutation.__main__ import tests as files_of


@pytest.mark.parametrize("module", MODULES)
def test_modules_and_their_tests_are_there(root: Path, module: str) -> None:
    assert (root / source(module)).is_file()
    assert [name for name in files_of(module) if not (root / name).is_file()] == []
