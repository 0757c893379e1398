"""Locks against the real sources: what a fresh one says, and what becomes of a stale one."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.support import ROOT, Built, images, invoke, share
from tests.releases import T130
from tests.servers import web_server
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace
from torch_images.locks.debs import DebLock
from torch_images.locks.files import dumps, read

LOCK = "locks/base-trixie.json"
SNAPSHOT = "suite: trixie\n    snapshot: "
BUILD = ("build",)


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def fresh(locks: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder with Debian's packages locked now, and the environment that names it."""
    folder = tmp_path_factory.mktemp("fresh") / "locks"
    shutil.copytree(locks, folder)
    env = {"TORCH_IMAGES_LOCKS": str(folder)}
    done = invoke("lock", "--select", "base-trixie", env=env)
    assert done.returncode == 0, done.stderr
    return folder, env


@pytest.fixture
def snapshot() -> Iterator[tuple[str, list[str]]]:
    """A snapshot archive that answers, and has nothing; its root, and the paths it is asked for."""
    with web_server({}) as (url, paths):
        yield f"{url}/archive", paths


@pytest.fixture
def stale(
    project: Callable[..., Path],
    workspace: Workspace,
    tmp_path: Path,
    snapshot: tuple[str, list[str]],
) -> tuple[Path, dict[str, str]]:
    """A project whose lock names a version of tini that no archive has, and a cache without bases."""
    folder = project(
        ("images.yaml", f"{SNAPSHOT}https://snapshot.debian.org/archive", SNAPSHOT + snapshot[0])
    )
    lock = read(DebLock, folder / LOCK)
    debs = [
        dataclasses.replace(
            d, version="0.0", path=d.path.replace("_amd64.deb", ".0_amd64.deb"), sha256="0" * 64
        )
        if d.name == "tini"
        else d
        for d in lock.debs
    ]
    (folder / LOCK).write_text(dumps(dataclasses.replace(lock, debs=tuple(debs))))
    cache = tmp_path / "cache"
    cache.mkdir()
    share(workspace, cache, "debs", "layers")  # these tests are about what has vanished
    return folder, {"TORCH_IMAGES_CACHE": str(cache)}


def tini(fresh: tuple[Path, dict[str, str]]) -> str:
    """The version that Debian has today."""
    return read(DebLock, fresh[0] / "base-trixie.json").versions()["tini"]


def test_the_committed_locks_are_built_from(built: Built, engine: Engine) -> None:
    """Unless `invoke test` named others, which it says where Debian has moved on."""
    carried = engine.read_files(built.digest, "/usr/share/torch-images/lock")
    text = (ROOT / LOCK).read_text()
    assert (carried["base-trixie.json"] == text) == ("TORCH_IMAGES_LOCKS" not in os.environ)
    assert "io.github.torch-images.unlocked" not in engine.inspect(built.digest).labels


def test_lock_check_of_a_fresh_lock(fresh: tuple[Path, dict[str, str]]) -> None:
    """Locking again changes nothing."""
    folder, env = fresh
    before = {path.name: path.read_text() for path in folder.iterdir()}
    names = [deb.name for deb in read(DebLock, folder / "base-trixie.json").debs]
    done = invoke("lock", "--select", "base-trixie", env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "base-trixie: unchanged\n"
    assert {path.name: path.read_text() for path in folder.iterdir()} == before
    done = invoke("lock", "--check", "--select", "base-trixie", "--json", env=env)
    assert done.returncode == 0, done.stderr
    findings = json.loads(done.stdout)["inputs"]
    assert sorted(finding["name"] for finding in findings) == sorted(names)
    assert {finding["state"] for finding in findings} == {"unchanged"}


def test_wheels_are_checked_at_the_index() -> None:
    """What the index has today is not known here, but every input must be found there."""
    done = invoke("lock", "--check", "--select", f"wheel-cu130-torch{T130}-py313", "--json")
    assert done.returncode == 0, done.stderr
    states = {f["name"]: f["state"] for f in json.loads(done.stdout)["inputs"]}
    assert states["torch"] == "unchanged"
    assert set(states.values()) <= {"unchanged", "newer"}


def test_build_refuses_a_package_without_archive(
    stale: tuple[Path, dict[str, str]],
    fresh: tuple[Path, dict[str, str]],
    snapshot: tuple[str, list[str]],
    engine: Engine,
) -> None:
    """Once the snapshot archive has said that it does not have the package either."""
    folder, env = stale
    before = images(engine)
    done = invoke(*BUILD, cwd=folder, env=env)
    assert done.returncode == 3
    assert last_line(done.stderr) == (
        "error: locks/base-trixie.json: no mirror and no snapshot archive has tini 0.0; run "
        "`invoke lock --select base-trixie`, or name a mirror in TORCH_IMAGES_MIRROR"
    )
    [path] = snapshot[1]
    assert re.fullmatch(r"/archive/debian/\w+/pool/main/t/tini/tini_.+\.0_amd64\.deb", path)
    check = invoke("lock", "--check", "--select", "base-trixie", cwd=folder)
    assert check.returncode == 3
    assert f"  vanished  tini 0.0 -> {tini(fresh)}" in check.stdout
    assert images(engine) == before
