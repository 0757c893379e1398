"""The folders and network that the pipeline uses on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch_images.errors import UsageError
from torch_images.host.network import Network


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The environment of a build: the project's folder, this user's cache, and the network.

    `locks` is the folder with the locks that builds read and `invoke lock` writes. `made` is the
    folder above `build` and `dist`: None for the project's own.
    """

    root: Path
    cache: Path
    network: Network
    locks: Path
    made: Path | None = None

    @property
    def output(self) -> Path:
        """The folder for all output that is not kept in git."""
        return (self.made or self.root) / "build"


def default_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """This user's cache: TORCH_IMAGES_CACHE, else below the XDG cache folder."""
    if environ.get("TORCH_IMAGES_CACHE"):
        return Path(environ["TORCH_IMAGES_CACHE"]).absolute()
    base = environ.get("XDG_CACHE_HOME") or home() / ".cache"
    return Path(base, "torch-images")


@contextlib.contextmanager
def alone(lock: Path, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock of a file, as soon as no other process holds it.

    Calls `waits` before it has to wait. The file stays, because waiting processes have it open.
    """
    with lock.open("w") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits()
            fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def home() -> Path:
    """This user's home. Raises UsageError for a user id without a name if HOME is not set."""
    try:
        return Path.home()
    except RuntimeError:
        problem = f"user id {os.getuid()} has no name, and therefore no home"
        raise UsageError(problem, "set HOME to a folder that it can write") from None


def scratch_room() -> Path:
    """The folder for large temporary trees: TMPDIR, else /var/tmp, on disk and writable by all."""
    return Path(os.environ.get("TMPDIR") or "/var/tmp")  # noqa: S108
