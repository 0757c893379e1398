"""What this user's cache holds: put there whole, and marked as used, so that age can be told."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def keep(made: Path, folder: Path) -> Path:
    """Move what was made into the cache, unless another process was faster with the same."""
    try:
        os.replace(made, folder)
    except OSError:
        if not folder.exists():
            raise
    return used(folder)


def used(path: Path) -> Path:
    """Note that something of the cache is used now; `path`.

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
