"""Real images, built once per run by the command that users type.

With pytest-xdist the tests run in two lanes side by side: see SECOND.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.integration.standins import copy_project, replace, small_project
from tests.integration.support import DEFAULT, NARROW, ROOT, Built, Registry, invoke, make_image
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
        "test_bootstrap",
        "test_cdi",
        "test_compat",
        "test_derived",
        "test_emulation",
        "test_examples",
        "test_gc",
        "test_installed_command",
        "test_own",
        "test_pod",
        "test_push",
        "test_push_platforms",
        "test_site",
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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Registry]:
    """A registry that has nothing."""
    registry = Registry(tmp_path / "registry")
    registry.start()
    yield registry
    registry.remove()


@pytest.fixture(scope="session")
def runner() -> Runner:
    """Starts real processes."""
    return Runner()


def once(folder: Path, name: str, make: Callable[[], str]) -> str:
    """A text that is made once in a run: the lane that asks first makes it, the other one waits.

    `folder` is pytest's base folder of this process.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    kept = folder / name
    with (folder / f"{name}.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(make())
    return kept.read_text()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The default image."""

    def make() -> str:
        return json.dumps(asdict(make_image("--select", DEFAULT)))

    record = json.loads(once(tmp_path_factory.getbasetemp(), "built.json", make))
    return Built(**{**record, "tags": tuple(record["tags"])})


@pytest.fixture(scope="session")
def narrow(built: Built) -> Built:
    """An image for one architecture. It is for modules of the first lane only."""
    return make_image("--select", NARROW)


@pytest.fixture(scope="session")
def small_locks(locks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locks for `small_project`, whose base has fewer packages."""

    def make() -> str:
        folder = tmp_path_factory.mktemp("small-locks") / "project"
        small_project(folder, locks, folder.parent / "wheels")
        done = invoke("lock", "--select", "base-trixie", cwd=folder)
        assert done.returncode == 0, done.stderr
        return (folder / "locks" / "base-trixie.json").read_text()

    text = once(tmp_path_factory.getbasetemp(), "base-trixie.json", make)
    folder = tmp_path_factory.mktemp("small-locks") / "locks"
    shutil.copytree(locks, folder)
    (folder / "base-trixie.json").write_text(text)
    return folder


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
