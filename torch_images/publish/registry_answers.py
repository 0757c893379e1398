"""What buildx says of a name in a registry -> images, by platform. Pure.

The answers are those of `docker buildx imagetools inspect --format "{{json .}}"`. What they speak
of may be anybody's: it is checked.
"""

from __future__ import annotations

import re
from typing import Any

from torch_images.build import labels
from torch_images.errors import shown
from torch_images.jsondoc import MalformedError, member, optional
from torch_images.locks.grammar import is_version
from torch_images.platforms import PLATFORMS
from torch_images.publish.index import INDEX
from torch_images.publish.tag_rules import Manifest

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_INDEXES = (INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
_NO_PLATFORM = "unknown/unknown"  # of what is no image, such as an attestation
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}(?:Z|[+-][0-9]{2}:[0-9]{2})")
_MOST = 100  # entries of an index
_LARGEST_MANIFEST = 4 << 20  # bytes, which is what registries take


def is_index(answer: dict[str, Any]) -> bool:
    """Whether buildx speaks of an index. Raises MalformedError."""
    manifest = member(answer, "manifest", kind=dict)
    named = manifest.get("manifests") is not None
    return named or optional(manifest, "mediaType", kind=str) in _INDEXES


def entries_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The images that an index names, each for a platform of its own.

    What is for no platform, such as an attestation, is passed by. Raises MalformedError.
    """
    count = len(member(answer, "manifest", "manifests", kind=list))
    if count > _MOST:
        raise MalformedError(f"its index has more than {_MOST} entries")
    every = [member(answer, "manifest", "manifests", n, kind=dict) for n in range(count)]
    entries: dict[str, dict[str, Any]] = {}
    for entry in every:
        platform = platform_of(member(entry, "platform", kind=dict))
        if platform == _NO_PLATFORM:
            continue
        if platform not in {p.name for p in PLATFORMS}:
            raise MalformedError(f"its index has an image for {shown(platform) or 'no platform'}")
        if platform in entries:
            raise MalformedError(f"its index has two images for {platform}")
        kind = member(entry, "mediaType", kind=str)
        if kind not in _MANIFESTS:
            raise MalformedError(
                f"its index has {shown(kind)} for {platform}, which is not an image"
            )
        digest_of(entry)
        _size(entry)
        entries[platform] = entry
    if not entries:
        raise MalformedError("its index has no image")
    return [entries[platform] for platform in sorted(entries)]


def manifest_of(answer: dict[str, Any], entry: dict[str, Any] | None = None) -> Manifest:
    """A manifest, of an index by its entry there. Raises MalformedError."""
    digest, said = identity_of(answer)
    image, held = optional(answer, "image", kind=dict), entry or answer["manifest"]
    created = optional(image, "created", kind=str)
    if entry and not _TIME.fullmatch(created):
        raise MalformedError(f"{shown(created) or 'nothing'} is no time")
    return Manifest(
        platform=platform_of(image),
        digest=digest,
        media_type=optional(held, "mediaType", kind=str) or _MANIFESTS[0],
        size=_size(held) if "size" in held else 0,
        created=created,
        labels=said,
    )


def platform_of(document: dict[str, Any]) -> str:
    """The platform in an entry or a configuration, such as "linux/arm64"; "" where it says none.

    The variant is left out: all processors of a platform run its images.
    """
    names = [optional(document, key, kind=str) for key in ("os", "architecture")]
    return "/".join(names) if all(names) else ""


def digest_of(document: dict[str, Any], *path: str) -> str:
    """The digest of what a document describes, or describes at a path. Raises MalformedError."""
    digest = member(document, *path, "digest", kind=str)
    if not _DIGEST.fullmatch(digest):
        raise MalformedError(f"{shown(digest)} is not a digest")
    return digest


def at(reference: str, digest: str) -> str:
    """The name of something by its digest, in the repository of a reference."""
    name = reference.partition("@")[0]
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}@{digest}"


def identity_of(answer: dict[str, Any]) -> tuple[str, labels.ImageLabels]:
    """The digest and the labels in what buildx says. Raises MalformedError."""
    digest = digest_of(answer, "manifest")
    image = optional(answer, "image", kind=dict)
    held = optional(optional(image, "config", kind=dict), "Labels", kind=dict)
    said = labels.read({name: member(held, name, kind=str) for name in held})
    if said.torch and not is_version(said.torch):
        raise MalformedError(f"its torch is {shown(said.torch)}, which is not a version")
    return digest, said


def _size(document: dict[str, Any]) -> int:
    size = member(document, "size", kind=int)
    if not 0 < size <= _LARGEST_MANIFEST:
        raise MalformedError("a manifest has a size that none can have")
    return size
