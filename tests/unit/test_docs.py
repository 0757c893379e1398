"""The README says what the project does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import defaults
import pytest

from tests.documents import slugs
from torch_images.cli.collection import VERBS
from torch_images.cli.parser import parse

README = Path(__file__).resolve().parents[2] / "README.md"


def test_every_setting_of_the_profile_is_documented(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile of an image that has CUTLASS and nvcc, and lets processes share memory."""
    (tmp_path / "include/cutlass").mkdir(parents=True)
    (tmp_path / "nvcc").touch(mode=0o755)
    monkeypatch.setattr(defaults, "CUTLASS", str(tmp_path))
    monkeypatch.setattr(defaults, "cannot_share", lambda: "")
    asked = {"TORCH_IMAGE_GEMM": "cutlass", "PATH": str(tmp_path)}
    settings, _ = defaults.profile(asked)
    text = (root / "docs" / "runtime.md").read_text()
    table = {
        row.group(1): row.group(2)
        for row in re.finditer(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", text, re.MULTILINE)
    }
    assert len(settings) == 4
    for name, value in settings.items():
        assert table[name].startswith(f"`{value.replace(str(tmp_path), '/opt/cutlass')}`")
    assert table["CUDA_MODULE_LOADING"] == "not set"


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
def test_every_command_exists(line: str) -> None:
    words = shlex.split(line)
    parse(VERBS, words[0], words[1:])


@pytest.mark.parametrize("page", TEXTS, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    """Links of the project itself; those of the network are not asked."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\((?!https://)([^)\s]+)\)", text):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not heading or heading in slugs(target.read_text()), link
