"""What a layer changes in the layers below it: the files that it has, and those that it hides."""

from __future__ import annotations

import gzip
import tarfile
from dataclasses import dataclass
from functools import cached_property
from typing import IO, cast

import zstandard

_CHUNK = 1 << 20
# See "Whiteouts" in the OCI image specification, layer.md.
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


@dataclass(frozen=True)
class Contents:
    """Paths without a leading "/": what a layer has, and what it removes from those below.

    `files` are all but folders. `removed` may be folders, which go with all that is in them.
    """

    files: frozenset[str]
    folders: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()

    @cached_property
    def ways(self) -> frozenset[str]:
        """All that it has, and the folders on the way there, "." included."""
        paths = {".", *self.files, *self.folders}
        for path in [*paths]:
            folder = path.rpartition("/")[0]
            while folder and folder not in paths:
                paths.add(folder)
                folder = folder.rpartition("/")[0]
        return frozenset(paths)

    @cached_property
    def entered(self) -> frozenset[str]:
        """The folders that it has, and those on the way there."""
        return self.ways - self.files

    def through(self, other: Contents) -> bool:
        """Whether it enters, as a folder, what another layer has as a link or a file.

        The paths of its files are then not those that the files get.
        """
        return not other.files.isdisjoint(self.entered)

    def changes(self, below: Contents) -> bool:
        """Whether this layer replaces or hides a file of a layer below."""
        kept = below.ways.isdisjoint(self.files) and below.ways.isdisjoint(self.removed)
        return not (kept and below.files.isdisjoint(self.ways))


def contents(tar: IO[bytes]) -> Contents:
    """What the tar of a layer changes."""
    files, folders, removed = set[str](), set[str](), set[str]()
    with tarfile.open(fileobj=tar, mode="r|", bufsize=_CHUNK) as archive:
        for member in archive:
            folder, _, name = member.name.lstrip("/").removeprefix("./").rpartition("/")
            if name == _OPAQUE:
                removed.add(folder or ".")
            elif name.startswith(_WHITEOUT):
                removed.add(f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/"))
            else:
                (folders if member.isdir() else files).add(f"{folder}/{name}".lstrip("/"))
    return Contents(frozenset(files), frozenset(folders), frozenset(removed))


def unpacked(blob: IO[bytes], media_type: str) -> IO[bytes]:
    """The tar of a layer, from its blob, as a forward-only file."""
    if media_type.endswith("zstd"):
        return cast("IO[bytes]", zstandard.ZstdDecompressor().stream_reader(blob))
    return cast("IO[bytes]", gzip.open(blob)) if media_type.endswith("gzip") else blob
