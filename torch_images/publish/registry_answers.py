"""A description of a name in a registry by buildx -> images, by platform. Pure.

The descriptions are from `docker buildx imagetools inspect --format "{{json .}}"`. Their content
may come from anybody, so it is checked.
"""

from __future__ import annotations

import re
from typing import Any

from torch_images.build import labels
from torch_images.errors import shown
from torch_images.jsondoc import MalformedError, member, optional
from torch_images.locks.files import is_version
from torch_images.platforms import PLATFORMS
from torch_images.publish.index import INDEX
from torch_images.publish.tag_rules import Manifest

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_INDEXES = (INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
_NO_PLATFORM = "unknown/unknown"  # of entries that are not images, such as attestations
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}(?:Z|[+-][0-9]{2}:[0-9]{2})")
_MOST = 100  # entries of an index
_LARGEST_MANIFEST = 4 << 20  # bytes, the limit of registries


def is_index(answer: dict[str, Any]) -> bool:
    """Whether a description is of an index. Raises MalformedError."""
    manifest = member(answer, "manifest", kind=dict)
    return (
        manifest.get("manifests") is not None
        or optional(manifest, "mediaType", kind=str) in _INDEXES
    )


def entries_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of an index's images, one per platform.

    Skips entries without a platform, such as attestations. Raises MalformedError.
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
    """A manifest, from its description and its entry in an index, if any. Raises MalformedError."""
    digest, image_labels = identity_of(answer)
    image, described = optional(answer, "image", kind=dict), entry or answer["manifest"]
    created = optional(image, "created", kind=str)
    if entry and not _TIME.fullmatch(created):
        raise MalformedError(f"{shown(created) or 'nothing'} is not a time")
    return Manifest(
        platform=platform_of(image),
        digest=digest,
        media_type=optional(described, "mediaType", kind=str) or _MANIFESTS[0],
        size=_size(described) if "size" in described else 0,
        created=created,
        labels=image_labels,
    )


def platform_of(document: dict[str, Any]) -> str:
    """The platform in an entry or a configuration, such as "linux/arm64"; "" if it is missing.

    Ignores the variant: all processors of a platform run its images.
    """
    names = [optional(document, key, kind=str) for key in ("os", "architecture")]
    return "/".join(names) if all(names) else ""


def digest_of(document: dict[str, Any], *path: str) -> str:
    """The digest in a document, or at a path in it. Raises MalformedError."""
    digest = member(document, *path, "digest", kind=str)
    if not _DIGEST.fullmatch(digest):
        raise MalformedError(f"{shown(digest)} is not a digest")
    return digest


def at(reference: str, digest: str) -> str:
    """The reference of a digest in the repository of another reference."""
    name = reference.partition("@")[0]
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}@{digest}"


def identity_of(answer: dict[str, Any]) -> tuple[str, labels.ImageLabels]:
    """The digest and the labels in buildx's description. Raises MalformedError."""
    digest = digest_of(answer, "manifest")
    image = optional(answer, "image", kind=dict)
    texts = optional(optional(image, "config", kind=dict), "Labels", kind=dict)
    image_labels = labels.read({name: member(texts, name, kind=str) for name in texts})
    if image_labels.torch and not is_version(image_labels.torch):
        raise MalformedError(f"its torch is {shown(image_labels.torch)}, which is not a version")
    return digest, image_labels


def _size(document: dict[str, Any]) -> int:
    size = member(document, "size", kind=int)
    if not 0 < size <= _LARGEST_MANIFEST:
        raise MalformedError("a manifest has an impossible size")
    return size
