"""The tars that an engine reads and writes."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, BinaryIO

END = bytes(2 * tarfile.BLOCKSIZE)  # the end of a tar

_CHUNK = 1 << 20


class ChunkStream(io.RawIOBase):
    """Chunks of bytes as a file that can only be read forwards."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._left = b""

    def readable(self) -> bool:
        """True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes; fewer only at the end."""
        parts, count = [self._left], len(self._left)
        while count < size and (chunk := next(self._chunks, b"")):
            parts.append(chunk)
            count += len(chunk)
        data = b"".join(parts)
        self._left = data[size:]
        return data[:size]


def pack(files: Mapping[str, bytes]) -> bytes:
    """A tar of files by name, readable by all."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mode = 0o644
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def blob(path: Path, digest: str) -> Iterator[bytes]:
    """A blob in the tar of an OCI layout; `digest` is its SHA-256 in hexadecimal."""
    with path.open("rb") as stream:
        yield from packed(f"blobs/sha256/{digest}", stream, path.stat().st_size)


def packed(name: str, stream: BinaryIO, size: int) -> Iterator[bytes]:
    """A file in a tar."""
    member = tarfile.TarInfo(name)
    member.size = size
    yield member.tobuf()
    while data := stream.read(_CHUNK):
        yield data
    if padding := -size % tarfile.BLOCKSIZE:
        yield bytes(padding)


def texts(chunks: Iterable[bytes]) -> dict[str, str]:
    """The text of each regular file in a tar, by the last part of its path."""
    with tarfile.open(fileobj=ChunkStream(chunks), mode="r|") as archive:
        return {
            member.name.rpartition("/")[2]: file.read().decode()
            for member in archive
            if (file := archive.extractfile(member))
        }


def first_file(chunks: Iterable[bytes]) -> IO[bytes]:
    """A tar's first member, which must be a file, as a file that can only be read forwards."""
    archive = tarfile.open(fileobj=ChunkStream(chunks), mode="r|")  # noqa: SIM115  its caller's
    file = archive.extractfile(archive.next())  # type: ignore[arg-type]
    assert file is not None
    return file
