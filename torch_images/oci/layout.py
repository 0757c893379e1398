"""A root file system as an OCI image layout: deterministic tar, blobs, manifest.

Equal trees give equal bytes, independent of time, umask and process ids.
Format: https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

from __future__ import annotations

import enum
import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import zstandard

from torch_images.inside.times import EPOCH
from torch_images.jobs import processors
from torch_images.platforms import AMD64, Platform

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
_CAPABILITY = "SCHILY.xattr.security.capability"
LAYER = "application/vnd.oci.image.layer.v1.tar"

# Not the lock's date: a new lock must not change layers with unchanged content.
_CREATED = datetime.fromtimestamp(EPOCH, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Effort(enum.Enum):
    """How much a layer is compressed: a level of zstd and other settings."""

    # For images that stay where they are built: the eight largest wheels of CUDA 13.0 are packed in
    # 14.5 processor seconds to 1796 MB. A window of 8 MiB and a table of 2^19 entries gave 1773 MB
    # in 18.1 seconds: that table of 2 MB did not fit a core's own cache of 512 KB.
    QUICK = 2, {"window_log": 22, "hash_log": 17, "min_match": 6}
    # For a base: one of 403 MB is packed in 2.5 processor seconds to 129 MB. Level 9 gave 119 MB
    # in 9 seconds.
    BASE = 4, {"window_log": 23}
    # For images that are pulled often. A window of 8 MiB is the largest that every decoder must
    # support (RFC 8878, 3.1.1.1.2). One of 128 MiB would save 1 to 4 % more bytes, but make
    # containerd's unpacking 2.7 times as long: docs/performance.md.
    SMALL = 19, {"window_log": 23}


_VERSION = f"zstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}"
# The compressor of layers, which is a part of each of their keys.
COMPRESSOR = f"{_VERSION} {Effort.QUICK.value}"
SMALL_COMPRESSOR = f"{_VERSION} {Effort.SMALL.value}"
# What decides the bytes of a base besides its lock and the options of dpkg. Raise the number when
# fetch/bootstrap.py changes its output: bases are then made again, and images are new.
BASE_RECIPE = f"5 {_VERSION} {Effort.BASE.value}"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer: digest and size in bytes of the blob, and the digest of the tar inside it."""

    digest: str
    diff_id: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image without the blobs of its layers: the descriptor of its manifest, and its documents.

    `documents` are the configuration and the manifest.
    """

    descriptor: Mapping[str, Any]
    documents: tuple[bytes, ...]

    @property
    def digest(self) -> str:
        """The manifest's digest."""
        return str(self.descriptor["digest"])


class Compressed:
    """Takes a tar and writes it to `target` as a layer's blob, compressed by zstd.

    `threads`: zstd workers, 0 = in the caller. All counts >= 1 give equal bytes, 0 different ones.
    """

    def __init__(
        self, target: IO[bytes], threads: int = 1, *, effort: Effort = Effort.QUICK
    ) -> None:
        self._target, self._size, self._taken = target, 0, 0
        self._plain, self._packed = hashlib.sha256(), hashlib.sha256()
        level, options = effort.value
        settings = zstandard.ZstdCompressionParameters.from_level(level, threads=threads, **options)
        self._compressor = zstandard.ZstdCompressor(compression_params=settings).compressobj()

    def tell(self) -> int:
        """Bytes taken so far."""
        return self._taken

    def write(self, data: bytes) -> int:
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
    `keep` gets each path without leading "./" and says whether to keep it. mmdebstrap's own tar has
    a process id in its headers, so equal trees differ.
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
            # Of the extended headers, only file capabilities belong to the content.
            value = member.pax_headers.get(_CAPABILITY)
            member.pax_headers = {} if value is None else {_CAPABILITY: value}
            new.addfile(member, old.extractfile(member) if member.isreg() else None)


def write_layout(
    folder: Path, layer: Path, *, history: str, env: Iterable[str] = (), platform: Platform = AMD64
) -> str:
    """Write an OCI layout of one image with one layer into `folder`. Returns the manifest's digest.

    `platform` is the image's; images on top inherit it. `layer` is a tar. It is compressed here,
    once, so that no build of an image has to compress it.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    packed = blobs / "packed"
    with layer.open("rb") as stream, packed.open("wb") as target:
        sink = Compressed(target, processors(), effort=Effort.BASE)
        shutil.copyfileobj(stream, sink, 1 << 20)
        written = sink.finish()
    os.replace(packed, blobs / written.digest.removeprefix("sha256:"))
    return _write(folder, image(None, [(history, written)], env, platform))


def extend_layout(base: Path, layers: Iterable[tuple[str, Layer, Path]], folder: Path) -> str:
    """Write a layout of the image in `base` with more layers. Returns its digest.

    Each of `layers` is its line of history, the layer, and the file with its blob.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    listed = tuple(layers)
    for path in layout_layers(base):
        _link(path, blobs / path.name)
    for _, layer, path in listed:
        _link(path, blobs / layer.digest.removeprefix("sha256:"))
    return _write(folder, image(base, [(title, layer) for title, layer, _ in listed]))


def image(
    base: Path | None,
    layers: Iterable[tuple[str, Layer]],
    env: Iterable[str] = (),
    platform: Platform = AMD64,
) -> Image:
    """The image in the layout `base`, if any, with more layers, each with its line of history.

    `env` and `platform` are those of an image without a base.
    """
    # Without "created": BuildKit before 0.24 copies it from a base in a named context to the images
    # built on it (moby/buildkit#6098).
    config: dict[str, Any] = {
        "architecture": platform.architecture,
        "os": "linux",
        "config": {"Env": list(env)},
        "rootfs": {"type": "layers", "diff_ids": []},
        "history": [],
    }
    manifest: dict[str, Any] = {"schemaVersion": 2, "mediaType": MANIFEST, "layers": []}
    if base:
        manifest = _manifest_of(base)
        config = _document(base, manifest["config"]["digest"])
    for title, layer in layers:
        descriptor = {"mediaType": f"{LAYER}+zstd", "digest": layer.digest, "size": layer.size}
        manifest["layers"].append(descriptor)
        config["rootfs"]["diff_ids"].append(layer.diff_id)
        config["history"].append({"created": _CREATED, "created_by": title})
    manifest["config"] = _descriptor(CONFIG, _json(config))
    documents = (_json(config), _json(manifest))
    return Image(descriptor=_descriptor(MANIFEST, documents[1]), documents=documents)


def layout_files(content: Image, annotations: Mapping[str, str]) -> dict[str, bytes]:
    """The files of a layout of one image, except the blobs of its layers, by path."""
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [{**content.descriptor, "annotations": dict(annotations)}],
    }
    documents = {f"blobs/sha256/{hashlib.sha256(d).hexdigest()}": d for d in content.documents}
    layout = {"imageLayoutVersion": "1.0.0"}
    return {**documents, "oci-layout": _json(layout), "index.json": _json(index)}


def layout_layers(folder: Path) -> tuple[Path, ...]:
    """The blobs of the layers of a layout, the lowest first."""
    return tuple(_blob(folder, each["digest"]) for each in _manifest_of(folder)["layers"])


def layout_digest(folder: Path) -> str:
    """The digest of the one manifest of a layout that `write_layout` made."""
    index = json.loads((folder / "index.json").read_bytes())
    return str(index["manifests"][0]["digest"])


def layout_diff_ids(folder: Path) -> tuple[str, ...]:
    """The digests of the unpacked layers of a layout, the lowest first."""
    config = _document(folder, _manifest_of(folder)["config"]["digest"])
    return tuple(config["rootfs"]["diff_ids"])


def _manifest_of(folder: Path) -> dict[str, Any]:
    return _document(folder, layout_digest(folder))


def _path(member: tarfile.TarInfo) -> str:
    return member.name.removeprefix("./").rstrip("/") or "."


def _json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def _write(folder: Path, content: Image) -> str:
    """Complete a layout that has its layers' blobs. Returns the manifest's digest."""
    files = layout_files(content, {"org.opencontainers.image.ref.name": "base"})
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return content.digest


def _blob(folder: Path, digest: str) -> Path:
    return folder / "blobs" / "sha256" / digest.removeprefix("sha256:")


def _document(folder: Path, digest: str) -> dict[str, Any]:
    return dict(json.loads(_blob(folder, digest).read_bytes()))


def _link(source: Path, target: Path) -> None:
    """Link a file under another name, or copy it if the file systems do not allow links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return {"mediaType": media_type, "digest": digest, "size": len(data)}
