"""Time and disk of one piece of work."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PAUSE = 0.25  # seconds between two looks at the disk


@dataclass
class Measured:
    """Wall time in seconds, and the most bytes of disk that were in use beyond those before."""

    seconds: float = 0.0
    disk: int = 0


@contextlib.contextmanager
def measuring(folder: Path) -> Iterator[Measured]:
    """Measure what is done meanwhile; `folder` is on the disk to watch."""
    found, done = Measured(), threading.Event()
    before = _used(folder)

    def watch() -> None:
        while not done.wait(_PAUSE):
            found.disk = max(found.disk, _used(folder) - before)

    watcher = threading.Thread(target=watch)
    started = time.monotonic()
    watcher.start()
    try:
        yield found
    finally:
        found.seconds = time.monotonic() - started
        done.set()
        watcher.join()


def _used(folder: Path) -> int:
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize
