"""A copy of the locks to work on, which replaces the project's own in one go or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch_images.errors import LockError
from torch_images.interrupts import deferred


@dataclass(frozen=True)
class Draft:
    """Locks that are being written: `folder` is a copy of `locks`, the project's own.

    `before` has what `locks` had then, by name.
    """

    locks: Path
    folder: Path
    before: dict[str, bytes]

    def changed(self) -> tuple[str, ...]:
        """The names of the files that the draft changes, adds or removes, sorted."""
        ours = _texts(self.folder)
        return tuple(sorted(n for n in ours | self.before if ours.get(n) != self.before.get(n)))

    def put(self, more: Mapping[Path, tuple[str, str]]) -> None:
        """Bring the changes of the draft into the project's locks, and those of other files.

        `more` has the text that such a file had, and the new one. What others have changed since
        stays: raises LockError if that is one of these files. Nothing changes after an error.
        """
        ours, theirs, changed = _texts(self.folder), _texts(self.locks), self.changed()
        new = {self.locks / name: ours[name] for name in changed if name in ours}
        new |= {path: text.encode() for path, (_, text) in more.items()}
        others = [f"locks/{name}" for name in changed if theirs.get(name) != self.before.get(name)]
        others += [path.name for path, (old, _) in more.items() if path.read_text() != old]
        if others:
            raise LockError(f"{others[0]} was changed while this run resolved it", "run it again")
        self.locks.mkdir(parents=True, exist_ok=True)
        partial = {path.with_name(f".{path.name}.partial"): path for path in new}
        try:
            for file, path in partial.items():
                file.write_bytes(new[path])
                if path.exists():
                    shutil.copymode(path, file)
            with deferred():
                for file, path in partial.items():
                    os.replace(file, path)
                for name in changed:
                    if name not in ours:
                        (self.locks / name).unlink()
        finally:
            for file in partial:
                file.unlink(missing_ok=True)


def draft(locks: Path, room: Path) -> Draft:
    """A new draft of the locks in a folder, inside the folder `room`."""
    folder = room / "locks"
    folder.mkdir()
    before = _texts(locks)
    for name, text in before.items():
        (folder / name).write_bytes(text)
    return Draft(locks, folder, before)


def _texts(folder: Path) -> dict[str, bytes]:
    """The lock files in a folder; nothing else there is read, copied or removed."""
    return {path.name: path.read_bytes() for path in folder.glob("*.json")}
