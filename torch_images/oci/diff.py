"""The differences of two images, layer by layer and file by file.

Reads the output of `docker save`: a tar of an OCI layout. Unpacks only layers whose uncompressed
content differs, as a stream.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import zstandard

from torch_images.errors import EngineError, shown
from torch_images.jsondoc import MalformedError, member, parse
from torch_images.oci.contents import unpacked

_CHUNK = 1 << 20

# Exceptions of the readers of archives for damaged files.
_DAMAGES = (
    tarfile.TarError,
    zstandard.ZstdError,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    KeyError,
)
_TYPES = {
    tarfile.REGTYPE: "file",
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
    tarfile.FIFOTYPE: "fifo",
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One difference: `layer` counts from 1, and is 0 for the image's configuration.

    `kind` is one of: content, type, mode, owner, time, link, attributes, missing, added, order,
    encoding (equal files, another tar), compression (equal tar), configuration.
    """

    layer: int
    path: str
    kind: str
    first: str = ""
    second: str = ""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of two images; digests are of manifest and configuration.

    The configuration names the uncompressed layers: if its digests are equal, so is everything that
    a container sees.
    """

    manifests: tuple[str, str]
    configs: tuple[str, str]
    differences: tuple[Difference, ...]


# A member of a layer: everything that affects the digest except its position, as text.
_Entry = Mapping[str, str]


class Archive:
    """An image in a tar that `docker save` wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._named():
            self._tar = tarfile.open(path)
        try:
            with self._named():
                self._read()
        except BaseException:
            self._tar.close()
            raise

    def _read(self) -> None:
        """Read the documents."""
        index = self._json("index.json")
        self.manifest_digest = member(index, "manifests", 0, "digest", kind=str)
        self.manifest = self._json(_blob(self.manifest_digest))
        if "manifests" in self.manifest:
            raise EngineError("the image is an index of several platforms, not one image")
        self.config_digest = member(self.manifest, "config", "digest", kind=str)
        self.config = self._json(_blob(self.config_digest))
        self._layers = member(self.manifest, "layers", kind=list)
        for layer in self._layers:
            _blob(member(layer, "digest", kind=str))
            member(layer, "mediaType", kind=str)
            member(layer, "size", kind=int)
        if len(member(self.config, "rootfs", "diff_ids", kind=list)) != len(self._layers):
            raise MalformedError("manifest and configuration have different layers")

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Turn errors into an EngineError with the file. Passes OSErrors of the system on."""
        try:
            yield
        except _DAMAGES as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = shown(" ".join(str(error).split())) or "it ends too early"
            raise EngineError(
                f"{self._path.name} is not an image from `docker save`: {reason}"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()

    def layers(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Digest of the uncompressed layer, and descriptor of the blob, of each layer."""
        return list(zip(self.config["rootfs"]["diff_ids"], self._layers, strict=True))

    def entries(self, descriptor: Mapping[str, Any]) -> Iterator[tuple[str, _Entry]]:
        """The members of a layer, in order. Raises EngineError for a damaged layer."""
        with self._named():
            yield from self._entries(descriptor)

    def _entries(self, descriptor: Mapping[str, Any]) -> Iterator[tuple[str, _Entry]]:
        with tarfile.open(fileobj=self._unpacked(descriptor), mode="r|") as layer:
            for each in layer:
                yield each.name.removeprefix("./").rstrip("/") or ".", _entry(layer, each)

    def _unpacked(self, descriptor: Mapping[str, Any]) -> IO[bytes]:
        """The tar of a layer as a forward-only file."""
        return unpacked(self._open(_blob(descriptor["digest"])), str(descriptor["mediaType"]))

    def _open(self, name: str) -> IO[bytes]:
        content = self._tar.extractfile(name)
        if content is None:
            raise MalformedError(f"{name} is not a file")
        return content

    def _json(self, name: str) -> dict[str, Any]:
        return member(parse(self._open(name).read()), kind=dict)


def compare(first: Path, second: Path) -> Comparison:
    """Compare two images in the files that `docker save` wrote."""
    with Archive(first) as one, Archive(second) as two:
        return Comparison(
            manifests=(one.manifest_digest, two.manifest_digest),
            configs=(one.config_digest, two.config_digest),
            differences=(*_configs(one.config, two.config), *_layers(one, two)),
        )


def _configs(one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[Difference]:
    """Differences of the configuration, except the layers, which are compared separately."""
    flat = [dict(_flat({k: v for k, v in c.items() if k != "rootfs"})) for c in (one, two)]
    for path in sorted(flat[0].keys() | flat[1].keys()):
        values = [side.get(path, "") for side in flat]
        if values[0] != values[1]:
            yield Difference(
                layer=0, path=path, kind="configuration", first=values[0], second=values[1]
            )


def _flat(document: Any) -> Iterator[tuple[str, str]]:
    """The leaves of a JSON document with their paths. Not recursive: it may be deep."""
    left = [("", document)]
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{path}.{key}" if path else key, value[key]) for key in value]
        elif isinstance(value, list):
            left += [(f"{path}[{number}]", item) for number, item in enumerate(value)]
        else:
            yield path, str(value)


def _layers(one: Archive, two: Archive) -> Iterator[Difference]:
    ours, theirs = one.layers(), two.layers()
    for number in range(1, max(len(ours), len(theirs)) + 1):
        if number > min(len(ours), len(theirs)):
            kind = "missing" if number > len(theirs) else "added"
            yield Difference(layer=number, path="(the whole layer)", kind=kind)
            continue
        (diff_a, blob_a), (diff_b, blob_b) = ours[number - 1], theirs[number - 1]
        if diff_a == diff_b:
            if blob_a["digest"] != blob_b["digest"]:
                yield Difference(
                    layer=number,
                    path="(the whole layer)",
                    kind="compression",
                    first=f"{blob_a['mediaType']}, {blob_a['size']} bytes",
                    second=f"{blob_b['mediaType']}, {blob_b['size']} bytes",
                )
            continue
        differing = list(_entries(number, dict(one.entries(blob_a)), dict(two.entries(blob_b))))
        yield from differing or [
            Difference(layer=number, path="(the whole layer)", kind="encoding")
        ]


def _entries(
    layer: int, one: Mapping[str, _Entry], two: Mapping[str, _Entry]
) -> Iterator[Difference]:
    """Differences between members of a layer, by path; then the first member out of order."""
    for path in sorted(one.keys() | two.keys()):
        if path not in two:
            yield Difference(layer=layer, path=path, kind="missing", first=one[path]["type"])
        elif path not in one:
            yield Difference(layer=layer, path=path, kind="added", second=two[path]["type"])
        else:
            for kind, first in one[path].items():
                if first != (second := two[path][kind]):
                    yield Difference(layer=layer, path=path, kind=kind, first=first, second=second)
    shared = [[path for path in side if path in other] for side, other in ((one, two), (two, one))]
    for first, second in zip(*shared, strict=True):
        if first != second:
            yield Difference(layer=layer, path=first, kind="order", first=first, second=second)
            return


def _time(seconds: float) -> str:
    """Seconds since 1970, whole ones without a fraction."""
    return str(int(seconds)) if seconds.is_integer() else f"{seconds:.9f}"


def _entry(layer: tarfile.TarFile, member: tarfile.TarInfo) -> _Entry:
    digest = hashlib.sha256()
    content = layer.extractfile(member) if member.isreg() else None
    while content and (chunk := content.read(_CHUNK)):
        digest.update(chunk)
    attributes = {k: v for k, v in member.pax_headers.items() if k.startswith("SCHILY.xattr.")}
    return {
        "type": _TYPES.get(member.type, "other"),
        "content": f"{member.size} bytes {digest.hexdigest() if content else ''}",
        "mode": f"{member.mode:04o}",
        "owner": f"{member.uid}:{member.gid}",
        "time": _time(float(member.mtime)),
        "link": member.linkname,
        "attributes": str(dict(sorted(attributes.items()))),
    }


def _blob(digest: str) -> str:
    """The path of a digest's blob in an archive. Raises MalformedError."""
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise MalformedError(f"{shown(digest)} is not a digest")
    return f"blobs/{digest.replace(':', '/')}"
