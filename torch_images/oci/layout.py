"""A root file system as an OCI image layout: deterministic tar, blobs, manifest.

Equal trees give equal bytes, whatever the time, umask or process id of the run that made them.
Format: https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import zstandard

from torch_images import jsondoc
from torch_images.errors import BuildError, shown
from torch_images.jobs import processors
from torch_images.platforms import AMD64, Platform

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CAPABILITY = "SCHILY.xattr.security.capability"
LAYER = "application/vnd.oci.image.layer.v1.tar"

# The time of every file, in seconds since 1970: 1980-01-01, the first that a zip archive (a wheel)
# can hold. Not the lock's date: a new lock must not change layers whose content stays.
EPOCH = 315532800
_CREATED = datetime.fromtimestamp(EPOCH, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

# Machine code repeats itself over long distances. This window and table make 2389 MB of the large
# libraries of CUDA 13.0 and its torch, 4398 MB, in 12.5 s of an H200's host; level 3 makes 2401 in
# 17.3, and what makes 2369 takes 22.7. A window of 8 MiB is the largest that every decoder must
# know (RFC 8878, 3.1.1.1.2).
_QUICK = 2, {"window_log": 23, "hash_log": 19, "min_match": 6}
# For what is packed once and then kept: a base.
_THOROUGH = 9, {"window_log": 23}
# For images that are pulled often. A window of 128 MiB saves 1 to 4 % more bytes, but containerd
# takes 2.7 times as long to unpack what has it: docs/performance.md.
_SMALL = 19, {"window_log": 23}
_VERSION = f"zstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}"
# What made the bytes of compressed layers: a part of every key that stands for them.
COMPRESSOR = f"{_VERSION} {_QUICK} {_THOROUGH}"
SMALL_COMPRESSOR = f"{_VERSION} {_SMALL}"


class Effort(enum.Enum):
    """How hard a layer is compressed. Each value is a level of zstd and its other settings.

    `THOROUGH` gives fewer bytes than `QUICK` and takes six times as long; `SMALL` gives the fewest,
    see docs/performance.md.
    """

    QUICK = _QUICK
    THOROUGH = _THOROUGH
    SMALL = _SMALL


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer: digest and size in bytes of the blob, and the digest of the tar inside it."""

    digest: str
    diff_id: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image without the blobs of its layers: the descriptor of its manifest, and its documents.

    The documents are the configuration and the manifest.
    """

    descriptor: Mapping[str, Any]
    documents: tuple[bytes, ...]

    @property
    def digest(self) -> str:
        """The manifest's digest."""
        return str(self.descriptor["digest"])


class Compressed(io.RawIOBase):
    """Takes a tar and writes it to `target` as a layer's blob, compressed by zstd.

    `threads`: zstd workers, 0 = in the caller. All counts >= 1 give equal bytes; 0 gives others.
    """

    def __init__(
        self, target: IO[bytes], threads: int = 1, *, effort: Effort = Effort.QUICK
    ) -> None:
        super().__init__()
        self._target, self._size, self._taken = target, 0, 0
        self._plain, self._packed = hashlib.sha256(), hashlib.sha256()
        level, options = effort.value
        settings = zstandard.ZstdCompressionParameters.from_level(level, threads=threads, **options)
        self._compressor = zstandard.ZstdCompressor(compression_params=settings).compressobj()

    def writable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Bytes taken so far."""
        return self._taken

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Take the next bytes of the tar."""
        self._taken += len(data)
        self._plain.update(data)
        self._store(self._compressor.compress(data))
        return len(data)

    def finish(self) -> Layer:
        """End the layer. Returns its digests and its size in bytes."""
        self._store(self._compressor.flush())
        digest, plain = self._packed.hexdigest(), self._plain.hexdigest()
        return Layer(digest=f"sha256:{digest}", diff_id=f"sha256:{plain}", size=self._size)

    def _store(self, data: bytes) -> None:
        self._packed.update(data)
        self._target.write(data)
        self._size += len(data)


def normalise(
    source: Path, target: IO[bytes], *, keep: Callable[[str], bool] = lambda _: True
) -> None:
    """Rewrite a tar: members sorted by name, all times EPOCH, numeric owners, no extras.

    Programs lose their setuid and setgid bits, see scripts/image/build/install-packages.
    `keep` gets each path without leading "./" and decides whether it stays. mmdebstrap's own tar
    names a process id in its headers, so equal trees differ.
    """
    with (
        tarfile.open(source, "r:") as old,
        tarfile.open(fileobj=target, mode="w:", format=tarfile.PAX_FORMAT) as new,
    ):
        members = {_path(member): member for member in old if keep(_path(member))}
        for name in sorted(members):
            member = members[name]
            member.name = name
            if member.islnk():
                member.linkname = member.linkname.removeprefix("./")
            member.mtime = EPOCH
            if not member.isdir():
                member.mode &= ~0o6000
            member.uname = member.gname = ""
            # Of the extended headers, file capabilities alone belong to the content.
            held = member.pax_headers.get(_CAPABILITY)
            member.pax_headers = {} if held is None else {_CAPABILITY: held}
            new.addfile(member, old.extractfile(member) if member.isreg() else None)


def write_layout(
    folder: Path, layer: Path, *, history: str, env: Iterable[str] = (), platform: Platform = AMD64
) -> str:
    """Write an OCI layout of one image with one layer into `folder`. Returns the manifest's digest.

    `platform` is what the image runs on; images on top of it have it from there. `layer` is a tar.
    It is compressed here, so that no build of an image has to do that again.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    packed = blobs / "packed"
    with layer.open("rb") as stream, packed.open("wb") as target:
        sink = Compressed(target, processors(), effort=Effort.THOROUGH)
        shutil.copyfileobj(stream, sink, 1 << 20)
        made = sink.finish()
    os.replace(packed, blobs / made.digest.removeprefix("sha256:"))
    return _write(folder, image(None, [(history, made)], env, platform))


def extend_layout(
    base: Path | None, layers: Iterable[tuple[str, Layer, Path]], folder: Path
) -> str:
    """Write a layout of the image in `base`, if any, with more layers. Returns its digest.

    Each of `layers` is its line of history, the layer, and the file with its blob.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    held = tuple(layers)
    for path in layout_layers(base) if base else ():
        _link(path, blobs / path.name)
    for _, layer, path in held:
        _link(path, blobs / layer.digest.removeprefix("sha256:"))
    return _write(folder, image(base, [(title, layer) for title, layer, _ in held]))


def image(
    base: Path | None,
    layers: Iterable[tuple[str, Layer]],
    env: Iterable[str] = (),
    platform: Platform = AMD64,
) -> Image:
    """The image in the layout `base`, if any, with more layers, each with its line of history.

    `env` and `platform` are those of an image without a base.
    """
    config = _image_config(env, platform)
    manifest: dict[str, Any] = {"schemaVersion": 2, "mediaType": MANIFEST, "layers": []}
    if base:
        manifest = _manifest_of(base)
        with _named(base):
            config = _document(base, jsondoc.member(manifest, "config", "digest", kind=str))
            jsondoc.member(config, "rootfs", "diff_ids", kind=list)
            jsondoc.member(config, "history", kind=list)
    for title, layer in layers:
        held = {"mediaType": f"{LAYER}+zstd", "digest": layer.digest, "size": layer.size}
        manifest["layers"].append(held)
        config["rootfs"]["diff_ids"].append(layer.diff_id)
        config["history"].append({"created": _CREATED, "created_by": title})
    manifest["config"] = _descriptor(CONFIG, _json(config))
    documents = (_json(config), _json(manifest))
    return Image(descriptor=_descriptor(MANIFEST, documents[1]), documents=documents)


def layout_files(made: Image, annotations: Mapping[str, str]) -> dict[str, bytes]:
    """The files of a layout of one image, but for the blobs of its layers; by path."""
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [{**made.descriptor, "annotations": dict(annotations)}],
    }
    documents = {f"blobs/sha256/{hashlib.sha256(d).hexdigest()}": d for d in made.documents}
    layout = b'{"imageLayoutVersion":"1.0.0"}'
    return {**documents, "oci-layout": layout, "index.json": _json(index)}


def layout_layers(folder: Path) -> tuple[Path, ...]:
    """The blobs of the layers of a layout, the lowest first. Raises BuildError."""
    layers = _manifest_of(folder)["layers"]
    with _named(folder):
        digests = [jsondoc.member(each, "digest", kind=str) for each in layers]
        return tuple(_blob(folder, digest) for digest in digests)


def layout_digest(folder: Path) -> str:
    """The digest of the one manifest of a layout that `write_layout` made. Raises BuildError."""
    with _named(folder):
        index = jsondoc.parse((folder / "index.json").read_bytes())
        digest = jsondoc.member(index, "manifests", 0, "digest", kind=str)
        return f"sha256:{_blob(folder, digest).name}"


@contextlib.contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Say which layout is damaged; those that are read here lie in the cache."""
    try:
        yield
    except (OSError, jsondoc.MalformedError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise BuildError(
            f"{folder} is not an OCI layout: {said}", "remove it, and it is made again"
        ) from None


def _manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest of a layout, which has a list of layers."""
    digest = layout_digest(folder)
    with _named(folder):
        manifest = _document(folder, digest)
        jsondoc.member(manifest, "layers", kind=list)
        return manifest


def _path(member: tarfile.TarInfo) -> str:
    return member.name.removeprefix("./").rstrip("/") or "."


def _json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def _image_config(env: Iterable[str], platform: Platform) -> dict[str, Any]:
    """The configuration of an image without layers.

    Without "created": BuildKit before 0.24 would take it over as the time of whatever is built on a
    base that is a named context (moby/buildkit#6098).
    """
    return {
        "architecture": platform.architecture,
        "os": "linux",
        "config": {"Env": list(env)},
        "rootfs": {"type": "layers", "diff_ids": []},
        "history": [],
    }


def _write(folder: Path, made: Image) -> str:
    """Complete a layout whose layers' blobs are there. Returns the manifest's digest."""
    files = layout_files(made, {"org.opencontainers.image.ref.name": "base"})
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return made.digest


def _blob(folder: Path, digest: str) -> Path:
    """Where a layout has what a digest names. Raises MalformedError."""
    if not _DIGEST.fullmatch(digest):
        raise jsondoc.MalformedError(f"{shown(digest)} is not a digest")
    return folder / "blobs" / "sha256" / digest.removeprefix("sha256:")


def _document(folder: Path, digest: str) -> dict[str, Any]:
    """The document that a digest names. Raises MalformedError for another one."""
    data = _blob(folder, digest).read_bytes()
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise jsondoc.MalformedError(f"{digest} is damaged")
    return jsondoc.member(jsondoc.parse(data), kind=dict)


def _link(source: Path, target: Path) -> None:
    """The same file under another name; a copy where file systems differ or know no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return {"mediaType": media_type, "digest": digest, "size": len(data)}
