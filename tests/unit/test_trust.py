"""SECURITY.md and docs/threats.md say what images.yaml and the release workflow do."""

from __future__ import annotations

import re
import shlex
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
    """The words of each command that checks an image, by the program's name."""
    text = (root / "docs" / "threats.md").read_text().replace("\\\n", " ")
    lines = re.findall(r"^(?:cosign|gh) .*$", text, re.MULTILINE)
    return {words[0]: words for words in map(shlex.split, lines)}


def after(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def project(config: Config) -> str:
    """Owner and name of the repository, from the homepage."""
    return config.homepage.removeprefix("https://github.com/")


def test_the_commands_name_what_is_pushed(config: Config, commands: dict[str, list[str]]) -> None:
    names = {f"{config.registry}/{config.owner}/{cuda.repository}" for cuda in config.cudas}
    assert commands["cosign"][2].rpartition(":")[0] in names
    oci = next(word for word in commands["gh"] if word.startswith("oci://"))
    assert oci.removeprefix("oci://") == commands["cosign"][2]


def test_the_workflow_signs_these_names(release: dict[str, Any], config: Config) -> None:
    """The owner of the names is that of the repository, which the homepage names."""
    where = release["env"]["TORCH_IMAGES_REGISTRY"]
    assert where == config.registry + "/${{ github.repository_owner }}"
    assert project(config).partition("/")[0] == config.owner
    job = release["jobs"]["image"]
    assert job["permissions"]["id-token"] == "write"
    [sign] = [s["run"] for s in job["steps"] if "cosign sign" in s.get("run", "")]
    assert 'cosign sign --yes "$TORCH_IMAGES_REGISTRY/$REPOSITORY@$subject"' in sign
    assert sign.startswith("for subject in $DIGEST $INDEX; do ")
    assert job["env"]["REPOSITORY"] == "${{ matrix.image.repository }}"


def identity(config: Config, ref: str, workflow: str = WORKFLOW) -> str:
    """What GitHub writes into the certificate of a workflow that it runs on a ref."""
    return f"{config.homepage}/{workflow}@{ref}"


@pytest.mark.parametrize(
    ("ref", "accepted"),
    [
        ("refs/tags/v1.0.0", True),
        ("refs/heads/main", True),
        ("refs/heads/other", False),
        ("refs/heads/main-2", False),
        ("refs/heads/v1.0.0", False),
        ("refs/tags/x", False),
        ("refs/tags/v1/x", False),
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


def test_a_release_begins_where_the_identity_says(
    root: Path, release: dict[str, Any], commands: dict[str, list[str]]
) -> None:
    assert (root / WORKFLOW).is_file()
    assert release["on"]["push"] == {"tags": ["v*"]}
    assert "workflow_dispatch" in release["on"]
    # https://docs.github.com/actions/concepts/security/openid-connect
    issuer = "https://token.actions.githubusercontent.com"
    assert after(commands["cosign"], "--certificate-oidc-issuer") == issuer


def test_attestations_are_those_of_the_same_workflow(
    config: Config, release: dict[str, Any], commands: dict[str, list[str]]
) -> None:
    assert after(commands["gh"], "--repo") == project(config)
    assert after(commands["gh"], "--signer-workflow") == f"{project(config)}/{WORKFLOW}"
    uses = [step.get("uses", "") for step in release["jobs"]["image"]["steps"]]
    # How the image was built, what is in it, and how its index was made.
    assert sum(use.startswith("actions/attest@") for use in uses) == 3


def test_it_is_said_that_nobody_ran_them(root: Path) -> None:
    text = (root / "docs" / "threats.md").read_text()
    assert "**The commands below were not run**" in text
    assert "Nothing is published yet" in text


def test_what_is_supported_is_images_yaml(root: Path, config: Config) -> None:
    text = (root / "SECURITY.md").read_text()
    number = {4: "four"}[config.keep]
    rows = re.findall(r"^\| (\d+\.\d+) \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    assert [(cuda, torch) for cuda, torch, _ in rows] == [
        (cuda.version, ", ".join(cuda.torch)) for cuda in config.cudas
    ]
    assert {f"{number} newer minor releases" in end for *_, end in rows[1:]} == {True}
    bases = re.findall(r"^\| `([a-z0-9.]+)` \| ([^|]+) \| [^|]+ \|$", text, re.MULTILINE)
    assert [name for name, _ in bases] == [base.name for base in config.bases]
    for (_, said), base in zip(bases, config.bases, strict=True):
        system = base.description.partition(",")[0] if base.suite else "Ubuntu 24.04"
        assert said.startswith(system)


def test_where_to_report_is_this_repository(root: Path, config: Config) -> None:
    text = (root / "SECURITY.md").read_text()
    assert f"({config.homepage}/security/advisories/new)" in text
    for name in ("nightly", "release"):
        assert f"`{name}.yml`" in text
        assert (root / ".github" / "workflows" / f"{name}.yml").is_file()


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/threats.md", "docs/licenses.md"])
def test_links_lead_somewhere(root: Path, page: str) -> None:
    path = root / page
    for target in re.findall(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)", path.read_text()):
        name, anchor = target
        there = path.parent / name if name else path
        assert there.is_file(), name
        if anchor:
            heads = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in heads}
            assert anchor[1:] in slugs, anchor
