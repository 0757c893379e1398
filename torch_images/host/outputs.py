"""Folders that a user names for results: new, empty, or with only earlier results in them.

Each has a list of the files written, with hashes (`sha256sum --check .torch-images` reads it).
A file that is not listed, or was changed, is the user's: then nothing is written.
"""

from __future__ import annotations

import contextlib
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
    """The absolute path of a folder that may be written. Changes and creates nothing.

    Raises UsageError for the current folder and those above it, if it is not a folder or not
    writable, and for a folder with files that this program did not write.
    """
    path = Path(os.path.realpath(folder))
    here = Path(os.path.realpath("."))
    if path == here or path in here.parents:
        raise UsageError(f"{folder} is the current folder, or above it", _ADVICE)
    nearest = next(p for p in (path, *path.parents) if os.path.lexists(p))
    if not nearest.is_dir():
        raise UsageError(f"{nearest} is not a folder", _ADVICE)
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(f"{folder} cannot be written", _ADVICE)
    if nearest == path and (other := _foreign(path)):
        raise UsageError(f"{folder} has {other}, which this program did not write", _ADVICE)
    return path


@contextlib.contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A folder to fill, which then replaces the user's `folder` in one step or not at all.

    Raises UsageError as `claim` does, before it is filled and before it replaces the other.
    """
    path = claim(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".torch-images-") as scratch:
        new, before = Path(scratch, "made"), Path(scratch, "before")
        new.mkdir()
        yield new
        files = sorted(file for file in new.rglob("*") if file.is_file())
        lines = [f"{_sha256(file)}  {file.relative_to(new)}\n" for file in files]
        (new / MARK).write_text("".join(lines))
        exists = claim(folder).exists()  # again: filling may have taken hours
        if exists:
            path.rename(before)
        try:
            new.rename(path)
        except OSError:
            if exists:
                before.rename(path)
            raise


def write(path: Path, text: str) -> None:
    """Write a file in one step, below folders that may be missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as half:
        half.write(text.encode())
    Path(half.name).chmod(0o644)
    os.replace(half.name, path)


def _foreign(folder: Path) -> str:
    """The name of a file in a folder that this program did not write so, else ""."""
    listed = _listed(folder)
    parents = {str(parent) for name in listed for parent in Path(name).parents}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() and not path.is_symlink():
            ours = name in parents
        elif path.is_symlink() or not path.is_file():
            ours = False
        else:
            ours = name == MARK or listed.get(name) == _sha256(path)
        if not ours:
            return name
    return ""


def _listed(folder: Path) -> dict[str, str]:
    """SHA-256 by the name of each file that was written to a folder; {} if none was."""
    path = folder / MARK
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return {match[2]: match[1] for line in lines if (match := _LINE.fullmatch(line))}


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
