"""A copy of the locks to work on, which replaces the project's own in one go or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch_images.errors import LockError
from torch_images.interrupts import held_back


@dataclass(frozen=True)
class Draft:
    """Locks that are being written: `folder` is a copy of `locks`, the project's own."""

    locks: Path
    folder: Path

    def changed(self) -> tuple[str, ...]:
        """The names of the files that differ, sorted; also of those that only one folder has."""
        ours, theirs = _texts(self.folder), _texts(self.locks)
        return tuple(sorted(n for n in ours | theirs if ours.get(n) != theirs.get(n)))

    def put(self, more: Mapping[Path, str]) -> None:
        """Make the project's locks those of the draft, and write other files with these texts.

        Nothing changes if one file cannot be written. Raises LockError if a folder has its name.
        """
        ours = _texts(self.folder)
        new = {self.locks / name: ours[name] for name in self.changed() if name in ours}
        new |= {path: text.encode() for path, text in more.items()}
        gone = [self.locks / name for name in self.changed() if name not in ours]
        partial = {path.with_name(f".{path.name}.partial"): path for path in new}
        for path in new:
            if path.is_dir():
                raise LockError(f"locks/{path.name} is a folder", "move it away")
        self.locks.mkdir(parents=True, exist_ok=True)
        try:
            for file, path in partial.items():
                file.write_bytes(new[path])
                if path.exists():
                    shutil.copymode(path, file)
            with held_back():
                for file, path in partial.items():
                    os.replace(file, path)
                for path in gone:
                    path.unlink()
        finally:
            for file in partial:
                file.unlink(missing_ok=True)


def draft(locks: Path, room: Path) -> Draft:
    """A new draft of the locks in a folder, inside the folder `room`."""
    folder = room / "locks"
    folder.mkdir()
    for name, text in _texts(locks).items():
        (folder / name).write_bytes(text)
    return Draft(locks, folder)


def _texts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in _files(folder)}


def _files(folder: Path) -> Iterator[Path]:
    """The lock files in a folder; nothing else there is read, copied or removed."""
    for pattern in ("*.txt", "*.yaml"):
        yield from (path for path in folder.glob(pattern) if path.is_file())
