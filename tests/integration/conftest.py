"""Real images, built once per run by the command that users type.

With pytest-xdist the tests run in two lanes side by side: see SECOND.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.integration.standins import copy_project, replace
from tests.integration.support import ROOT, SELECT, Built, invoke
from tests.progress import Progress, file_of
from torch_images.config.load import load_config
from torch_images.config.types import Config
from torch_images.host.connection import connect
from torch_images.host.engine import Engine
from torch_images.host.network import detect
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace, default_cache
from torch_images.locks.facts import with_facts
from torch_images.project import locks_folder

# Modules of the second lane. They may give images only names that no module of the first lane
# gives them: two builds of one name would get in each other's way.
SECOND = frozenset(
    {
        "test_cdi",
        "test_compat",
        "test_compiled",
        "test_derived",
        "test_emulation",
        "test_examples",
        "test_installed_command",
        "test_pod",
        "test_push",
        "test_push_platforms",
        "test_real_tree",
        "test_site",
        "test_start",
    }
)


def pytest_configure(config: pytest.Config) -> None:
    """Show progress in the process that prints."""
    if not hasattr(config, "workerinput"):
        files = [path.name for path in Path(__file__).parent.glob("test_*.py")]
        config.pluginmanager.register(Progress(files, ROOT / "build" / "test-seconds.json"))


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Put those modules of the second lane first that begin without the images of `built`.

    They run while the first lane builds these.
    """
    waits: dict[str, bool] = {}
    for item in items:
        name = item.path.stem
        waits.setdefault(name, name not in SECOND or "built" in item.fixturenames)
    items.sort(key=lambda item: waits[item.path.stem])


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Gives all tests of a lane to one process."""

    def _split_scope(self, nodeid: str) -> str:
        """The lane of a test."""
        return "second" if file_of(nodeid).removesuffix(".py") in SECOND else "first"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes:
    """Choose lanes, whatever --dist says."""
    return Lanes(config, log)


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The real engine; there is no test here without one."""
    return connect()


@pytest.fixture(scope="session")
def config() -> Config:
    """The project's own images.yaml."""
    return with_facts(load_config(ROOT / "images.yaml"), ROOT / "locks")


@pytest.fixture(scope="session")
def locks() -> Path:
    """The locks that all of this builds from: the committed ones.

    `invoke test` names fresh ones in TORCH_IMAGES_LOCKS where Debian's mirrors have dropped a
    package of those. Every process that tests start reads them, too.
    """
    return locks_folder(ROOT)


@pytest.fixture(scope="session")
def workspace(locks: Path) -> Workspace:
    """The project's own folder and cache."""
    return Workspace(root=ROOT, cache=default_cache(), network=detect(os.environ), locks=locks)


@pytest.fixture(scope="session")
def runner() -> Runner:
    """Starts real processes."""
    return Runner()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    """Both CUDA versions by short name, built side by side, verified and tagged.

    The lane that asks first builds them; the other one waits.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    kept = folder / "built.json"
    with (folder / "built.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not kept.exists():
            words = ("--select", SELECT, "--progress", "plain", "--json")
            done = invoke("build", *words)
            assert done.returncode == 0, done.stderr[-3000:]
            kept.write_text(done.stdout)
    found = [
        Built(o["id"], o["digest"], tuple(o["tags"]), o["observed"], o["checks"])
        for o in json.loads(kept.read_text())
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
