"""Debian's files that the real tree is made of: locked by hash, fetched from a mirror of Debian.

inputs.txt has a line for each file: SHA-256, bytes, and its path below the root of the archive.
Those of the source package are what Debian's signed .dsc states.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from pathlib import Path

from tests.integration.support import ROOT
from torch_images.cli.verb import mirrors
from torch_images.config.load import load_config
from torch_images.fetch.apt import Resolver
from torch_images.fetch.download import fetch
from torch_images.host.network import detect
from torch_images.host.runner import Runner
from torch_images.locks.debs import DebLock, LockedDeb

HERE = Path(__file__).parent
# The day on which a snapshot archive is asked for, should a file vanish from mirrors.
DATE = dt.date(2026, 11, 23)


def locked() -> tuple[LockedDeb, ...]:
    """The files of inputs.txt."""
    found = []
    for line in (HERE / "inputs.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        sha256, size, path = line.split()
        name, version, *_ = path.rpartition("/")[2].split("_")
        found.append(
            LockedDeb(
                name=name,
                version=version,
                archive="debian",
                path=path,
                size=int(size),
                sha256=sha256,
            )
        )
    return tuple(found)


def files(wanted: Sequence[LockedDeb], cache: Path) -> dict[str, Path]:
    """Each file by its own name, from the cache or fetched now. Raises LockError, NetworkError."""
    config = load_config(ROOT / "images.yaml")
    [base] = (base for base in config.bases if base.name == "trixie")
    network = detect(os.environ)
    resolver = Resolver(root=ROOT, network=network, run=Runner(), mirrors=mirrors())
    lock = DebLock(name="real", date=DATE, system=base.system, request=(), debs=tuple(wanted))
    got = fetch(
        lock,
        cache / "debs",
        mirrors=resolver.roots(),
        snapshot=base.snapshot,
        network=network,
    )
    return {deb.filename: path for deb, path in got.items()}
