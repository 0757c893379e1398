"""Leave out of a compiled wheel what `removals` of images.yaml names.

Published wheels lose it when they are packed into layers: torch_images/layers/install.py. A
compiled wheel has machine code for its own architectures only: there is no code to leave out.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path


def apply(files: Path, removals: Mapping[str, Sequence[str]]) -> str:
    """Remove from an unpacked wheel, and say what went; "" if nothing did.

    `removals` has globs below site-packages, in which * also stands for slashes: of `files` that
    are left out, and of libraries that lose their `symbols`, debug information included. A glob
    that finds nothing is no mistake: a compiled wheel need not have what the published one has.
    """
    before = _size(files)
    gone = _matching(files, removals["files"])
    for path in gone:
        path.unlink()
    stripped = _matching(files, removals["symbols"])
    for path in stripped:
        subprocess.run(["strip", "--strip-all", path], check=True)
    if not gone and not stripped:
        return ""
    saved = (before - _size(files)) / 1e6
    return f"{len(gone)} files left out, {len(stripped)} libraries stripped, {saved:.1f} MB less"


def is_elf(path: Path) -> bool:
    """Whether a path is a file of machine code for Linux, and no link."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _matching(files: Path, globs: Sequence[str]) -> list[Path]:
    paths = (p for p in sorted(files.rglob("*")) if p.is_file() or p.is_symlink())
    return [
        path
        for path in paths
        if any(fnmatchcase(path.relative_to(files).as_posix(), glob) for glob in globs)
    ]


def _size(files: Path) -> int:
    return sum(path.lstat().st_size for path in files.rglob("*"))
