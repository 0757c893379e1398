"""The spec files of the Container Device Interface on this machine. It changes nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from torch_images.host.cdi import MOST_BYTES, SpecFile, parse_spec

# Where specs lie by default: written by hand, and made anew at each start of the machine.
FOLDERS = ("/etc/cdi", "/var/run/cdi")
_SUFFIXES = (".json", ".yaml")  # engines read no others, and no folders below
_MOST_FILES = 200  # of one folder


def read_folder(folder: Path) -> tuple[SpecFile, ...]:
    """The spec files of a folder, in the order of their names; none for a folder that is missing.

    Whatever cannot be read is a SpecFile with a problem.
    """
    try:
        with os.scandir(folder) as entries:
            names = [
                entry.name
                for entry in entries
                if Path(entry.name).suffix in _SUFFIXES and not entry.is_dir(follow_symlinks=False)
            ]
    except FileNotFoundError:
        return ()
    except OSError as error:
        return (_unreadable(folder, error),)
    files = [_read(folder / name) for name in sorted(names)[:_MOST_FILES]]
    if len(names) > _MOST_FILES:
        problem = f"it has more than {_MOST_FILES} spec files"
        files.append(SpecFile(path=str(folder), problem=problem, readable=False))
    return tuple(files)


def read_folders(folders: Iterable[str]) -> tuple[tuple[SpecFile, ...], ...]:
    """The spec files of each folder, once where one is a link to another."""
    paths = {os.path.realpath(folder): Path(folder) for folder in folders}
    return tuple(read_folder(path) for path in paths.values())


def _read(path: Path) -> SpecFile:
    """A spec file, through links."""
    try:
        # A pipe would never open otherwise.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return SpecFile(path=str(path), problem="it is not a file")
            with os.fdopen(handle, "rb", closefd=False) as stream:
                return parse_spec(str(path), stream.read(MOST_BYTES + 1))
        finally:
            os.close(handle)
    except OSError as error:
        return _unreadable(path, error)


def _unreadable(path: Path, error: OSError) -> SpecFile:
    """A file that could not be read; one that this user may not read can hold anything."""
    closed = isinstance(error, PermissionError)
    return SpecFile(path=str(path), problem=str(error.strerror), readable=not closed)
