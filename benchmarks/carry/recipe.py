"""A layer as what another machine has, differences to that, and the rest.

A layer of wheels is mostly files that a machine with the same wheels has installed, and files that
differ little from those of the same wheel for another Python. So its tar is cut into parts: bytes
that travel, files that are there, and files that are made of others by a difference.
"""

from __future__ import annotations

import hashlib
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import zstandard

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

RAW, SAME, PATCH = "raw", "same", "patch"
LEAST = 20_000  # bytes of a file that is worth a part of its own
# A difference may refer to all of the other file, up to 1 GiB.
_WINDOW = 30
_SMALLEST = 10  # the least that zstd takes


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a tar: `size` bytes of `kind`.

    `path` is of the file that is there, below the folder with packages, and "" for RAW. `sha256` is
    that of the part; a difference is kept under it.
    """

    kind: str
    size: int
    path: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class Installed:
    """A file that the other machine has: its size and SHA-256."""

    size: int
    sha256: str


def installed(site: Path) -> dict[str, Installed]:
    """The files below a folder with packages that are worth a part, by path."""
    found = {}
    for path in sorted(site.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size >= LEAST:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[path.relative_to(site).as_posix()] = Installed(path.stat().st_size, digest)
    return found


def cut(
    tar: Path,
    site: str,
    there: Mapping[str, Installed],
    reference: Callable[[str], bytes | None],
    keep: Callable[[str, bytes], None],
) -> Iterator[tuple[Part, bytes]]:
    """The parts of a tar, with the bytes that travel for each.

    `site` is the folder with packages in the image, with a slash at its end. `reference` gives the
    content of a file that is there, None if it cannot be had here. `keep` gets each difference, by
    the SHA-256 of what it makes.
    """
    with tar.open("rb") as stream, tarfile.open(tar) as members:
        done = 0
        for member in members:
            name = member.name.removeprefix("./")
            if not (member.isreg() and member.size >= LEAST and name.startswith(site)):
                continue
            path = name.removeprefix(site)
            stream.seek(member.offset_data)
            content = stream.read(member.size)
            digest = hashlib.sha256(content).hexdigest()
            kind = SAME if path in there and there[path].sha256 == digest else PATCH
            if kind == PATCH:
                other = reference(path) if path in there else None
                if other is None:
                    continue
                keep(digest, difference(other, content))
            stream.seek(done)
            raw = stream.read(member.offset_data - done)
            yield Part(kind=RAW, size=len(raw)), raw
            yield Part(kind=kind, size=member.size, path=path, sha256=digest), b""
            done = member.offset_data + member.size
        stream.seek(done)
        raw = stream.read()
        yield Part(kind=RAW, size=len(raw)), raw


def join(
    parts: Sequence[Part], raw: bytes, site: Path, difference_of: Callable[[str], bytes]
) -> Iterator[bytes]:
    """The tar again. Raises ValueError if a file is not the one that is meant."""
    at = 0
    for part in parts:
        if part.kind == RAW:
            yield raw[at : at + part.size]
            at += part.size
            continue
        content = (site / part.path).read_bytes()
        if part.kind == PATCH:
            content = applied(content, difference_of(part.sha256), part.size)
        if hashlib.sha256(content).hexdigest() != part.sha256:
            raise ValueError(f"{part.path} is not the file that the layer was cut by")
        yield content


def difference(old: bytes, new: bytes) -> bytes:
    """What makes `new` of `old`; like `zstd --patch-from`.

    `old` is a prefix, not a dictionary: only then are long matches found far behind. The difference
    of libtorch_cuda.so between two Pythons is 13 MB so, and 150 MB with a dictionary.
    """
    window = min(_WINDOW, max(_SMALLEST, (len(old) + len(new)).bit_length()))
    settings: dict[int, int] = {
        zstd.CompressionParameter.compression_level: 12,
        zstd.CompressionParameter.window_log: window,
        zstd.CompressionParameter.enable_long_distance_matching: 1,
    }
    prefix = zstd.ZstdDict(old, is_raw=True).as_prefix
    return zstd.compress(new, options=settings, zstd_dict=prefix)


def applied(old: bytes, change: bytes, size: int) -> bytes:
    """`difference`, the other way. Raises ValueError if it is not of `old`."""
    words = zstandard.ZstdCompressionDict(old, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    reader = zstandard.ZstdDecompressor(dict_data=words, max_window_size=2**31)
    try:
        return reader.decompress(change, max_output_size=size)
    except zstandard.ZstdError as error:
        raise ValueError(f"the difference cannot be applied: {error}") from None
