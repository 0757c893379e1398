"""A project in small, of which releases can be made on this machine, and GitHub's part in that.

Stand-ins: the wheels, of one module each, and the index that has them; NVIDIA's repository of compat
packages; the checks, of which those for torch are replaced; the registry, on loopback; another
engine of this machine, and an emulator, for GitHub's runners; and, for GitHub and Sigstore, programs
and functions that look at what they are given.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import requests

from tests.integration.standins import replace, small_project, take_facts
from tests.integration.support import ROOT
from tests.releases import T130
from tests.wheels import StandIn, make_wheel
from tests.workflows import Job
from torch_images.config.load import load_config
from torch_images.locks.facts import format_facts, read_facts, with_facts
from torch_images.locks.wheels import format_wheels, read_wheels
from torch_images.platforms import PLATFORMS

USER, PASSWORD = "ci", "secret"  # what support.Registry knows
NEWEST132 = "2.15.0"
PLAIN, OTHER = f"wheel-cu130-torch{T130}-py313", f"wheel-cu132-torch{NEWEST132}-py313"
POD = f"{PLAIN}-pod"
CATALOGUE = """\
catalogue:
  - {cuda: "13.0"}
  - {cuda: "13.0", variant: pod}
  - {cuda: "13.0", platform: linux/arm64}
  - {cuda: "13.2"}

"""
SMALL_POD = """\
  pod:
    description: A stand-in that says which ports it has.
    wheels: [torch-images-extra]
    command: pod-start
    folder: /workspace
    ports: [22, 8888]
"""
DAYS = ("2026-11-02", "2026-11-03", "2026-11-04")
# In place of the checks inside an image: one whose wheels are stand-ins passes these.
CHECKS = '''\
"""Stand-ins of the checks inside an image, whose packages are stand-ins themselves."""

import platform
from importlib import import_module
from importlib.metadata import version

import pytest

from conftest import EXPECTED


def test_versions(expected, observe):
    for name, value in {
        "cuda": expected["cuda"],
        "torch": f"{version('torch')}+cu{expected['cuda'].replace('.', '')}",
        "triton": version("triton"),
        "python": platform.python_version(),
    }.items():
        observe(name, value)
    assert version("torch") == expected["torch"].partition("+")[0]


def test_arch(arch, observe):
    observe(f"arch {arch}", "native")


@pytest.mark.parametrize("name", sorted(EXPECTED["packages"]))
def test_answer(name):
    assert import_module(name.replace("-", "_")).ANSWER == 42
'''
# Of the checks from outside, those that hold for a base with Python alone.
OUTSIDE = ("conftest", "container", "installed", "tree", "test_metadata")


def wheels(folder: Path) -> dict[str, StandIn]:
    """The stand-in wheels of all releases. The second one of `torch-images-extra` is broken."""
    folder.mkdir()
    names = ["triton-3.6.0", f"torch-{T130}", f"torch-{NEWEST132}"]
    names += ["torch-images-probe-1.0", "torch-images-probe-1.1"]
    names += ["torch-images-extra-1.0", "torch-images-extra-1.2"]
    split = {name: name.rpartition("-") for name in names}
    made = {key: make_wheel(folder, name, version) for key, (name, _, version) in split.items()}
    broken = {"torch_images_extra/__init__.py": b"ANSWER = 41\n"}  # it comes before the module
    made["torch-images-extra-1.1"] = make_wheel(folder, "torch-images-extra", "1.1", broken)
    return made


def project(folder: Path, locks: Path, scratch: Path, made: Mapping[str, StandIn]) -> None:
    """Make `folder` a project whose images are built in seconds, of four kinds, as CATALOGUE says.

    Its base for linux/arm64 and the compat packages need locks of their own.
    """
    small_project(folder, locks, scratch)
    for name in (".github", "docs", "site"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"):
        shutil.copy(ROOT / name, folder)
    (folder / "docs" / "ledger.csv").unlink(missing_ok=True)
    file = folder / "images.yaml"
    text = re.sub(r"catalogue:\n(?:  .*\n)+\n", CATALOGUE, file.read_text())
    text = re.sub(r"  pod:\n(?:    .*\n)+", SMALL_POD, text)
    file.write_text(text)
    install = ("scripts/image/finish/install-files", 'install -m 644 "$3/sshd.conf"')
    replace(folder, *install, 'install -D -m 644 "$3/sshd.conf"')  # no sshd made its folder
    for name in ("image", "container"):
        for path in (folder / "tests" / name).glob("*.py"):
            if path.stem not in OUTSIDE and path.stem != "conftest":
                path.unlink()
    (folder / "tests" / "container" / "test_versions.py").write_text(CHECKS)
    common = ["triton-3.6.0", "torch-images-probe-1.0"]
    for platform in PLATFORMS:
        write(folder, f"{PLAIN}{platform.suffix}", made, f"torch-{T130}", *common)
    write(folder, OTHER, made, f"torch-{NEWEST132}", *common)
    write(folder, POD, made, f"torch-{T130}", *common, "torch-images-extra-1.0")


def write(
    folder: Path, name: str, made: Mapping[str, StandIn], *versions: str, day: str = DAYS[0]
) -> None:
    """Write a lock of stand-in wheels, as `./inv lock` would have on that day."""
    path = folder / "locks" / f"{name}.txt"
    old = read_wheels(path)
    held = sorted((made[version].locked for version in versions), key=lambda wheel: wheel.name)
    request = [f"torch=={made[versions[0]].locked.version}"]
    request += [wheel.name for wheel in held if wheel.name == "torch-images-extra"]
    lock = dataclasses.replace(
        old,
        date=dt.date.fromisoformat(day),
        request=tuple(sorted(request)),
        wheels=tuple(held),
    )
    path.write_text(format_wheels(lock))
    if name == POD:
        return
    take_facts(folder, lock)
    path = folder / "locks" / f"{name.replace('wheel-', 'release-')}.yaml"
    found = read_facts(path)
    facts = dataclasses.replace(found.facts, fits=())  # no image here has extras
    path.write_text(
        format_facts(dataclasses.replace(found, request=lock.request, facts=facts, read=()))
    )


def trust(folder: Path, url: str, key: str) -> None:
    """Let a project take compat packages from a stand-in repository, for each platform."""
    compat = with_facts(load_config(folder / "images.yaml"), folder / "locks").compat
    for platform, machine in zip(PLATFORMS, ("x86_64", "sbsa"), strict=True):
        replace(folder, "images.yaml", compat.repository(platform), url.replace("x86_64", machine))
    replace(folder, "images.yaml", compat.key, key)


def backdate(folder: Path) -> None:
    """Let all locks be of the first day, so that newer ones can follow today."""
    for path in (folder / "locks").glob("*.txt"):
        text = re.sub(r"^# date: .*$", f"# date: {DAYS[0]}", path.read_text(), flags=re.MULTILINE)
        path.write_text(text)


PROGRAMS = {
    # All that needs root is put where this user may write.
    "sudo": 'exec "$@"',
    "cosign": 'echo "$*" >>"$SIGNED"',
    "gh": """\
echo "$*" >>"$ASKED"
case "$1 $2" in
  "run download") mkdir -p "$5" && cp -r "$ARTIFACTS/$3/." "$5" ;;
  "release list") cat "$RELEASES/last" ;;
  "release create")
    mkdir "$RELEASES/$3" && echo "$3" >"$RELEASES/last"
    while [[ $1 != --notes-file ]]; do shift; done
    cp "${@:2}" "$RELEASES/$GITHUB_REF_NAME" ;;
esac
""",
}


@dataclass(frozen=True, kw_only=True)
class GitHub:
    """GitHub's and Sigstore's part: what was signed, attested, uploaded, released, in files.

    `origin` is the repository, `host` the registry.
    """

    folder: Path
    origin: Path
    host: str

    def env(self, run: str) -> dict[str, str]:
        """What its programs are told, in a run of a workflow."""
        for name in ("tools", "artifacts", "releases"):
            (self.folder / name).mkdir(exist_ok=True)
        (self.folder / "releases" / "last").touch()
        for name, script in PROGRAMS.items():
            program = self.folder / "tools" / name
            program.write_text(f"#!/usr/bin/env bash\nset -e\n{script}")
            program.chmod(0o755)
        return {
            "SIGNED": str(self.folder / "signed"),
            "ASKED": str(self.folder / "asked"),
            "ARTIFACTS": str(self.folder / "artifacts"),
            "RELEASES": str(self.folder / "releases"),
            "GITHUB_RUN_ID": run,
            "GITHUB_REF_NAME": run,
            "GITHUB_SHA": self.commit(run),
        }

    def commit(self, ref: str) -> str:
        """The commit that a name stands for."""
        return self.git("rev-parse", f"{ref}^{{commit}}").strip()

    def git(self, *words: str) -> str:
        """Run git in the repository."""
        command = ["git", "-C", str(self.origin), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def check_out(self, job: Job, given: Mapping[str, str]) -> None:
        """actions/checkout: the commit with its history, and the environment that ./inv makes."""
        depth = [] if given.get("fetch-depth") == "0" else ["--depth=1"]
        clone = [
            "git",
            "clone",
            "--quiet",
            *depth,
            "--config=advice.detachedHead=false",
            "--branch",
            job.env["GITHUB_REF_NAME"],
        ]
        subprocess.run([*clone, f"file://{self.origin}", str(job.folder)], check=True)
        (job.folder / ".git" / "info" / "exclude").write_text(".venv\n")
        (job.folder / ".venv").symlink_to((ROOT / ".venv").resolve())

    def log_in(self, job: Job, given: Mapping[str, str]) -> None:
        """docker/login-action."""
        command = ["docker", "login", "--username", given["username"], "--password-stdin"]
        subprocess.run(
            [*command, given["registry"]],
            input=given["password"],
            env=job.env,
            check=True,
            capture_output=True,
            text=True,
        )

    def pages(self, job: Job, given: Mapping[str, str]) -> None:
        """actions/upload-pages-artifact."""
        assert (job.folder / given["path"] / "index.html").exists()

    def scan(self, job: Job, given: Mapping[str, str]) -> None:
        """anchore/scan-action."""
        self.sbom(job, given["sbom"])

    @staticmethod
    def sbom(job: Job, name: str) -> None:
        """Check that a file is an SBOM which names torch."""
        sbom = json.loads((job.folder / name).read_text())
        assert sbom["bomFormat"] == "CycloneDX"
        assert "torch" in {part["name"] for part in sbom["components"]}

    def upload(self, job: Job, given: Mapping[str, str]) -> None:
        """actions/upload-artifact: one file, or several paths below the folder of the job."""
        paths = given["path"].split()
        folder = self.folder / "artifacts" / job.env["GITHUB_RUN_ID"] / given["name"]
        for name in paths:
            source, target = job.folder / name, folder / name
            assert source.exists(), f"{given['name']} has no {name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)

    def attest(self, job: Job, given: Mapping[str, str]) -> None:
        """actions/attest: of what the registry has, with an SBOM if one is named."""
        assert given["push-to-registry"] == "true"
        host, _, repository = given["subject-name"].partition("/")
        assert host == self.host
        assert self.manifest(repository, given["subject-digest"])
        if "sbom-path" in given:
            self.sbom(job, given["sbom-path"])
        with (self.folder / "attested").open("a") as file:
            file.write(f"{given['subject-name']}@{given['subject-digest']}\n")

    def manifest(self, repository: str, reference: str) -> dict[str, object] | None:
        """A manifest or index of the registry, with its digest under "digest"; None if absent."""
        kinds = ("index", "manifest")
        answer = requests.get(
            f"http://{self.host}/v2/{repository}/manifests/{reference}",
            headers={"Accept": ", ".join(f"application/vnd.oci.image.{k}.v1+json" for k in kinds)},
            auth=(USER, PASSWORD),
            timeout=60,
        )
        if answer.status_code == requests.codes.not_found:
            return None
        answer.raise_for_status()
        return {**answer.json(), "digest": answer.headers["Docker-Content-Digest"]}

    def tags(self, repository: str) -> dict[str, str]:
        """The digest of each tag of the registry."""
        url = f"http://{self.host}/v2/{repository}/tags/list"
        answer = requests.get(url, auth=(USER, PASSWORD), timeout=60)
        names = answer.json().get("tags") or ()
        found = {name: self.manifest(repository, name) for name in names}
        return {name: str(held["digest"]) for name, held in found.items() if held}
