"""A base that is an image: digest and added packages locked, and the same digest twice.

The image is a stand-in for NVIDIA's: the bootstrapped Debian base, in a real registry on loopback.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.standins import replace, served, small_project
from tests.integration.support import invoke, registry
from tests.releases import T130
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.fetch.apt import Resolver
from torch_images.fetch.bootstrap import prepare
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.locks.debs import DebLock
from torch_images.locks.files import read
from torch_images.oci.layout import layout_digest

pytestmark = pytest.mark.slow  # two builds from nothing, on a base of its own

CANDIDATE = f"torch-images-candidate:cu130-sm120-torch{T130}-ubuntu24.04-runtime"
LOCK = "base-ubuntu24.04-cu130"
BUILD = (
    *("build", "--arch", "12.0", "--base", "ubuntu24.04", "--progress", "plain"),
    *("--no-cache", "--unverified", "--json"),
)


@dataclass(frozen=True)
class OnImage:
    """A project with a base that is an image in a registry."""

    folder: Path
    env: dict[str, str]
    image: str


@pytest.fixture(scope="module")
def project_on_image(
    config: Config,
    workspace: Workspace,
    engine: Engine,
    runner: Runner,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OnImage]:
    scratch = tmp_path_factory.mktemp("image")
    resolver = Resolver(root=workspace.root, network=workspace.network, run=runner)
    base = choose(config).base
    ready = prepare(
        base,
        read(DebLock, workspace.locks / "base-trixie.json"),
        cache=workspace.cache,
        resolver=resolver,
    )
    layout = Path(ready.contexts["base"].removeprefix("oci-layout://").partition("@")[0])
    assert layout_digest(layout) == ready.digest
    layer = max((layout / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    folder = scratch / "project"
    pages = small_project(folder, workspace.locks, scratch / "wheels")
    with registry(scratch / "registry") as host, served(pages) as index:
        image = f"{host}/standin/cuda:13.0.2"
        path = "ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin"
        runner.run(["docker", "import", "--change", path, str(layer), image])
        runner.run(["docker", "push", image])
        engine.untag(image)
        changes = {
            '  - {cuda: "13.0", base: bookworm}': '  - {cuda: "13.0", base: ubuntu24.04}',
            "nvidia/cuda:13.0.2-devel-ubuntu24.04": image,
            'python: "3.12"\n    system: ubuntu noble': 'python: "3.13"\n    system: debian trixie',
            "http://archive.ubuntu.com/ubuntu": resolver.roots(base)[0],
            "packages: [ca-certificates, g++, libpython3.12-dev, python3, python3-venv, tini]": (
                "packages: [jq, python3]"
            ),
        }
        for old, new in changes.items():
            replace(folder, "images.yaml", old, new)
        env = {
            "UV_DEFAULT_INDEX": index,
            "TORCH_IMAGES_CACHE": str(scratch / "cache"),
            "TORCH_IMAGES_MIRROR": " ".join(resolver.roots(base)),  # the security archive, too
        }
        yield OnImage(folder, env, image)
        pulled = read(DebLock, folder / "locks" / f"{LOCK}.json").image.partition("@")[2]
        for reference in (image, f"{host}/standin/cuda@{pulled}"):
            engine.untag(reference)


def test_digest_and_packages_are_locked(project_on_image: OnImage, engine: Engine) -> None:
    made = project_on_image
    done = invoke("lock", "--select", LOCK, cwd=made.folder)
    assert done.returncode == 0, done.stderr
    lock = read(DebLock, made.folder / "locks" / f"{LOCK}.json")
    assert lock.image == f"{made.image}@{engine.registry_digest(made.image)}"
    assert lock.versions().keys() == {"jq", "libjq1", "libonig5"}
    assert not lock.unlocked
    check = invoke("lock", "--check", "--select", LOCK, cwd=made.folder)
    assert (check.returncode, check.stdout) == (0, f"{LOCK}: 4 unchanged\n")


def test_two_builds_are_equal(project_on_image: OnImage, engine: Engine) -> None:
    made = project_on_image
    digests = []
    try:
        for _ in range(2):
            done = invoke(*BUILD, "--locked", cwd=made.folder, env=made.env)
            assert done.returncode == 0, done.stderr[-3000:]
            digests.append(json.loads(done.stdout)[0]["digest"])
        assert digests[0] == digests[1]
        assert engine.run(CANDIDATE, "jq", "-n", "6*7", entrypoint=[""]).output.strip() == "42"
        assert (
            "libonig5" in engine.read_files(CANDIDATE, "/usr/share/torch-images")["cyclonedx.json"]
        )
    finally:
        engine.untag(CANDIDATE)
