"""SECURITY.md and docs/threats.md say what images.yaml and the release workflow do."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from torch_images.config.types import Config

WORKFLOW = ".github/workflows/release.yml"


@pytest.fixture(scope="module")
def release(root: Path) -> dict[str, Any]:
    document = yaml.load((root / WORKFLOW).read_text(), Loader=yaml.BaseLoader)  # noqa: S506
    assert isinstance(document, dict)
    return document


@pytest.fixture(scope="module")
def commands(root: Path) -> dict[str, list[str]]:
    """The words of each command that checks an image, as bash reads them, by the program's name."""
    text = (root / "docs" / "threats.md").read_text().replace("\\\n", " ")
    [settings] = re.findall(r"^REPO=.*$", text, re.MULTILINE)
    found = {}
    for line in re.findall(r"^(?:cosign|gh) .*$", text, re.MULTILINE):
        script = f"{settings}\nprintf '%s\\0' {line}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        words = done.stdout.split("\0")
        found[words[0]] = words
    return found


def after(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def identity(config: Config, ref: str, workflow: str = WORKFLOW) -> str:
    """What GitHub writes into the certificate of a workflow that it runs on a ref."""
    return f"{config.homepage}/{workflow}@{ref}"


@pytest.mark.parametrize(
    ("ref", "accepted"),
    [
        ("refs/tags/v1.0.0", True),
        ("refs/heads/main", True),
        ("refs/heads/other", False),
        ("refs/heads/v1.0.0", False),
        ("refs/pull/1/merge", False),
    ],
)
def test_the_identity_is_that_of_a_release(
    config: Config, commands: dict[str, list[str]], ref: str, *, accepted: bool
) -> None:
    pattern = re.compile(after(commands["cosign"], "--certificate-identity-regexp"))
    assert bool(pattern.search(identity(config, ref))) == accepted
    assert not pattern.search(identity(config, ref, ".github/workflows/ci.yml"))
    assert not pattern.search("https://example.org/?" + identity(config, ref))
    assert not pattern.search(identity(config, ref).replace("github.com", "githubxcom"))
