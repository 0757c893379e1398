"""Small images of both platforms on one machine.

The small ones hold stand-in wheels of Python alone on real bases. The foreign one runs in QEMU.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.standins import commit, served, small_project
from tests.integration.support import DEFAULT, invoke
from torch_images.host.engine import Engine
from torch_images.platforms import PLATFORMS, Platform, native

pytestmark = pytest.mark.slow  # what an emulator does takes minutes

FOREIGN = next(p for p in PLATFORMS if p != native())
BUILD = ("build",)
SMALL = ("--unverified", "--json")
# Each file of bytecode in an image with the SHA-256 of its content.
BYTECODE = "find / -xdev -name '*.pyc' -exec sha256sum {} + | sort -k2"


@dataclass(frozen=True)
class Both:
    """A committed project, what its builds need, and the digest of its image for each platform."""

    folder: Path
    env: dict[str, str]
    digests: dict[Platform, str]


def candidate(platform: Platform) -> str:
    """The tag of an image that was not verified."""
    return f"torch-images-candidate:{DEFAULT}{platform.suffix}"


def printed(digest: str, *words: str) -> str:
    """What a program in an image prints."""
    command = ["docker", "run", "--rm", "--network=none", "--entrypoint=", digest, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def both(
    small_locks: Path, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    """The small images of one command, from nothing."""
    scratch = tmp_path_factory.mktemp("both")
    folder = scratch / "project"
    pages = small_project(folder, small_locks, scratch / "wheels")
    with served(pages) as index:
        # ./inv would allow to set an emulator up, too.
        env = {"UV_DEFAULT_INDEX": index, "TORCH_IMAGES_SETUP": "yes"}
        done = invoke("lock", "--select", "base-trixie-arm64", cwd=folder, env=env)
        assert done.returncode == 0, done.stderr
        commit(folder)
        env["TORCH_IMAGES_CACHE"] = str(scratch / "cache")
        done = invoke(*BUILD, *SMALL, "--platform", "all", "--no-cache", cwd=folder, env=env)
        assert done.returncode == 0, done.stderr[-3000:]
        images = {image["id"]: image["digest"] for image in json.loads(done.stdout)["images"]}
        digests = {p: images[candidate(p).partition(":")[2]] for p in PLATFORMS}
        yield Both(folder, env, digests)
        for platform in PLATFORMS:
            engine.untag(candidate(platform))


def test_run_each_platform(both: Both, engine: Engine) -> None:
    for platform, digest in both.digests.items():
        info = engine.inspect(digest)
        assert info.platform == platform.name
        assert info.size > 50_000_000  # its layers are unpacked
        program = "import platform, torch_images_probe; print(platform.machine())"
        assert printed(digest, "python", "-c", program) == f"{platform.machine}\n"


def test_both_have_the_same_bytecode(both: Both) -> None:
    """This machine's Python made that of the wheels, for either; QEMU's that of its own library."""
    amd, arm = (set(printed(d, "sh", "-c", BYTECODE).splitlines()) for d in both.digests.values())
    of_wheels = {line for line in amd if " /opt/venv/" in line}
    assert len(of_wheels) >= 3
    assert of_wheels == {line for line in arm if " /opt/venv/" in line}
    others = {line.partition("  ")[2] for line in amd ^ arm}
    assert all("linux-gnu" in path for path in others), others  # named after the processor


def test_build_in_an_emulator_is_reproducible(both: Both, tmp_path: Path) -> None:
    """From nothing, the base included: the digest is equal."""
    env = {**both.env, "TORCH_IMAGES_CACHE": str(tmp_path / "cache")}
    words = (*BUILD, *SMALL, "--platform", FOREIGN.name, "--no-cache")
    done = invoke(*words, cwd=both.folder, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["images"][0]["digest"] == both.digests[FOREIGN]
