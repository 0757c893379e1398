"""CONTRIBUTING.md lists the integration tests that only `--all` runs, as they are marked."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "integration"
MARK = "pytest.mark.slow"


def listed() -> set[tuple[str, str]]:
    """The files and tests of the table; the test is "" for a row about a whole file, or some of it."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("## What only `--all` runs")[2].partition("\n\n## ")[0]
    rows = re.findall(r"^\| `(test_\w+\.py)(?:::(\w+))?(?:\[\w+\])?`", table, re.MULTILINE)
    return {(file, test) for file, test in rows}


def test_each_file_with_slow_tests_has_a_row() -> None:
    marked = {path.name for path in FOLDER.glob("test_*.py") if MARK in path.read_text()}
    assert {file for file, _ in listed()} == marked


def test_each_test_that_a_row_names_is_there() -> None:
    for file, test in listed():
        assert f"def {test}(" in (FOLDER / file).read_text() or not test
