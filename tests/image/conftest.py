"""Checks of a finished image from outside: testinfra runs commands in an idle container of it.

TORCH_IMAGES_EXPECTED is the path of a JSON file. It holds what the image claims to be, under
"inspect" the configuration that the engine reports, and under "container" the container's id.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from tests.image.container import OneExec
from tests.image.tree import Entry

EXPECTED: dict[str, Any] = json.loads(Path(os.environ["TORCH_IMAGES_EXPECTED"]).read_text())

EMULATED = bool(os.environ.get("TORCH_IMAGES_EMULATED"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip in an emulator what only a real processor shows; the reason is that of the mark."""
    for item in items if EMULATED else ():
        if mark := item.get_closest_marker("native"):
            item.add_marker(pytest.mark.skip(reason=f"not in an emulator: {mark.args[0]}"))


@pytest.fixture(scope="session")
def expected() -> dict[str, Any]:
    """What the image claims to be."""
    return EXPECTED


@pytest.fixture(scope="session")
def host() -> Iterator[Host]:
    """The container, in place of a host that testinfra's option --hosts names."""
    with OneExec(EXPECTED["container"]) as backend:
        yield Host(backend)


@pytest.fixture(scope="session")
def config() -> dict[str, Any]:
    """The image's configuration, as the engine reports it."""
    inspect: dict[str, Any] = EXPECTED["inspect"]
    return inspect


@pytest.fixture(scope="module")
def tree(host: Host) -> tuple[Entry, ...]:
    """Every file of the image, without those that the engine mounts or makes in a container."""
    listing = host.check_output(r"find / -xdev -printf '%y\t%m\t%U\t%G\t%T@\t%p\n'")
    entries = []
    for line in listing.splitlines():
        kind, mode, uid, gid, time, path = line.split("\t", 5)
        entries.append(Entry(path, kind, int(mode, 8), int(uid), int(gid), float(time)))
    own = {"/.dockerenv", "/etc/hostname", "/etc/hosts", "/etc/mtab", "/etc/resolv.conf"}
    return tuple(e for e in entries if e.path not in own)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one case per label and Debian package, so that a report names the wrong one."""
    claims = {"label": sorted(EXPECTED["labels"]), "package": EXPECTED["debian_packages"]}
    for argument, values in claims.items():
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, values)
