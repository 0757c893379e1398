"""Files of a build context, and those of a user's project among them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from torch_images.config.own import LOCK, Own
from torch_images.errors import UsageError, shown

# Bytes of all files of a project: they are read at once, and a change of one sends all again.
_MOST = 256_000_000
# What programs leave in a folder, and what is no source.
_SKIPPED = (".git", ".torch-images", ".venv", "*.pyc", "__pycache__")
# And what is no part of a package's source.
_BUILT = (".*", "*.egg-info", "build", "dist", "node_modules", LOCK, "venv")


@dataclass(frozen=True, kw_only=True)
class ContextFile:
    """One file of a build context, at a path relative to it."""

    path: str
    data: bytes
    executable: bool = False


def own_files(own: Own, *, package: bool) -> list[ContextFile]:
    """The files that a project puts into its image, and with `package` those of its package.

    Raises UsageError for a file that is missing, or no plain file, or outside the project's folder,
    and for too many bytes.
    """
    trees: list[tuple[str, str, tuple[str, ...]]] = [
        (source, f"own/files{target}", _SKIPPED) for source, target in own.files
    ]
    trees += [(".", "own/tree", (*_SKIPPED, *_BUILT))] if package else []
    files = [
        ContextFile(path=name, data=data, executable=os.access(path, os.X_OK))
        for path, name, data in _read(own, trees)
    ]
    return sorted(files, key=lambda file: file.path)


def own_checks(own: Own) -> dict[str, bytes]:
    """The files of the project's own checks by path below their folder; {} without checks.

    Raises UsageError as `own_files` does.
    """
    if not own.checks:
        return {}
    files = _read(own, [(own.checks, "", _SKIPPED)])
    return {name.removeprefix("/"): data for _, name, data in files}


def _read(
    own: Own, trees: Sequence[tuple[str, str, tuple[str, ...]]]
) -> Iterator[tuple[Path, str, bytes]]:
    """Each file of some trees, with its path in the context and its content.

    A tree is a path below the project's folder, a path in the context, and what it leaves out.
    """
    room = _MOST
    for source, target, skipped in trees:
        for path, name in _walk(own.root, own.root / source, target, skipped):
            room -= path.stat().st_size
            if room < 0:
                raise UsageError(
                    f"the files of {own.repository} have more than {_MOST / 1e6:.0f} MB: "
                    f"{shown(str(path.relative_to(own.root)))}",
                    "mount large files when a container starts, or download them there",
                )
            yield path, name, path.read_bytes()


def _walk(
    root: Path, path: Path, target: str, skipped: tuple[str, ...]
) -> Iterator[tuple[Path, str]]:
    """Each plain file at or below a path, with its path in the context."""
    name = shown(os.path.relpath(path, root))
    real = path.resolve()
    if not real.is_relative_to(root.resolve()):
        raise UsageError(f"{name} leads out of the project's folder", "copy what it leads to there")
    if path.is_symlink() and real in (root.resolve(), *path.absolute().parents):
        raise UsageError(f"{name} is a link to a folder above it", "remove it")
    if real.is_dir():
        for child in sorted(path.iterdir()):
            if not any(fnmatchcase(child.name, pattern) for pattern in skipped):
                yield from _walk(root, child, f"{target}/{child.name}", skipped)
    elif real.is_file():
        try:
            target.encode()
        except UnicodeEncodeError:
            raise UsageError(f"the name of {name} is not UTF-8", "rename it") from None
        yield path, target
    else:
        raise UsageError(f"the project has no file {name}", "correct `files` of its table")
