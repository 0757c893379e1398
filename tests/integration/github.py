"""What is GitHub's in a release, on this machine: repository, runners, registry, Sigstore.

A registry on loopback stands in for ghcr.io. An engine of its own stands in for the machines that
build, an empty one for those that build again, and an emulator for an Arm processor. Programs and
functions that look at what they are given stand in for the rest.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from tests.integration.standins import commit
from tests.integration.support import ROOT
from tests.wheels import StandIn
from tests.workflows import Context, Job, Runner, Settings, machine_environment

USER, PASSWORD = "ci", "secret"  # what support.Registry knows
# What stands in for the actions that workflows use: none of their servers can be reached.
ACTIONS = {
    "actions/checkout": "a clone of the project, as deep as the workflow says",
    "docker/login-action": "docker login, to the registry on loopback, which wants a password",
    "actions/upload-artifact": "a folder; the file must be there",
    "actions/attest": "a note; the registry must have the subject",
    "sigstore/cosign-installer": "a program that notes what it signs",
    "actions/upload-pages-artifact": "the folder must have a first page",
    "actions/deploy-pages": "nothing",
    "anchore/scan-action": "the file must be an SBOM with torch in it",
}
# Scripts that are not run, and why.
LEFT_OUT = {
    "Configure Docker": "it would restart the engine of this machine; another engine stands in",
}
PROGRAMS = {
    # All that needs root is put where this user may write.
    "sudo": 'exec "$@"',
    "cosign": 'echo "$*" >>"$SIGNED"',
    # The real one refuses without a token, and outside a clone without a repository.
    "gh": """\
[[ -n $GH_TOKEN ]]
[[ -n ${GH_REPO:-} || -d .git ]]
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
            program.write_text(f"#!/usr/bin/env bash\nset -eu\n{script}")
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


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The small project, its wheels, and what stands in for GitHub, registry and machines.

    `builder` and `other` are engines: that of the runners that build, and an empty one.
    """

    github: GitHub
    made: Mapping[str, StandIn]
    env: Mapping[str, str]
    builder: str
    other: str

    def machine(self, job: str, ref: str) -> dict[str, str]:
        """The environment of a job of GitHub's."""
        host = self.other if job == "reproduce" else self.builder
        told = self.github.env(ref)
        path = f"{self.github.folder / 'tools'}:{os.environ['PATH']}"
        return {**machine_environment(), **self.env, **told, "DOCKER_HOST": host, "PATH": path}

    def runner(self, ref: str) -> Runner:
        """Runs workflows of the commit that a tag names."""
        text = {"ghcr.io": self.github.host, "/mnt/": f"{self.github.folder}/mnt/"}

        def there(words: str) -> str:
            for far, near in text.items():
                words = words.replace(far, near)
            return words

        github = Context(
            repository="owner/torch-images", repository_owner="owner", actor=USER, ref_type="tag"
        )
        given = self.github
        (given.folder / "mnt").mkdir(exist_ok=True)
        return Runner(
            root=given.origin,
            folder=given.folder / ref,
            env=lambda job: self.machine(job, ref),
            contexts={
                "github": github,
                "vars": Settings(),
                "inputs": Settings(),
                "secrets": Context(GITHUB_TOKEN=PASSWORD),
            },
            actions={
                "actions/checkout": given.check_out,
                "docker/login-action": given.log_in,
                "actions/upload-artifact": given.upload,
                "actions/attest": given.attest,
                "actions/upload-pages-artifact": given.pages,
                "anchore/scan-action": given.scan,
                **dict.fromkeys(
                    ("sigstore/cosign-installer", "actions/deploy-pages"), lambda *_: None
                ),
            },
            left_out=tuple(LEFT_OUT),
            there=there,
        )

    def tag(self, ref: str) -> None:
        """Commit what the project has, and tag it."""
        commit(self.github.origin)
        self.github.git("tag", ref)


@dataclass(frozen=True, kw_only=True)
class Release:
    """What a release did: its jobs, and the tags of the registry afterwards, by repository.

    `ran` has the name of each step that ran, after its job's.
    """

    jobs: Mapping[str, list[Job]]
    ran: frozenset[tuple[str, str]]
    cu130: Mapping[str, str]
    cu132: Mapping[str, str]

    @property
    def images(self) -> dict[str, Job]:
        """The jobs of images that were built and pushed, by identifier."""
        return {job.env["IMAGE"]: job for job in self.jobs["image"]}

    def reference(self, image: str) -> str:
        """The immutable name that an image was to get."""
        listed = json.loads(self.jobs["matrix"][0].contexts["steps"].images.outputs.images)
        return str(next(i["reference"] for i in listed["image"] if i["id"] == image))

    def immutable(self, image: str) -> str:
        """The immutable tag."""
        return self.reference(image).rpartition(":")[2]


def release(stage: Stage, ref: str, *again: str) -> Release:
    """Run release.yml for a tag; of the images that are made again, only those named `again`."""
    stage.tag(ref)

    def only(job: str, matrix: Mapping[str, Any]) -> bool:
        return job != "reproduce" or matrix["image"]["id"] in again

    runner, tags = stage.runner(ref), stage.github.tags
    jobs = runner.workflow("release", only)
    ran = frozenset(runner.ran)
    return Release(
        jobs=jobs, ran=ran, cu130=tags("owner/torch-cu130"), cu132=tags("owner/torch-cu132")
    )
