"""The files of an image."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One file. `kind` is find's letter (f, d, l, ...), `time` its mtime in seconds since 1970."""

    path: str
    kind: str
    mode: int
    uid: int
    gid: int
    time: float
