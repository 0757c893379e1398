"""Images of two platforms become one name in a real registry, whichever is pushed first.

The images are stand-ins of one file with the labels of real ones, and so are the reports of their
verification. Nothing of linux/arm64 runs, so no emulator is needed.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from tests.integration.support import TESTS, Registry, build_stand_in, invoke, write_passed
from tests.releases import M132, T132
from torch_images.build import labels
from torch_images.build.plan import plan_images
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace
from torch_images.verify.verify import report_path

REPOSITORY, CU130 = "owner/torch-cu132", "owner/torch-cu130"
AMD64, ARM64 = "linux/amd64", "linux/arm64"
FLOATING = (T132, M132, "latest")
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True)
class StandIn:
    """An image that claims to be a verified one: its local tag, digest, immutable tag, and file."""

    tag: str
    digest: str
    immutable: str
    text: str


Make = Callable[..., StandIn]


@pytest.fixture(scope="module")
def make(
    config: Config,
    workspace: Workspace,
    engine: Engine,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Make]:
    """Make a stand-in for a platform, of other bytes each time.

    By default it is of CUDA 13.2, which has no image with the compat library.
    """
    images: list[StandIn] = []

    def make(platform: str, cuda: str = "13.2", compat: str = "without") -> StandIn:
        spec = choose(config, cuda=cuda, compat=compat, platform=platform)
        [plan] = plan_images(config, [spec], workspace.root, workspace.locks)
        written, text = labels.write(config, plan), f"{platform} {secrets.token_hex(8)}"
        folder = tmp_path_factory.mktemp("context")
        (folder / "file").write_text(text)
        lines = ["FROM scratch", "COPY file /", 'CMD ["/file"]']
        lines += [f"LABEL {key}={json.dumps(value)}" for key, value in written.items()]
        tag = f"{TESTS}:platform-{len(images)}"
        build_stand_in(folder, lines, tag, engine, f"--platform={platform}")
        # A build leaves an image of another platform packed; making a container of it does not.
        container = subprocess.run(
            ["docker", "create", f"--platform={platform}", tag],
            check=True,
            capture_output=True,
            text=True,
        )
        subprocess.run(["docker", "rm", container.stdout.strip()], check=True, capture_output=True)
        info = engine.inspect(tag)
        images.append(StandIn(tag, info.id, written["org.opencontainers.image.version"], text))
        torch = f"{spec.torch}+{spec.cuda.short}"
        seen = {"cuda": cuda, "torch": torch, "triton": "3.6.0", "python": "3.13.5"}
        write_passed(config, workspace, plan, info.id, seen)
        return images[-1]

    yield make
    for image in images:
        report_path(workspace, image.digest).unlink(missing_ok=True)
        engine.untag(image.digest)


def push(image: StandIn, host: str, *words: str) -> dict[str, Any]:
    """Push an image; the datasheet."""
    done = invoke("push", image.tag, "--registry", f"{host}/owner", "--json", *words)
    assert done.returncode == 0, done.stderr
    sheet = json.loads(done.stdout)
    assert isinstance(sheet, dict)
    return sheet


def tags(host: str, repository: str = REPOSITORY) -> dict[str, str]:
    """Every tag that a registry has, with its digest, which is that of its bytes."""
    base = f"http://{host}/v2/{repository}"
    listed = requests.get(f"{base}/tags/list", timeout=60)
    if listed.status_code == requests.codes.not_found:
        return {}
    accept = {"Accept": f"{INDEX}, {MANIFEST}"}
    digests: dict[str, str] = {}
    for tag in listed.json()["tags"] or ():
        answer = requests.get(f"{base}/manifests/{tag}", headers=accept, timeout=60)
        digest = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
        assert answer.headers["Docker-Content-Digest"] == digest
        digests[tag] = digest
    return digests


def index_of(host: str, tag: str, repository: str = REPOSITORY) -> dict[str, Any]:
    answer = requests.get(
        f"http://{host}/v2/{repository}/manifests/{tag}", headers={"Accept": INDEX}, timeout=60
    )
    assert answer.headers["Content-Type"] == INDEX
    document = answer.json()
    assert isinstance(document, dict)
    return document


def pulled(reference: str, platform: str) -> str:
    """The text of the file in an image of a registry, for a platform."""
    pull = ["docker", "pull", "--quiet", "--platform", platform, reference]
    subprocess.run(pull, check=True, capture_output=True)
    create = ["docker", "create", "--platform", platform, reference]
    name = subprocess.run(create, check=True, capture_output=True, text=True).stdout.strip()
    try:
        copied = subprocess.run(
            ["docker", "cp", f"{name}:/file", "-"], check=True, capture_output=True
        )
        return copied.stdout[512:].split(b"\0")[0].decode()
    finally:
        subprocess.run(["docker", "rm", name], check=True, capture_output=True)
        subprocess.run(["docker", "rmi", "--force", reference], check=True, capture_output=True)


def is_index_of(host: str, *images: StandIn) -> str:
    """Check what all floating names of a registry have; the digest of the index."""
    published = tags(host)
    index = published["latest"]
    assert published == {
        **{image.immutable: image.digest for image in images},
        **dict.fromkeys(FLOATING, index),
    }
    document = index_of(host, "latest")
    assert [
        (m["platform"]["os"] + "/" + m["platform"]["architecture"], m["digest"])
        for m in document["manifests"]
    ] == [(AMD64, images[0].digest), (ARM64, images[1].digest)]
    return index


def test_push_joins_a_later_platform(make: Make, server: Registry) -> None:
    amd64, arm64 = make(AMD64), make(ARM64)
    name = f"{server.host}/{REPOSITORY}"
    sheet = push(amd64, server.host)
    assert (sheet["platform"], sheet["indexes"]) == (AMD64, [])
    assert sheet["references"] == [f"{name}:{tag}" for tag in (amd64.immutable, *FLOATING)]
    alone = dict.fromkeys((amd64.immutable, *FLOATING), amd64.digest)
    assert tags(server.host) == alone
    done = invoke("push", amd64.tag, "--registry", f"{server.host}/owner", "--dry-run")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["already"] * 4
    done = invoke("push", arm64.tag, "--registry", f"{server.host}/owner", "--dry-run")
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["tag", *["move"] * 3]
    assert tags(server.host) == alone

    sheet = push(arm64, server.host)
    index = is_index_of(server.host, amd64, arm64)
    before = tags(server.host)
    assert sheet["indexes"] == [f"{name}:{T132}@{index}"]
    assert sheet["digest"] == arm64.digest
    assert sheet["references"] == [f"{name}:{tag}" for tag in (arm64.immutable, *FLOATING)]
    for image, platform in ((amd64, AMD64), (arm64, ARM64)):
        assert pulled(f"{name}:latest", platform) == image.text
        assert pulled(f"{name}@{image.digest}", platform) == image.text
    for image in (arm64, amd64):
        done = invoke("push", image.tag, "--registry", f"{server.host}/owner")
        assert [line.split()[0] for line in done.stdout.splitlines()] == ["already"] * 4
        assert "pushed" not in done.stderr
    assert tags(server.host) == before


def test_two_machines_at_once_make_one_index(make: Make, server: Registry) -> None:
    images = make(AMD64), make(ARM64)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda image: push(image, server.host), images))
    is_index_of(server.host, *images)
