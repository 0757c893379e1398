"""A project in small, of which releases can be made on this machine within minutes.

Stand-ins: its wheels, of one module each; NVIDIA's repository of compat packages; its checks, of
which those from inside are replaced.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.integration.standins import replace, small_project, take_facts
from tests.integration.support import ROOT
from tests.releases import T130, T132
from tests.wheels import StandIn, make_wheel
from torch_images.config.load import load_config
from torch_images.locks.facts import with_facts
from torch_images.locks.files import dumps
from torch_images.locks.wheels import read_wheels
from torch_images.platforms import AMD64, PLATFORMS

PLAIN, OTHER = f"wheel-cu130-torch{T130}-py313", f"wheel-cu132-torch{T132}-py313"
POD = f"{PLAIN}-pod"
CATALOGUE = """\
catalogue:
  - {cuda: "13.0"}
  - {cuda: "13.0", compat: with}
  - {cuda: "13.0", variant: pod}
  - {cuda: "13.0", platform: linux/arm64}
  - {cuda: "13.2"}

"""
SMALL_POD = """\
  pod:
    description: A stand-in that says which ports it has.
    wheels: [torch-images-extra]
    command: pod-start
    folder: /workspace
    ports: [22, 8888]
"""
DAYS = ("2026-11-02", "2026-11-03", "2026-11-04")
# In place of the checks inside an image: one whose wheels are stand-ins passes these.
CHECKS = '''\
"""Stand-ins of the checks inside an image, whose packages are stand-ins themselves."""

import platform
from importlib import import_module
from importlib.metadata import version

import pytest

from conftest import EXPECTED


def test_versions(expected, observe):
    for name, value in {
        "cuda": expected["cuda"],
        "torch": f"{version('torch')}+cu{expected['cuda'].replace('.', '')}",
        "triton": version("triton"),
        "python": platform.python_version(),
    }.items():
        observe(name, value)
    assert version("torch") == expected["torch"].partition("+")[0]


def test_arch(arch, observe):
    observe(f"arch {arch}", "native")


@pytest.mark.parametrize("name", sorted(EXPECTED["packages"]))
def test_answer(name):
    assert import_module(name.replace("-", "_")).ANSWER == 42
'''
# Of the checks from outside, those that hold for a base with Python alone.
OUTSIDE = ("conftest", "container", "installed", "tree", "test_metadata")


def wheels(folder: Path) -> dict[str, StandIn]:
    """The stand-in wheels of all releases. The second one of `torch-images-extra` is broken."""
    folder.mkdir()
    names = ["triton-3.6.0", f"torch-{T130}", f"torch-{T132}"]
    names += ["torch-images-probe-1.0", "torch-images-probe-1.1"]
    names += ["torch-images-extra-1.0", "torch-images-extra-1.2"]
    split = {name: name.rpartition("-") for name in names}
    made = {key: make_wheel(folder, name, version) for key, (name, _, version) in split.items()}
    broken = {"torch_images_extra/__init__.py": b"ANSWER = 41\n"}  # it comes before the module
    made["torch-images-extra-1.1"] = make_wheel(folder, "torch-images-extra", "1.1", broken)
    return made


def project(folder: Path, locks: Path, scratch: Path, made: Mapping[str, StandIn]) -> None:
    """Make `folder` a project whose images are built in seconds, of five kinds, as CATALOGUE says.

    Its base for linux/arm64 and the compat package need locks of their own.
    """
    small_project(folder, locks, scratch)
    for name in (".github", "docs", "site"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"):
        shutil.copy(ROOT / name, folder)
    (folder / "docs" / "ledger.csv").unlink(missing_ok=True)
    file = folder / "images.yaml"
    text = re.sub(r"catalogue:\n(?:  .*\n)+\n", CATALOGUE, file.read_text())
    text = re.sub(r"  pod:\n(?:    .*\n)+", SMALL_POD, text)
    file.write_text(text)
    install = ("scripts/image/finish/install-files", 'install -m 644 "$3/sshd.conf"')
    replace(folder, *install, 'install -D -m 644 "$3/sshd.conf"')  # no sshd made its folder
    for name in ("image", "container"):
        for path in (folder / "tests" / name).glob("*.py"):
            if path.stem not in OUTSIDE and path.stem != "conftest":
                path.unlink()
    (folder / "tests" / "container" / "test_versions.py").write_text(CHECKS)
    common = ["triton-3.6.0", "torch-images-probe-1.0"]
    for platform in PLATFORMS:
        write(folder, f"{PLAIN}{platform.suffix}", made, f"torch-{T130}", *common)
    write(folder, OTHER, made, f"torch-{T132}", *common)
    write(folder, POD, made, f"torch-{T130}", *common, "torch-images-extra-1.0")


def write(
    folder: Path, name: str, made: Mapping[str, StandIn], *versions: str, day: str = DAYS[0]
) -> None:
    """Write a lock of stand-in wheels, as `./inv lock` would have on that day."""
    path = folder / "locks" / f"{name}.json"
    old = read_wheels(path)
    held = sorted((made[version].locked for version in versions), key=lambda wheel: wheel.name)
    request = [f"torch=={made[versions[0]].locked.version}"]
    request += [wheel.name for wheel in held if wheel.name == "torch-images-extra"]
    lock = dataclasses.replace(
        old,
        date=dt.date.fromisoformat(day),
        request=tuple(sorted(request)),
        wheels=tuple(held),
    )
    path.write_text(dumps(lock))
    if name == POD:
        return
    take_facts(folder, lock)


def trust(folder: Path, url: str, key: str) -> None:
    """Let a project take compat packages from a stand-in repository."""
    compat = with_facts(load_config(folder / "images.yaml"), folder / "locks").compat
    replace(folder, "images.yaml", compat.repository(AMD64), url)
    replace(folder, "images.yaml", compat.key, key)


def backdate(folder: Path) -> None:
    """Let all locks be of the first day, so that newer ones can follow today."""
    for path in (folder / "locks").glob("*.json"):
        text = re.sub(r'"date": "[^"]*"', f'"date": "{DAYS[0]}"', path.read_text())
        path.write_text(text)
