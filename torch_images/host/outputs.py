"""Folders that a user names for results: new, empty, or with nothing but earlier results in them.

A list of what was written lies in each, with hashes (`sha256sum --check .torch-images` reads it).
What is not on it, or was changed since, is the user's own: nothing is written then.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torch_images.errors import UsageError

MARK = ".torch-images"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_ADVICE = "name a new or an empty folder with --output"


def claim(folder: Path) -> Path:
    """The absolute path of a folder that may be written. Nothing is changed, nothing is made.

    Raises UsageError for a link, for the current folder and those above it, for what is no folder
    or cannot be written, and for a folder with anything that was not written here before.
    """
    if os.path.islink(os.path.abspath(folder)):  # noqa: PTH100, PTH114  no slash, no exception
        raise UsageError(f"{folder} is a link", _ADVICE)
    path = Path(os.path.realpath(folder))
    here = Path(os.path.realpath("."))
    if path == here or path in here.parents:
        raise UsageError(f"{folder} is the folder that this runs in, or above it", _ADVICE)
    with saying(folder):
        nearest = next(p for p in (path, *path.parents) if os.path.lexists(p))
        if not nearest.is_dir():
            raise UsageError(f"{nearest} is not a folder", _ADVICE)
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise UsageError(f"{folder} cannot be written", _ADVICE)
        if nearest == path and (other := _foreign(path)):
            raise UsageError(f"{folder} has {other}, which was not written by this", _ADVICE)
    return path


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A folder to fill, which then takes the place of another one, at once or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".torch-images-") as scratch:
        made, before = Path(scratch, "made"), Path(scratch, "before")
        made.mkdir()
        yield made
        there = os.path.lexists(folder)
        if there:
            folder.rename(before)
        try:
            made.rename(folder)
        except OSError:
            if there:
                before.rename(folder)
            raise


def mark(folder: Path, made: Path, *names: str) -> None:
    """List files of `made`, those with these names or all, beside those listed in `folder`."""
    new = {name: _sha256(made / name) for name in names or _files(made)}
    listed = {**_listed(folder), **new}
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(listed.items()))
    (folder / MARK).write_text(text)


@contextlib.contextmanager
def saying(folder: Path) -> Iterator[None]:
    """Turn what the system refuses in a folder into a UsageError; a full disk is none."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UsageError(f"{folder} cannot be written: {error.strerror}", _ADVICE) from None


def _foreign(folder: Path) -> str:
    """The name of something in a folder that is not as it was written here; "" for none."""
    names = sorted(os.listdir(folder))  # noqa: PTH208  names are what is wanted
    if not names:
        return ""
    listed = _listed(folder)
    if not listed:
        return names[0]
    parents = {str(parent) for name in listed for parent in Path(name).parents}
    for top, folders, files in os.walk(folder, onerror=_fail):
        for name in sorted([*folders, *files]):
            path = Path(top, name)
            known = str(path.relative_to(folder))
            if path.is_symlink():
                return known
            if path.is_dir():
                if known not in parents:
                    return known
            elif known != MARK and not (path.is_file() and listed.get(known) == _sha256(path)):
                return known
    return ""


def _listed(folder: Path) -> dict[str, str]:
    """SHA-256 by the name of each file that was written to a folder; {} where none was."""
    path = folder / MARK
    if not path.is_file():
        return {}
    lines = path.read_text(errors="replace").splitlines()
    return {found[2]: found[1] for line in lines if (found := _LINE.fullmatch(line))}


def _files(folder: Path) -> list[str]:
    return [str(p.relative_to(folder)) for p in sorted(folder.rglob("*")) if p.is_file()]


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fail(error: OSError) -> None:
    raise error
