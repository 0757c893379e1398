"""Stand-ins on loopback for what cannot be reached from a test, or would be too large.

Wheels with one module each, the index that serves them, and a project small enough to be built
several times in one test. What is tested with them is the pipeline, never the content.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from pypi_simple import PYPI_SIMPLE_ENDPOINT

from tests.integration.support import ROOT
from tests.releases import T130
from tests.servers import web_server
from tests.wheels import index, make_wheel
from torch_images.locks.facts import FactsLock
from torch_images.locks.files import dumps, read
from torch_images.locks.wheels import WheelLock, read_wheels
from torch_images.platforms import PLATFORMS

WHEEL_LOCK = f"locks/wheel-cu130-torch{T130}-py313.json"
WHEELS = (("torch", f"{T130}"), ("triton", "3.6.0"), ("torch-images-probe", "1.0"))


@contextlib.contextmanager
def served(pages: Mapping[str, bytes]) -> Iterator[str]:
    """Serve an index of stand-ins, which sends elsewhere for what is real; its URL."""
    real = os.environ.get("UV_DEFAULT_INDEX", PYPI_SIMPLE_ENDPOINT).rstrip("/")
    with web_server(pages, real.removesuffix("/simple")) as (url, _):
        yield f"{url}/simple"


def small_project(folder: Path, locks: Path, scratch: Path) -> dict[str, bytes]:
    """Make `folder` a project whose default image holds stand-in wheels only, on each platform.

    Its base needs a lock of its own: see the fixture `small_locks`.

    Returns the files of the index that has them.
    """
    scratch.mkdir()
    wheels = [make_wheel(scratch, name, version) for name, version in WHEELS]
    copy_project(folder, locks)
    replace(folder, "images.yaml", "packages: [numpy, pip, setuptools]", "packages: []")
    whole = (folder / "images.yaml").read_text()  # stand-ins have nothing to remove
    (folder / "images.yaml").write_text(re.sub(r"\nremovals:\n(?:  .*\n)+", "\n", whole))
    replace(
        folder,
        "images.yaml",
        "packages: [ca-certificates, g++, libpython3.13-dev, python3, python3-venv, tini]",
        "packages: [python3, tini]",
    )
    for platform in PLATFORMS:
        path = folder / WHEEL_LOCK.replace(".json", f"{platform.suffix}.json")
        lock = dataclasses.replace(
            read_wheels(path),
            request=(f"torch=={T130}",),
            wheels=tuple(wheel.locked for wheel in wheels),
        )
        path.write_text(dumps(lock))
        take_facts(folder, lock)
    return index(wheels)


def take_facts(folder: Path, lock: WheelLock) -> None:
    """Let what is known of a release of torch be of the stand-in that a lock of its wheels has."""
    path = folder / "locks" / f"{lock.name.replace('wheel-', 'release-', 1)}.json"
    torch = next(wheel for wheel in lock.wheels if wheel.name == "torch")
    path.write_text(dumps(dataclasses.replace(read(FactsLock, path), sha256=torch.sha256)))


def copy_project(folder: Path, locks: Path) -> None:
    """Copy what makes up the project, with another folder of locks."""
    folder.mkdir(parents=True)
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("docker", "scripts", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    # With its bytecode: the first command of each copy would compile all that it imports.
    # A file that Python is writing at this moment has a name of its own, and may be gone by then.
    written = shutil.ignore_patterns("*.pyc.*")
    shutil.copytree(ROOT / "torch_images", folder / "torch_images", ignore=written)
    shutil.copytree(locks, folder / "locks")
    for name in ("host.txt", "host-dev.txt"):
        shutil.copy(ROOT / "locks" / name, folder / "locks")
    for name in (".gitignore", "images.yaml", "inv", "pyproject.toml", "tasks.py"):
        shutil.copy(ROOT / name, folder / name)


def replace(folder: Path, name: str, old: str, new: str) -> None:
    """Change a file of a copied project."""
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def commit(folder: Path) -> None:
    """Commit all files of a copied project, making it a repository where it is none."""
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "x"], check=True)
