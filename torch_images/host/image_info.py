"""An engine's JSON answers about images -> frozen types.

All functions raise MalformedError for an answer that does not follow the engine's API.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from torch_images.jsondoc import MalformedError, member, optional


@dataclass(frozen=True, kw_only=True)
class ImageInfo:
    """An image in the engine.

    `id` is the digest of its manifest, `size` its unpacked bytes. `config` is the part "Config" of
    its configuration, `created` a time in RFC 3339, or "". `layers` are the digests of the unpacked
    layers, the lowest first. `platform` is what it runs on, such as "linux/arm64", or "".
    """

    id: str
    size: int
    labels: Mapping[str, str]
    config: Mapping[str, Any]
    created: str
    layers: tuple[str, ...] = ()
    platform: str = ""


@dataclass(frozen=True, kw_only=True)
class ListedImage:
    """An image in the list of all images: `id` is the digest of its manifest."""

    id: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class OurImage:
    """An image that this project built.

    `size` is its unpacked bytes, `tagged` when it last got a tag. `in_use` is whether a container,
    running or not, was made from it.
    """

    id: str
    tags: tuple[str, ...]
    size: int
    tagged: datetime
    in_use: bool
    labels: Mapping[str, str]


def image_info(answer: Any, size: int) -> ImageInfo:
    """An image from the answer of `docker image inspect`; `size` is in unpacked bytes."""
    config = member(answer, "Config", kind=dict)
    return ImageInfo(
        id=member(answer, "Id", kind=str),
        size=size,
        labels=_labels(config),
        config=config,
        created=optional(answer, "Created", kind=str),
        layers=_texts(member(answer, "RootFS", kind=dict), "Layers"),
        platform="/".join(optional(answer, key, kind=str) for key in ("Os", "Architecture")),
    )


def step_sizes(history: Any) -> tuple[int, ...]:
    """The unpacked bytes of each step, oldest first, from the answer of `docker history`."""
    return tuple(member(s, "Size", kind=int) for s in reversed(member(history, kind=list)))


def listed_images(answer: Any) -> tuple[ListedImage, ...]:
    """All images, from the answer of `docker images`."""
    return tuple(
        ListedImage(
            id=member(image, "Id", kind=str),
            tags=tuple(tag for tag in _texts(image, "RepoTags") if tag != "<none>:<none>"),
            labels=_labels(image),
        )
        for image in member(answer, kind=list)
    )


def images_in_use(answer: Any) -> frozenset[str]:
    """The ids of images that containers use, from the answer of `docker ps --all`."""
    containers = member(answer, kind=list)
    return frozenset(optional(container, "ImageID", kind=str) for container in containers)


def tagged(answer: Any) -> datetime:
    """When an image last got a tag, from the answer of `docker image inspect`."""
    text = member(answer, "Metadata", "LastTagTime", kind=str)
    try:
        time = datetime.fromisoformat(re.sub(r"\.\d+", "", text))
    except ValueError:
        raise MalformedError(f"'Metadata.LastTagTime' is not a time: {text}") from None
    if not time.tzinfo:
        raise MalformedError(f"'Metadata.LastTagTime' has no time zone: {text}")
    return time


def _labels(document: Any) -> dict[str, str]:
    labels = optional(document, "Labels", kind=dict)
    return {key: member(labels, key, kind=str) for key in labels}


def _texts(document: Any, key: str) -> tuple[str, ...]:
    items = optional(document, key, kind=list)
    return tuple(member(items, place, kind=str) for place in range(len(items)))
