"""Tags and pushes against a real registry, through a proxy that lets it fail.

The images are stand-ins of some megabytes with the labels of real ones, and so are the reports of
their verification: what is tested is what a registry holds after each kind of failure.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.faults import Fault, faulty
from tests.integration.support import (
    ROOT,
    TESTS,
    Built,
    Registry,
    build_stand_in,
    invoke,
    second_engine,
    write_passed,
)
from tests.releases import M130, T130
from torch_images.build import built as built_here
from torch_images.build import labels
from torch_images.build.plan import plan_images
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace
from torch_images.verify.verify import read_report, report_path

REPOSITORY = "owner/torch-cu130"
LAYERS, LAYER_SIZE = 4, 3_000_000
OBSERVED = {"cuda": "13.0", "torch": f"{T130}+cu130", "triton": "3.6.0", "python": "3.13.5"}
FLOATING = (f"{T130}-devel", f"{M130}-devel", "devel")


@dataclass(frozen=True)
class StandIn:
    """An image that claims to be a verified one: its local tag, digest and immutable tag."""

    tag: str
    digest: str
    immutable: str

    @property
    def tags(self) -> tuple[str, ...]:
        return (self.immutable, *FLOATING)


Make = Callable[..., StandIn]


@pytest.fixture(scope="module")
def make(
    config: Config,
    workspace: Workspace,
    engine: Engine,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Make]:
    """Make a stand-in: of other bytes each time, of inputs of a day.

    It is of an image that is built for linux/amd64 only; test_push_platforms.py has the others.
    """
    spec = choose(config, variant="devel", platform="linux/amd64")
    [planned] = plan_images(config, [spec], workspace.root, workspace.locks)
    images: list[StandIn] = []

    def make(
        *, day: int = 1, changes: dict[str, str] | None = None, verified: bool = True
    ) -> StandIn:
        folder = tmp_path_factory.mktemp("context")
        version = f"{T130}-devel-{secrets.token_hex(6)}"
        own = {"org.opencontainers.image.version": version, **(changes or {})}
        label = {**labels.write(config, planned), **own}
        lines = ["FROM scratch"]
        for number in range(LAYERS):
            (folder / f"{number}").write_bytes(secrets.token_bytes(LAYER_SIZE))
            lines.append(f"COPY {number} /")
        lines += [f"LABEL {key}={json.dumps(value)}" for key, value in label.items()]
        tag = f"{TESTS}:push-{len(images)}"
        build_stand_in(folder, lines, tag, engine, day=day)
        info = engine.inspect(tag)
        standin = StandIn(tag, info.id, label["org.opencontainers.image.version"])
        images.append(standin)
        built_here.note(workspace.cache, engine, info.id)
        if verified:
            write_passed(config, workspace, planned, info.id, OBSERVED)
        return standin

    yield make
    for image in images:
        report_path(workspace, image.digest).unlink(missing_ok=True)
        engine.untag(image.digest)
    built_here.forget(workspace.cache, engine)


def push(image: StandIn, host: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return invoke("push", image.tag, "--registry", f"{host}/owner", *words, env=env)


def tags(host: str, auth: tuple[str, str] | None = None) -> dict[str, str]:
    """Every tag that a registry has, with its digest; each one complete down to the last byte."""
    base = f"http://{host}/v2/{REPOSITORY}"
    listed = requests.get(f"{base}/tags/list", timeout=60, auth=auth)
    if listed.status_code == requests.codes.not_found:
        return {}
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    digests: dict[str, str] = {}
    for tag in listed.json()["tags"] or ():
        manifest = requests.get(f"{base}/manifests/{tag}", headers=accept, timeout=60, auth=auth)
        document = manifest.json()
        for blob in (document["config"], *document["layers"]):
            data = requests.get(f"{base}/blobs/{blob['digest']}", timeout=60, auth=auth).content
            assert f"sha256:{hashlib.sha256(data).hexdigest()}" == blob["digest"]
        digests[tag] = manifest.headers["Docker-Content-Digest"]
    return digests


def test_tags_of_a_registry(make: Make, server: Registry) -> None:
    """The whole life of tags: new, there already, moved on, never back, never changed."""
    first, second = make(day=1), make(day=2)
    done = push(first, server.host, "--dry-run")
    assert done.stdout.splitlines() == [
        f"would tag   {server.host}/{REPOSITORY}:{tag}" for tag in first.tags
    ]
    assert tags(server.host) == {}
    done = push(first, server.host)
    assert done.returncode == 0, done.stderr
    assert tags(server.host) == dict.fromkeys(first.tags, first.digest)
    done = push(first, server.host)
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"already"}
    done = push(second, server.host, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["digest"] == second.digest
    assert result["references"] == [f"{server.host}/{REPOSITORY}:{tag}" for tag in second.tags]
    now = dict.fromkeys(second.tags, second.digest) | {first.immutable: first.digest}
    assert tags(server.host) == now
    done = push(first, server.host)
    assert done.returncode == 0
    assert done.stdout.count("left") == len(FLOATING)
    assert "it names newer inputs, of 2026-" in done.stdout
    assert tags(server.host) == now


FAULTS: dict[str, Callable[[], list[Fault]]] = {
    "429 with a pause": lambda: [
        Fault(r"PUT .*/blobs/", status="429 Too Many Requests", headers=("Retry-After: 1",))
    ],
    "one after the other": lambda: [
        Fault(r"HEAD .*/manifests", status="502 Bad Gateway", times=2),
        Fault(r"POST .*/blobs/"),
        Fault(r"PUT .*/blobs/", cut=2_000_000),
        Fault(r"PUT .*/manifests", status="503 Service Unavailable"),
    ],
}


@pytest.mark.parametrize("name", FAULTS)
def test_push_survives_a_passing_fault(make: Make, server: Registry, name: str) -> None:
    image, faults = make(), FAULTS[name]()
    with faulty(server.host, *faults) as host:
        done = push(image, host)
        assert done.returncode == 0, done.stderr
        assert all(fault.met == fault.times for fault in faults)
        # The engine itself waits and tries again after 429, and only then.
        assert "; again in " in done.stderr or name.startswith("429")
    assert tags(server.host) == dict.fromkeys(image.tags, image.digest)


@pytest.mark.slow  # five attempts, and what lies between
@pytest.mark.parametrize(
    ("request_line", "reached"),
    [(rf"PUT .*/manifests/{T130}-devel-", 0), (r"PUT .*/manifests/devel", 3)],
)
def test_push_with_a_lasting_fault_leaves_nothing_half(
    make: Make, server: Registry, request_line: str, reached: int
) -> None:
    """What was tagged is whole, what was there before is there, and a repeat does the rest."""
    before, image = make(day=1), make(day=2)
    assert push(before, server.host).returncode == 0
    with faulty(
        server.host, Fault(request_line, status="500 Internal Server Error", times=99)
    ) as host:
        done = push(image, host)
        assert done.returncode == 6
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith(f"error: {host} could not be reached: ")
        assert "500 Internal Server Error; run the same again later" in last
    expected = dict.fromkeys(before.tags, before.digest)
    assert tags(server.host) == expected | dict.fromkeys(image.tags[:reached], image.digest)
    assert push(image, server.host).returncode == 0
    assert tags(server.host) == expected | dict.fromkeys(image.tags, image.digest)


def test_push_after_a_killed_push(make: Make, server: Registry) -> None:
    image = make()
    pushing: list[subprocess.Popen[bytes]] = []
    fault = Fault(
        r"PUT .*/blobs/", cut=1_500_000, then=lambda: pushing[0].send_signal(signal.SIGKILL)
    )
    with faulty(server.host, fault) as host:
        command = [sys.executable, "-m", "invoke", "push", image.tag, "--registry", f"{host}/owner"]
        with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "NO_COLOR": "1"}) as process:
            pushing.append(process)
            assert process.wait() == -signal.SIGKILL
    assert tags(server.host) == {}
    assert push(image, server.host).returncode == 0
    assert tags(server.host) == dict.fromkeys(image.tags, image.digest)


def docker_config(folder: Path, host: str, **settings: Any) -> str:
    """A configuration of Docker in a folder of its own."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    return str(folder)


def test_credentials(make: Make, tmp_path: Path) -> None:
    """None, wrong ones, those of the file, those of a helper; no output ever has them."""
    image = make()
    server = Registry(tmp_path / "registry", password=True)
    server.start()
    wrong = base64.b64encode(b"ci:mistaken").decode()
    right = base64.b64encode(b"ci:secret").decode()
    helper = tmp_path / "bin" / "docker-credential-tests"
    helper.parent.mkdir()
    answer = json.dumps({"ServerURL": server.host, "Username": "ci", "Secret": "secret"})
    helper.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{answer}'\n")
    helper.chmod(0o755)
    settings: dict[str, tuple[dict[str, Any], int]] = {
        "none": ({}, 2),
        "wrong": ({"auths": {server.host: {"auth": wrong}}}, 2),
        "missing": ({"credHelpers": {server.host: "nowhere"}}, 2),
        "file": ({"auths": {server.host: {"auth": right}}}, 0),
        "helper": ({"credHelpers": {server.host: "tests"}}, 0),
    }
    try:
        for name, (content, code) in settings.items():
            subject = make() if name == "helper" else image
            folder = docker_config(tmp_path / name, server.host, **content)
            path = f"{helper.parent}:{os.environ['PATH']}"
            done = push(subject, server.host, DOCKER_CONFIG=folder, PATH=path)
            assert done.returncode == code, done.stderr
            output = done.stdout + done.stderr
            assert not any(w in output for w in ("secret", "mistaken", wrong, right))
            if code:
                [line] = done.stderr.strip().splitlines()
                assert line.startswith("error: ")
                assert "docker login" in line or "credHelpers" in line
                assert tags(server.host, ("ci", "secret")) == {}
        refs = tags(server.host, ("ci", "secret"))
        # Both are of one day, so the floating tags name the one that was pushed last.
        assert refs == {image.immutable: image.digest} | dict.fromkeys(subject.tags, subject.digest)
    finally:
        server.kill()


@pytest.mark.slow
def test_push_and_pull_a_real_image(built: Built, server: Registry, workspace: Workspace) -> None:
    """Pushed, pulled by its digest into an engine that has nothing, and verified there."""
    image = built
    before = read_report(report_path(workspace, image.digest))
    assert before
    done = invoke("push", image.tags[0], "--registry", f"{server.host}/owner", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["digest"] == image.digest
    with second_engine(runs=True) as second:
        env = {"DOCKER_HOST": second}
        reference = f"{server.host}/{REPOSITORY}@{image.digest}"
        pull = ["docker", "pull", "--quiet", reference]
        subprocess.run(pull, env={**os.environ, **env}, check=True, capture_output=True)
        done = invoke("verify", reference, "--json", env=env)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["digest"] == image.digest
        # tests/programs runs for the first image of its torch and Python alone.
        assert {c["name"]: c["outcome"] for c in report["checks"]} == {
            c.name: c.outcome for c in before.checks if not c.name.startswith("programs/")
        }
