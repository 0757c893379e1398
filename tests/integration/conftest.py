"""Real images, built once per run by the command that users type."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.standins import copy_project, replace
from tests.integration.support import ROOT, SELECT, Built, invoke
from torch_images.config import Config
from torch_images.connection import connect
from torch_images.engine import Engine
from torch_images.load import load_config
from torch_images.network import detect
from torch_images.runner import Runner
from torch_images.workplace import Workplace, default_cache


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The real engine; there is no test here without one."""
    return connect()


@pytest.fixture(scope="session")
def config() -> Config:
    """The project's own images.yaml."""
    return load_config(ROOT / "images.yaml")


@pytest.fixture(scope="session", autouse=True)
def locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The locks that all of this builds from: Debian's made now, so that no update of it matters.

    Every process that tests start reads them, too.
    """
    folder = tmp_path_factory.mktemp("inputs") / "locks"
    shutil.copytree(ROOT / "locks", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_IMAGES_LOCKS", str(folder))
        done = invoke("lock", "--select", "*-bookworm*")
        assert done.returncode == 0, done.stderr
        yield folder


@pytest.fixture(scope="session")
def place(locks: Path) -> Workplace:
    """The project's own folder and cache."""
    return Workplace(root=ROOT, cache=default_cache(), network=detect(os.environ), locks=locks)


@pytest.fixture(scope="session")
def runner() -> Runner:
    """Starts real processes."""
    return Runner()


@pytest.fixture(scope="session")
def built() -> dict[str, Built]:
    """Both CUDA versions by short name, built side by side, verified and tagged."""
    done = invoke("build", "--select", SELECT, "--progress", "plain", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    found = [
        Built(o["id"], o["digest"], tuple(o["tags"]), o["observed"], o["checks"])
        for o in json.loads(done.stdout)
    ]
    return {image.id.partition("-")[0]: image for image in found}


@pytest.fixture
def project(tmp_path: Path, locks: Path) -> Callable[..., Path]:
    """A copy of the project with files changed: `project(("images.yaml", old, new), ...)`."""

    def copy(*changes: tuple[str, str, str]) -> Path:
        folder = tmp_path / "project"
        copy_project(folder, locks)
        for name, old, new in changes:
            replace(folder, name, old, new)
        return folder

    return copy
