"""A release, rehearsed: the scripts of release.yml, in their order, against a registry on loopback.

Three releases of a small project: the first one; one with newer locks, of which an image in the
middle fails its checks; and one that mends it. What stands in for what is said in release.py, and
here in ACTIONS and LEFT_OUT.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.decisions import NOTES
from tests.integration.release import (
    DAYS,
    NEWEST132,
    OTHER,
    PASSWORD,
    PLAIN,
    POD,
    USER,
    GitHub,
    backdate,
    project,
    trust,
    wheels,
    write,
)
from tests.integration.drivers import repository
from tests.integration.standins import commit, served
from tests.integration.support import Registry, invoke, open_folder, second_engine
from tests.packages import elf
from tests.releases import M130, T130
from tests.wheels import StandIn, index
from tests.workflows import (
    FAILURE,
    GITHUB,
    SUCCESS,
    Context,
    Job,
    Runner,
    Settings,
    machine_environment,
    name_of,
    steps,
)

# What stands in for the actions that workflows use, and why: none of their servers can be reached.
ACTIONS = {
    "actions/checkout": "a clone of the project, as deep as the workflow says",
    "docker/login-action": "docker login, to the registry on loopback, which wants a password",
    "actions/upload-artifact": "a folder; the file must be there",
    "actions/attest": "a note; the registry must have the subject",
    "sigstore/cosign-installer": "a program that notes what it signs",
}
# Scripts that are not run, and why.
LEFT_OUT = {
    "Configure Docker": "it would restart the engine of this machine; another engine stands in",
}
AMD64, ARM64 = f"cu130-torch{T130}-trixie-runtime", f"cu130-torch{T130}-trixie-runtime-arm64"
POD_ID, CU132 = f"cu130-torch{T130}-trixie-pod", f"cu132-torch{NEWEST132}-trixie-runtime"
WHOLE = (T130, M130, "latest")
PODS = (f"{T130}-pod", f"{M130}-pod", "pod")


def test_each_step_of_a_release_is_run_or_has_a_stand_in() -> None:
    """Whoever adds a step to release.yml says here what becomes of it."""
    used = steps(GITHUB / "workflows" / "release.yml") + steps(GITHUB / "actions/engine/action.yml")
    names = {s["uses"].partition("@")[0] for s in used if "uses" in s} - {"./.github/actions/engine"}
    assert names == set(ACTIONS)
    assert set(LEFT_OUT) < {name_of(step) for step in used}


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
                "sigstore/cosign-installer": lambda *_: None,
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
    """What a release did: its jobs, and the tags of the registry afterwards, by repository."""

    jobs: Mapping[str, list[Job]]
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


@pytest.fixture(scope="module")
def stage(small_locks: Path) -> Iterator[Stage]:
    """Everything that is there before the first release."""
    with (
        open_folder() as folder,
        second_engine(runs=True) as builder,
        second_engine(runs=True) as other,
        repository(elf(NOTES["13.0"])) as (url, key),
    ):
        made = wheels(folder / "wheels")
        origin = folder / "origin"
        project(origin, small_locks, folder / "scratch", made)
        trust(origin, url, key)
        server = Registry(folder / "registry", password=True)
        with served(index(list(made.values()))) as pages:
            env = {"UV_DEFAULT_INDEX": pages}
            for locks in ("base-trixie-arm64", "compat-cu130", "compat-cu130-arm64"):
                done = invoke("lock", "--select", locks, cwd=origin, env=env)
                assert done.returncode == 0, done.stderr
            backdate(origin)
            server.start()
            try:
                github = GitHub(folder=folder, origin=origin, host=server.host)
                yield Stage(github=github, made=made, env=env, builder=builder, other=other)
            finally:
                server.remove()


def release(stage: Stage, ref: str, *again: str) -> Release:
    """Run release.yml for a tag; of the images that are made again, only those named `again`."""
    stage.tag(ref)
    only = lambda job, matrix: job != "reproduce" or matrix["image"]["id"] in again  # noqa: E731
    jobs = stage.runner(ref).workflow("release", only)
    tags = stage.github.tags
    return Release(jobs=jobs, cu130=tags("owner/torch-cu130"), cu132=tags("owner/torch-cu132"))


@pytest.fixture(scope="module")
def first(stage: Stage) -> Release:
    """The first release, of all images; one of them is made again."""
    return release(stage, "v1", AMD64)


def test_the_first(first: Release) -> None:
    print(first.cu130, first.cu132)
    assert {i: j.result for i, j in first.images.items()} == 1
