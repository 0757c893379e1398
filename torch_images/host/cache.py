"""This user's cache: its folders, atomic additions, and times of last use."""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Iterator
from pathlib import Path

from torch_images.host import outputs
from torch_images.host.scratch import scratch


class Part(enum.StrEnum):
    """The folders of the cache. Each member of a folder is independent and can be removed alone.

    All modules use this class, and so does pruning: old members of a folder that is added here are
    removed too.
    """

    ARCHIVE_SETS = "archive-sets"  # folders of the archives that one lock names, fetch/toolchain.py
    ARCHIVES = "archives"  # files by SHA-256, fetch/download.py
    BASES = "bases"  # OCI layouts, or folders of packages to add, fetch/bootstrap.py
    CHECKED = "checked"  # what passed checks, verify/compilers.py
    COMPAT = "compat"  # NVIDIA's compat package and its note, fetch/compat.py
    COMPILED = "compiled"  # wheels that a build compiled, build/compiled.py
    CONTENTS = "contents"  # what a layer changes, by its diff id, verify/unchanged.py
    DEBS = "debs"  # Debian packages by SHA-256, fetch/download.py
    INPUTS = "inputs"  # the hashes of images' inputs, verify/ledger.py
    LAYERS = "layers"  # layers made of wheels, layers/make.py
    LISTINGS = "listings"  # output of cuobjdump for a library, verify/listings.py
    PARENTS = "parents"  # parent images as OCI layouts, or manifests alone, layers/parent.py
    PROGRAMS = "programs"  # passed runs of tests/programs, verify/programs.py
    SOURCES = "sources"  # source trees, one for each commit, fetch/checkout.py
    TOOLS = "tools"  # programs that builds and tests use, fetch/tools.py


def keep(new: Path, folder: Path) -> Path:
    """Move `new` into the cache as `folder`, unless another process already has added it."""
    try:
        os.replace(new, folder)
    except OSError:
        if not folder.exists():
            raise
    return used(folder)


@contextlib.contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A folder to fill; afterwards it moves into the cache as `folder`, as by `keep`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch(folder.parent, f".{folder.name}-") as half:
        new = half / "made"
        new.mkdir()
        yield new
        keep(new, folder)


def write(path: Path, text: str) -> None:
    """Write a file of the cache in one step; nothing where the cache may only be read."""
    with contextlib.suppress(PermissionError):
        outputs.write(path, text)


def used(path: Path) -> Path:
    """Record that `path`, a member of the cache, is used now. Returns `path`.

    For a folder, a file beside it has the time: times of BuildKit's input must not change. A
    read-only cache works too, without recorded times.
    """
    with contextlib.suppress(PermissionError):
        if path.is_file():
            os.utime(path)
        else:
            mark(path).touch()
    return path


def mark(path: Path) -> Path:
    """The file whose time is the last use of a folder in the cache."""
    return path.with_name(f".{path.name}.used")
