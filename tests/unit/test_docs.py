"""The README says what the project does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.documents import slugs
from torch_images.cli.collection import VERBS
from torch_images.cli.parser import of_program, parse

README = Path(__file__).resolve().parents[2] / "README.md"


TEXTS = [
    README,
    README.with_name("ARCHITECTURE.md"),
    README.with_name("CHANGELOG.md"),
    README.with_name("CONTRIBUTING.md"),
    README.with_name("SECURITY.md"),
    *sorted((README.parent / "docs").glob("*.md")),
    *sorted((README.parent / "docs" / "project").glob("*.md")),
]
COMMANDS = [
    line
    for text in TEXTS
    if text != README  # test_readme.py runs its commands
    for line in re.findall(r"^\./inv ([^>\n]*)", text.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize("line", COMMANDS)
def test_parse_takes_the_commands_of_the_docs(line: str) -> None:
    before = of_program().parse_args(shlex.split(line))
    parse(VERBS, before.verb, before.words)


@pytest.mark.parametrize("page", TEXTS, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    """Links of the project itself; those of the network are not asked."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\((?!https://)([^)\s]+)\)", text):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not heading or heading in slugs(target.read_text()), link
