"""What the image is made from: its locks, its packages, and its bill of materials."""

from __future__ import annotations

import json
import sys
from typing import Any
from urllib.parse import unquote

import pytest
from testinfra.host import Host

# jsonschema can do without it, which checks the form of IRIs: its import takes two seconds, as long
# as all checks here together.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
from cyclonedx.schema import SchemaVersion  # noqa: E402
from cyclonedx.validation.json import JsonStrictValidator  # noqa: E402

Facts = dict[str, Any]

FOLDER = "/usr/share/torch-images"


@pytest.fixture(scope="module")
def sbom(host: Host) -> dict[str, Any]:
    """The bill of materials in the image."""
    document: dict[str, Any] = json.loads(host.file(f"{FOLDER}/cyclonedx.json").content_string)
    return document


@pytest.fixture(scope="module")
def installed(host: Host) -> dict[str, str]:
    """Version of each Debian package."""
    lines = host.check_output(r"dpkg-query -W -f '${Package} ${Version}\n'").splitlines()
    return dict(line.split(" ") for line in lines)


@pytest.fixture(scope="module")
def pinned(expected: Facts) -> dict[tuple[str, str], str]:
    """SHA-256, in hexadecimal, of each locked package in the image, by name and version.

    Wheels that another wheel replaces are left out.
    """
    documents = {name: json.loads(text) for name, text in expected["locks"].items()}
    roles = ["wheels", "extra_wheels", "base", "extra_debs", "compat", "unpacked"]
    roles += ["own_wheels", "own_debs"]
    roles += ["toolkit"] if expected["cuda_home"] else []
    kept, found = expected["packages"], {}
    for role in roles:
        names = documents["roles.json"].get(role, [])
        for name in [names] if isinstance(names, str) else names:
            lock = documents[f"{name}.json"]
            for one in (*lock.get("wheels", ()), *lock.get("debs", ()), *lock.get("archives", ())):
                replaced = "wheels" in role and (
                    kept[one["name"]].partition("+")[0] != one["version"].partition("+")[0]
                )
                if not replaced:
                    found[one["name"], one["version"]] = one["sha256"]
    return found


def test_carries_its_locks(host: Host, expected: Facts) -> None:
    names = host.file(f"{FOLDER}/lock").listdir()
    assert sorted(names) == sorted(expected["locks"])
    for name, text in expected["locks"].items():
        assert host.file(f"{FOLDER}/lock/{name}").content_string == text


def test_has_the_locked_debian_packages(installed: dict[str, str], expected: Facts) -> None:
    locked = expected["debs"]
    found = {name: installed.get(name) for name in locked}
    assert found == locked
    assert installed.keys() == locked.keys()


def test_bill_of_materials_is_valid(host: Host) -> None:
    text = host.file(f"{FOLDER}/cyclonedx.json").content_string
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_bill_of_materials_lists_everything(
    sbom: dict[str, Any],
    installed: dict[str, str],
    pinned: dict[tuple[str, str], str],
    expected: Facts,
) -> None:
    found: dict[str, set[tuple[str, str]]] = {"deb": set(), "pypi": set(), "generic": set()}
    for part in sbom["components"]:
        found[part["purl"].split(":")[1].split("/")[0]].add((part["name"], part["version"]))
    assert found["deb"] == set(installed.items()) | {
        (name, version) for name, version in pinned if name.startswith("cuda-compat-")
    }
    unpacked = {(name, facts["version"]) for name, facts in expected["unpacked"].items()}
    packages = {part for part in found["pypi"] if part[0] != expected["own_package"]}
    assert packages == set(expected["packages"].items()) | unpacked
    assert bool(expected["own_package"]) is (packages != found["pypi"])
    assert {name for name, _ in found["generic"]} == set(expected["toolkit"])


def test_bill_of_materials_has_the_locked_hashes(
    sbom: dict[str, Any], pinned: dict[tuple[str, str], str]
) -> None:
    found = {
        (part["name"], part["version"]): part["hashes"][0]["content"]
        for part in sbom["components"]
        if "hashes" in part
    }
    assert found == pinned


def test_bill_of_materials_names_licences_and_urls(sbom: dict[str, Any]) -> None:
    for part in sbom["components"]:
        assert part["licenses"], part["name"]
        name, _, version = part["purl"].split("?")[0].rpartition("/")[2].rpartition("@")
        assert (unquote(name), unquote(version)) == (part["name"], part["version"])


def test_bill_of_materials_names_known_licences(sbom: dict[str, Any]) -> None:
    """One sample or more of each form: metadata of wheels, DEP 5 copyright files, plain text."""
    licences = {
        part["name"]: str([licence.get("license", licence) for licence in part["licenses"]])
        for part in sbom["components"]
    }
    for name, words in {
        "torch": "BSD-3-Clause",
        "sympy": "BSD-3-Clause",
        "dash": "GPL-2.0-or-later",
        "libstdc++6": "see /usr/share/doc/libstdc++6/copyright",
    }.items():
        assert words in licences[name], name


def test_bill_of_materials_names_what_was_compiled(sbom: dict[str, Any], expected: Facts) -> None:
    found = {
        part["name"]: part["externalReferences"][0]
        for part in sbom["components"]
        if "externalReferences" in part
    }
    locks = {name: json.loads(text) for name, text in expected["locks"].items()}
    sources = locks.get(f"{locks['roles.json'].get('sources')}.json", {})
    trees, sdists = sources.get("trees", ()), sources.get("sdists", ())
    assert found.keys() == {one["name"] for one in (*trees, *sdists)}
    for tree in trees:
        assert found[tree["name"]]["url"].rpartition("@")[2] == tree["commit"]
    for sdist in sdists:
        assert found[sdist["name"]]["hashes"][0]["content"] == sdist["sha256"]


def test_bill_of_materials_is_dated_by_the_lock(sbom: dict[str, Any], expected: Facts) -> None:
    assert sbom["metadata"]["timestamp"].startswith(expected["lock_date"])
    component = sbom["metadata"]["component"]
    assert component["version"] == expected["labels"]["org.opencontainers.image.version"]


def test_constraints_are_what_is_installed(host: Host, expected: Facts) -> None:
    """Neither pip nor uv may change torch, Triton or the CUDA libraries of an image."""
    lines = host.file(f"{FOLDER}/constraints.txt").content_string.splitlines()
    held = dict(line.split("==") for line in lines if not line.startswith("#"))
    there = expected["packages"]
    libraries = {n for n in there if n.startswith("nvidia-") and "cutlass" not in n}
    assert {"torch", "triton"} | libraries <= held.keys()
    assert {n: v for n, v in held.items() if n in there} == {
        n: there[n] for n in held if n in there
    }


def test_pip_and_uv_are_told_of_the_constraints(config: Facts) -> None:
    told = dict(line.split("=", 1) for line in config["Env"])
    names = ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "UV_CONSTRAINT", "UV_BUILD_CONSTRAINT")
    assert {told[name] for name in names} == {f"{FOLDER}/constraints.txt"}
