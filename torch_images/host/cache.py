"""This user's cache: its folders, how a thing gets in whole, and when it was last used."""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Iterator
from pathlib import Path

from torch_images.host.scratch import scratch


class Part(enum.StrEnum):
    """The folders of the cache. Each member of one stands for itself and can go alone.

    All modules name them by this class, and pruning the cache goes through it: a folder that is
    added here is also one from which old members are removed.
    """

    ARCHIVE_SETS = "archive-sets"  # folders of the archives that one lock names, fetch/toolchain.py
    ARCHIVES = "archives"  # files by SHA-256, fetch/download.py
    BASES = "bases"  # OCI layouts, or folders of packages to add, fetch/bootstrap.py
    COMPAT = "compat"  # NVIDIA's compat package and its note, fetch/compat.py
    DEBS = "debs"  # Debian packages by SHA-256, fetch/download.py
    LAYERS = "layers"  # layers made of wheels, layers/make.py
    LISTINGS = "listings"  # what cuobjdump says of a library, verify/listings.py
    PARENTS = "parents"  # OCI layouts of parent images, layers/parent.py
    SYMBOLS = "symbols"  # what torch exports, by the SHA-256 of its wheel, fetch/facts.py
    SOURCES = "sources"  # source trees, one for each commit, fetch/checkout.py
    TOOLS = "tools"  # programs that builds and tests use, fetch/tools.py


def keep(made: Path, folder: Path) -> Path:
    """Move `made` into the cache as `folder`, unless another process was first with the same."""
    try:
        os.replace(made, folder)
    except OSError:
        if not folder.exists():
            raise
    return used(folder)


@contextlib.contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A folder to fill; afterwards it gets into the cache as `folder`, as `keep` says."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch(folder.parent, f".{folder.name}-") as half:
        made = half / "made"
        made.mkdir()
        yield made
        keep(made, folder)


def used(path: Path) -> Path:
    """Note that `path`, a member of the cache, is used now. Returns `path`.

    For a folder the note lies beside it: the times of what BuildKit is given must not change. A
    cache that this user may only read is as good, and has no notes.
    """
    with contextlib.suppress(PermissionError):
        if path.is_file():
            os.utime(path)
        else:
            mark(path).touch()
    return path


def mark(path: Path) -> Path:
    """The file whose time says when something of the cache was last used."""
    return path.with_name(f".{path.name}.used")
