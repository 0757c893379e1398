"""The bill of materials beside a build, and that of an image that others built on ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.fakes import workspace_of
from torch_images.errors import VerifyError
from torch_images.host.container import ExecResult
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace
from torch_images.verify import inventory, sbom

BILL = {
    "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
    "bomFormat": "CycloneDX",
    "specVersion": "1.6",
    "version": 1,
}


class Images:
    """An engine; `read` are the images that a container was made of."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def read_files(self, image: str, path: str) -> dict[str, str]:
        self.read.append(image)
        return {"cyclonedx.json": json.dumps(BILL | {"serialNumber": serial(image)})}


def serial(image: str) -> str:
    return f"urn:uuid:3e671687-395b-41f5-a30f-a58921a69b7{image[-1]}"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return workspace_of(tmp_path, tmp_path, made=tmp_path)


def test_save_reads_an_image_once(workspace: Workspace) -> None:
    images = Images()
    engine = cast("Engine", images)
    path = sbom.save("sha256:1", "cu130", workspace, engine)
    assert sbom.save("sha256:1", "cu130", workspace, engine) == path
    assert images.read == ["sha256:1"]
    assert sbom.save("sha256:2", "cu130", workspace, engine) == path
    assert serial("sha256:2") in path.read_text()
    assert images.read == ["sha256:1", "sha256:2"]


def part(purl: str, name: str, version: str) -> dict[str, Any]:
    facts = {"type": "library", "bom-ref": purl, "purl": purl, "name": name, "version": version}
    return {**facts, "hashes": [{"alg": "SHA-256", "content": "a" * 64}]}


DASH = "pkg:deb/debian/dash@0.5.12-12?arch=amd64&distro=debian-13"
LIBC = "pkg:deb/debian/libc6@2.41-12?arch=amd64&distro=debian-13&upstream=glibc"
COMPAT = part("pkg:deb/nvidia/cuda-compat-13-0@580?arch=amd64", "cuda-compat-13-0", "580")
BASE: dict[str, Any] = {
    **BILL,
    "serialNumber": "urn:uuid:3e671687-395b-41f5-a30f-a58921a69b79",
    "metadata": {"component": {"type": "container", "name": "torch-cu130", "version": "2.14.1-x"}},
    "components": [
        part("pkg:pypi/jinja2@3.1.6", "jinja2", "3.1.6"),
        part("pkg:pypi/ruamel-yaml@1", "ruamel-yaml", "1"),
        part("pkg:pypi/torch@2.14.1%2Bcu130", "torch", "2.14.1+cu130"),
        part(DASH, "dash", "0.5.12-12"),
        part(LIBC, "libc6", "2.41-12"),
        COMPAT,
    ],
}
INSTALLED: dict[str, Any] = {
    "wheels": [["Jinja2", "3.1.6"], ["ruamel.YAML", "1"], ["torch", "2.14.1+cu130"]],
    "debs": [["dash", "0.5.12-12", "amd64", "dash"], ["libc6", "2.41-12", "amd64", "glibc"]],
    "distro": "debian-13",
}


class Derived:
    """An engine with an image that has this bill, and this installed."""

    id = "sha256:1"

    def __init__(self, bill: object, installed: object) -> None:
        self.bill, self.installed = json.dumps(bill), json.dumps(installed)

    def read_files(self, image: str, path: str) -> dict[str, str]:
        return {path.rpartition("/")[2]: self.bill}

    def run(self, image: str, *command: str, **options: Any) -> ExecResult:
        assert (options["user"], options["network_mode"]) == ("0", "none")
        return ExecResult(0, f"a warning\n{self.installed}\n")

    def inspect(self, image: str) -> Derived:
        return self


def bill_of(installed: object, bill: object = BASE) -> tuple[str, list[str]]:
    messages: list[str] = []
    return sbom.read("mine", cast("Engine", Derived(bill, installed)), messages.append), messages


@pytest.mark.parametrize(
    ("change", "gone", "come"),
    [
        (
            {"wheels": [["jinja2", "3.1.5"], ["einops", "0.8"], *INSTALLED["wheels"][1:]]},
            {"pkg:pypi/jinja2@3.1.6"},
            {"pkg:pypi/jinja2@3.1.5", "pkg:pypi/einops@0.8"},
        ),
        ({"debs": INSTALLED["debs"][:1]}, {LIBC}, set()),
        (
            {"debs": [["dash", "1", "amd64", "dash"], *INSTALLED["debs"]]},
            set(),
            {DASH.replace("0.5.12-12", "1")},
        ),
    ],
    ids=["wheels", "a package gone", "a package more"],
)
def test_read_lists_installed_packages_of_a_derived_image(
    change: dict[str, Any], gone: set[str], come: set[str]
) -> None:
    """Not the base's, by which a scanner would miss, or make up, what is vulnerable."""
    text, messages = bill_of(INSTALLED | change)
    bill = json.loads(text)
    before = {c["purl"]: c for c in BASE["components"]}
    parts = {c["purl"]: c for c in bill["components"]}
    assert parts.keys() == before.keys() - gone | come
    assert all(parts[purl] == before[purl] for purl in before.keys() - gone)  # with their hashes
    assert COMPAT in bill["components"]  # it is only unpacked
    own = bill["metadata"]["component"]
    assert (own["name"], own["version"]) == ("mine", "sha256:1")
    assert own["pedigree"]["ancestors"] == [BASE["metadata"]["component"]]
    assert messages == [
        "mine is derived from torch-cu130:2.14.1-x: this SBOM lists the installed packages"
    ]


@pytest.mark.parametrize("facts", [[], "x", INSTALLED | {"wheels": [1]}, INSTALLED | {"debs": 5}])
def test_read_refuses_malformed_facts(facts: object) -> None:
    with pytest.raises(VerifyError, match=r"^mine: its installed packages cannot be listed: "):
        bill_of(facts)


def test_read_escapes_text_of_a_foreign_image() -> None:
    """Its bill names its base, and a program of its own says what is installed."""
    bad = "x\x1b]0;owned\x07\x1b[2J"
    component = {"type": "container", "name": bad, "version": "1"}
    bill = {**BASE, "metadata": {"component": component}}
    _, messages = bill_of({**INSTALLED, "wheels": []}, bill)
    image = Derived(BASE, INSTALLED)
    image.installed = bad
    with pytest.raises(VerifyError) as caught:
        sbom.read("mine", cast("Engine", image), messages.append)
    assert "owned" in messages[0]
    assert f"{messages[0]}{caught.value}".isprintable()


@pytest.mark.parametrize("text", ["[" * 100_000, '"\\u001b[2J"'])
def test_a_bill_of_a_foreign_image_is_hostile_until_parsed(text: str) -> None:
    image = Derived(BASE, INSTALLED)
    image.bill = text
    with pytest.raises(VerifyError, match="is not valid CycloneDX") as caught:
        sbom.read("mine", cast("Engine", image), print)
    assert str(caught.value).isprintable()


def test_packages_of_every_environment_count_once(tmp_path: Path) -> None:
    """Not those that a package carries inside it, which its own release names."""
    for place, name, version in (
        ("opt/venv/site", "a.b", "1"),
        ("app/.venv/site", "a.b", "2"),
        ("app/.venv/site/setuptools/_vendor", "carried", "3"),
    ):
        info = tmp_path / place / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (tmp_path / "app" / "broken-1.dist-info").mkdir()
    assert sorted(inventory.wheels(str(tmp_path))) == [("a.b", "1"), ("a.b", "2")]
