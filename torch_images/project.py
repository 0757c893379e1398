"""Where the project's own files lie: in a clone, or inside an installed package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
PACKED = PACKAGE / "project"  # only a wheel has it
# Which images were really built, below the project's folder. No image is made from it.
LEDGER = Path("docs", "ledger.csv")


def project_root() -> Path:
    """The folder with images.yaml, docker/, scripts/: the clone, else its copy in the package."""
    return PACKED if PACKED.is_dir() else PACKAGE.parent


def is_clone(root: Path) -> bool:
    """Whether a folder is a clone of the project, rather than what an installed package has."""
    return root != PACKED


def made_in(root: Path) -> Path:
    """The folder above `build` and `dist`: the clone, else the folder that a command runs in."""
    return root if is_clone(root) else Path.cwd()


def config_file(root: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The file of images: TORCH_IMAGES_CONFIG, which --config sets, else the project's own."""
    named = environ.get("TORCH_IMAGES_CONFIG")
    return Path(named).absolute() if named else root / "images.yaml"


def locks_folder(root: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of locks: TORCH_IMAGES_LOCKS, else the one beside the file of images."""
    named = environ.get("TORCH_IMAGES_LOCKS")
    return Path(named).absolute() if named else config_file(root, environ).parent / "locks"


def is_packaged(path: Path) -> bool:
    """Whether a path, or what it links to, lies inside the installed package's own files."""
    return path.resolve().is_relative_to(PACKED)
