"""What a layer changes in the layers below it: the files that it has, and those that it hides."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, cast

import zstandard

_CHUNK = 1 << 20
# See "Whiteouts" in the OCI image specification, layer.md.
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


@dataclass(frozen=True)
class Contents:
    """Paths without a leading "/": `files` of a layer, and those that it hides or removes.

    `files` are all but folders. `removed` may be folders, which are hidden with all that is below.
    """

    files: frozenset[str]
    removed: frozenset[str] = frozenset()

    def changes(self, files: Iterable[str]) -> bool:
        """Whether this layer replaces or hides one of the `files` of a layer below."""
        ours = self.files | self.removed
        return bool(ours) and any(not ours.isdisjoint(_way(path)) for path in files)


def contents(tar: IO[bytes]) -> Contents:
    """What the tar of a layer changes."""
    files, removed = set[str](), set[str]()
    with tarfile.open(fileobj=tar, mode="r|", bufsize=_CHUNK) as archive:
        for member in archive:
            path = PurePosixPath(member.name.lstrip("/"))
            if path.name == _OPAQUE:
                removed.add(str(path.parent))
            elif path.name.startswith(_WHITEOUT):
                removed.add(str(path.with_name(path.name.removeprefix(_WHITEOUT))))
            elif not member.isdir():
                files.add(str(path))
    return Contents(frozenset(files), frozenset(removed))


def unpacked(blob: IO[bytes], media_type: str) -> IO[bytes]:
    """The tar of a layer, from its blob, as a forward-only file."""
    if media_type.endswith("zstd"):
        return cast("IO[bytes]", zstandard.ZstdDecompressor().stream_reader(blob))
    return cast("IO[bytes]", gzip.open(blob)) if media_type.endswith("gzip") else blob


def _way(path: str) -> Iterator[str]:
    """A path and all folders above it, "." included."""
    yield path
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
    yield "."
