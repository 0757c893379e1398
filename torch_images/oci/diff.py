"""Which layers and files of two images differ, by their blobs.

Unpacks only layers whose uncompressed content differs. For each attribute, use diffoci:
https://github.com/reproducible-containers/diffoci
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import IO, Any, cast

from torch_images.errors import EngineError
from torch_images.oci.contents import unpacked

Blob = Callable[[str], IO[bytes]]  # opens a blob by digest, as a forward-only file


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What differs: a file of a layer, by its path, or a whole layer, with the path "".

    `layer` counts from 1. It is 0 for a part of the image's configuration.
    """

    layer: int
    path: str


class _Image:
    """An image by the digest of its manifest."""

    def __init__(self, digest: str, blob: Blob) -> None:
        self._blob = blob
        manifest = json.load(blob(digest))
        if "manifests" in manifest:
            raise EngineError("the image is an index of several platforms, not one image")
        self.config_digest = str(manifest["config"]["digest"])
        self.config = json.load(blob(self.config_digest))
        # digest of the uncompressed layer, descriptor of the blob
        self.layers = list(zip(self.config["rootfs"]["diff_ids"], manifest["layers"], strict=True))

    def files(self, layer: Mapping[str, Any]) -> dict[str, tuple[object, ...]]:
        """Everything that matters of each member of a layer, by path."""
        stream = unpacked(self._blob(layer["digest"]), layer["mediaType"])
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            return {member.name.removeprefix("./"): _facts(tar, member) for member in tar}


def compare(
    digests: tuple[str, str], blobs: tuple[Blob, Blob]
) -> tuple[bool, tuple[Difference, ...]]:
    """Compare two images by the digests of their manifests.

    The first result says whether their configurations are equal. These name the uncompressed
    layers, so everything is equal then that a container sees.
    """
    ours, theirs = map(_Image, digests, blobs)
    differences = (*_configs(ours.config, theirs.config), *_layers(ours, theirs))
    return ours.config_digest == theirs.config_digest, differences


def _facts(tar: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[object, ...]:
    content = cast("io.BufferedReader", tar.extractfile(member)) if member.isreg() else None
    digest = hashlib.file_digest(content, "sha256").hexdigest() if content else ""
    attributes = {k: v for k, v in member.pax_headers.items() if k.startswith("SCHILY.xattr.")}
    return (
        *(member.type, member.mode, member.uid, member.gid, float(member.mtime)),
        *(member.linkname, member.devmajor, member.devminor, digest, attributes),
    )


def _configs(one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[Difference]:
    """Differences of the configuration; its layers are compared by themselves."""
    parts = ({**c, **{f"config.{k}": v for k, v in c["config"].items()}} for c in (one, two))
    for path in _changed(*parts):
        if path not in ("rootfs", "config"):
            yield Difference(layer=0, path=path)


def _layers(one: _Image, two: _Image) -> Iterator[Difference]:
    for number, (ours, theirs) in enumerate(zip_longest(one.layers, two.layers), 1):
        paths: list[str] = []
        if ours and theirs:
            if ours[0] == theirs[0]:
                continue
            paths = _changed(one.files(ours[1]), two.files(theirs[1]))
        for path in paths or [""]:
            yield Difference(layer=number, path=path)


def _changed(one: Mapping[str, object], two: Mapping[str, object]) -> list[str]:
    return sorted(path for path in one.keys() | two.keys() if one.get(path) != two.get(path))
