"""The paths of the project's own files: in a clone, or inside an installed package."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
PACKED = PACKAGE / "project"  # only in a wheel
PROJECT = "TORCH_IMAGES_PROJECT"
# The ledger of tested images, below the project's folder. It is no input of images.
LEDGER = Path("docs", "ledger.csv")


def project_root() -> Path:
    """The folder with images.yaml, docker/, scripts/: the clone, else its copy in the package."""
    return PACKED if PACKED.is_dir() else PACKAGE.parent


def version() -> str:
    """The version of torch-images."""
    text = (project_root() / "pyproject.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text)["project"]["version"])


def is_clone(root: Path) -> bool:
    """Whether a folder is a clone of the project, rather than a part of an installed package."""
    return root != PACKED


def own_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the user's own project: TORCH_IMAGES_PROJECT, which --project sets, or this."""
    return Path(environ.get(PROJECT) or ".").absolute()


def output_root(root: Path) -> Path:
    """The folder above `build` and `dist`: the clone, else the current folder."""
    return root if is_clone(root) else Path.cwd()


def config_file(root: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """images.yaml: TORCH_IMAGES_CONFIG, which --config sets, else the project's own."""
    path = environ.get("TORCH_IMAGES_CONFIG")
    return Path(path).absolute() if path else root / "images.yaml"


def locks_folder(root: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of locks: TORCH_IMAGES_LOCKS, else locks/ beside images.yaml."""
    path = environ.get("TORCH_IMAGES_LOCKS")
    return Path(path).absolute() if path else config_file(root, environ).parent / "locks"


def is_packaged(path: Path) -> bool:
    """Whether a path, with links resolved, is inside the installed package's own files."""
    return path.resolve().is_relative_to(PACKED)
