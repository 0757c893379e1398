"""Locks for linux/arm64 that the project may not have yet, so that an image there can be complete."""

from __future__ import annotations

import shutil
from pathlib import Path


def with_compat(locks: Path, folder: Path) -> Path:
    """A copy of the locks in which CUDA 13.0 has compat libraries for linux/arm64, too."""
    shutil.copytree(locks, folder)
    target = folder / "compat-cu130-arm64.txt"
    if not target.exists():
        text = (folder / "compat-cu130.txt").read_text()
        text = text.replace("# system: ", "# platform: linux/arm64\n# system: ")
        target.write_text(text.replace("x86_64", "sbsa").replace("_amd64.deb", "_arm64.deb"))
    return folder
