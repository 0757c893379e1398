"""Stand-ins on loopback for what cannot be reached from a test, or would be too large.

Wheels with one module each, the index that serves them, and a project small enough to be built
several times in one test. What is tested with them is the pipeline, never the content.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pypi_simple import PYPI_SIMPLE_ENDPOINT

from tests.integration.support import ROOT
from tests.servers import web_server
from torch_images.wheels import LockedWheel, format_lock, read_lock

WHEEL_LOCK = "locks/wheel-cu130-py311.txt"
WHEELS = (("torch", "2.11.0"), ("triton", "3.6.0"), ("torch-images-probe", "1.0"))


@dataclass(frozen=True)
class StandIn:
    """A wheel made here: what the lock says of it, and the file."""

    locked: LockedWheel
    data: bytes


def make_wheel(
    folder: Path, name: str, version: str, more: Mapping[str, bytes] | None = None
) -> StandIn:
    """A wheel with one module, and with more files that are programs."""
    module = name.replace("-", "_")
    filename, info = f"{module}-{version}-py3-none-any.whl", f"{module}-{version}.dist-info"
    files = {
        f"{module}.py": b"ANSWER = 42\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": (
            b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    files |= more or {}
    lines = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    with zipfile.ZipFile(folder / filename, "w") as archive:
        for path, data in files.items():
            member = zipfile.ZipInfo(path)
            member.external_attr = (0o100755 if path in (more or {}) else 0o100644) << 16
            archive.writestr(member, data)
    data = (folder / filename).read_bytes()
    locked = LockedWheel(
        name=name,
        version=version,
        filename=filename,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
    return StandIn(locked, data)


def index(wheels: Sequence[StandIn]) -> dict[str, bytes]:
    """The pages and files of a simple index (PEP 503), by path."""
    files = {}
    for wheel in wheels:
        name = wheel.locked.filename
        page = f'<a href="{name}#sha256={wheel.locked.sha256}">{name}</a>'
        files[f"/simple/{wheel.locked.name}/"] = page.encode()
        files[f"/simple/{wheel.locked.name}/{name}"] = wheel.data
    return files


@contextlib.contextmanager
def served(pages: Mapping[str, bytes]) -> Iterator[str]:
    """Serve an index of stand-ins, which sends elsewhere for what is real; its URL."""
    real = os.environ.get("UV_DEFAULT_INDEX", PYPI_SIMPLE_ENDPOINT).rstrip("/")
    with web_server(pages, real.removesuffix("/simple")) as (url, _):
        yield f"{url}/simple"


def small_project(folder: Path, locks: Path, scratch: Path) -> dict[str, bytes]:
    """Make `folder` a committed project whose default image holds stand-in wheels only.

    Returns the files of the index that has them.
    """
    scratch.mkdir()
    wheels = [make_wheel(scratch, name, version) for name, version in WHEELS]
    copy_project(folder, locks)
    replace(folder, "images.yaml", "packages: [numpy, pip, setuptools]", "packages: []")
    replace(folder, "images.yaml", "  mode: auto\n", '  mode: "off"\n')
    replace(
        folder,
        "images.yaml",
        "packages: [ca-certificates, g++, libpython3.11-dev, python3, tini]",
        "packages: [python3]",
    )
    lock = dataclasses.replace(
        read_lock(folder / WHEEL_LOCK),
        request=("torch==2.11.0",),
        wheels=tuple(wheel.locked for wheel in wheels),
    )
    (folder / WHEEL_LOCK).write_text(format_lock(lock))
    return index(wheels)


def copy_project(folder: Path, locks: Path) -> None:
    """Copy what makes up the project, with another folder of locks."""
    folder.mkdir(parents=True)
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("docker", "scripts", "tests", "torch_images"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    shutil.copytree(locks, folder / "locks")
    shutil.copy(ROOT / "locks" / "host.txt", folder / "locks")
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
