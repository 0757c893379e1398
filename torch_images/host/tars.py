"""The tars that an engine reads and writes."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

from torch_images import jsondoc

END = bytes(2 * tarfile.BLOCKSIZE)  # the end of a tar

_CHUNK = 1 << 20
_LARGEST_DOCUMENT = 4_000_000  # bytes; a manifest or configuration is some kilobytes


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


def json_blobs(chunks: Iterable[bytes]) -> dict[str, Any]:
    """The JSON blobs in a tar of an OCI layout, by digest such as "sha256:..."."""
    documents: dict[str, Any] = {}
    with tarfile.open(fileobj=ChunkStream(chunks), mode="r|") as archive:
        for member in archive:
            name = member.name.removeprefix("blobs/sha256/")
            if name != member.name and member.size < _LARGEST_DOCUMENT:
                file = archive.extractfile(member)
                with contextlib.suppress(ValueError):  # a small layer
                    documents[f"sha256:{name}"] = jsondoc.parse(file.read() if file else b"")
    return documents


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
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        files = [(member, archive.extractfile(member)) for member in archive]
        return {
            member.name.rpartition("/")[2]: file.read().decode() for member, file in files if file
        }


def first_file(chunks: Iterable[bytes]) -> bytes:
    """The content of a tar's first member, which must be a file."""
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        file = archive.extractfile(archive.next())  # type: ignore[arg-type]
        assert file is not None
        return file.read()


def forward_file(chunks: Iterable[bytes]) -> IO[bytes]:
    """A tar's first member, which must be a file, as a file that can only be read forwards."""
    archive = tarfile.open(fileobj=ChunkStream(chunks), mode="r|")  # noqa: SIM115  its caller's
    file = archive.extractfile(archive.next())  # type: ignore[arg-type]
    assert file is not None
    return file
