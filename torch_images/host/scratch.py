"""Temporary folders of one process, which later processes remove if it was killed.

A file in the folder is locked while its process lives; the kernel releases it however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

LOCK_FILE = ".torch-images-scratch"
_MOUNTS = Path("/proc/self/mountinfo")

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def scratch(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder in `parent`, removed at the end, like those that killed processes left there."""
    for folder in left_behind(parent):
        discard(folder)
    new = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
    # The file is locked before it gets the name by which other processes recognise the folder.
    with (new / f"{LOCK_FILE}.new").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        Path(guard.name).rename(new / LOCK_FILE)
        try:
            yield new
        finally:
            if is_free(new):
                with contextlib.suppress(OSError):  # a thread still writes: the next run removes it
                    _remove(new)


def left_behind(parent: Path) -> tuple[Path, ...]:
    """This user's scratch folders in `parent` whose process has ended."""
    folders = []
    for path in sorted(parent.glob(f"*/{LOCK_FILE}")):
        with contextlib.suppress(OSError), _locked(path):  # another user's cannot be opened
            if path.parent.lstat().st_uid == os.geteuid() and not path.parent.is_symlink():
                folders.append(path.parent)
    return tuple(folders)


def discard(folder: Path) -> bool:
    """Remove a scratch folder as `remove_tree` does, if its process has ended."""
    try:
        with _locked(folder / LOCK_FILE):
            return remove_tree(folder)
    except OSError:  # locked, or already removed
        return False


def remove_tree(tree: Path) -> bool:
    """Remove a file or a whole folder. Returns whether it is gone.

    Removes nothing if something is mounted at or below it: those are other file systems, such as
    the host's own /dev/shm.
    """
    if not is_free(tree):
        return False
    try:
        _remove(tree)
    except FileNotFoundError:
        return not tree.exists()
    except OSError as error:
        _log.warning("left %s: %s", tree, error)
        return False
    return True


def _remove(tree: Path) -> None:
    if tree.is_symlink() or not tree.is_dir():
        tree.unlink()
        return
    # The file that marks a scratch folder goes last: an interrupted removal can be repeated.
    for path in sorted(tree.iterdir(), key=lambda path: path.name == LOCK_FILE):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            shutil.rmtree(path)
    tree.rmdir()


def is_free(tree: Path) -> bool:
    """Whether nothing is mounted at or below a path; else warns with the mount points."""
    if mounts := _mounts(tree):
        _log.warning("left %s: unmount %s first", tree, ", ".join(map(str, mounts)))
    return not mounts


def _mounts(tree: Path) -> tuple[Path, ...]:
    """The mount points at or below a path, as this process sees them."""
    real = Path(os.path.realpath(tree))
    try:
        lines = _MOUNTS.read_bytes().splitlines()
    except OSError:  # not Linux
        return ()
    points = (re.sub(rb"\\([0-7]{3})", _letter, line.split(b" ")[4]) for line in lines)
    return tuple(path for p in points if (path := Path(os.fsdecode(p))).is_relative_to(real))


def _letter(escaped: re.Match[bytes]) -> bytes:
    return bytes([int(escaped[1], 8)])


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file. Raises OSError if another process holds it, and for a link."""
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(file)
