"""An engine's JSON answers about images -> frozen types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ImageInfo:
    """An image in the engine.

    `id` is the digest of its manifest, `size` its unpacked bytes. `config` is the part "Config" of
    its configuration, `created` a time in RFC 3339, or "". `layers` are the digests of the unpacked
    layers, the lowest first. `platform` is what it runs on, e.g. "linux/arm64", or "".
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
class OurImage(ListedImage):
    """An image that this project built.

    `size` is its unpacked bytes, `tagged` when it last got a tag. `in_use` is whether a container,
    running or not, was made from it.
    """

    size: int
    tagged: datetime
    in_use: bool


def image_info(answer: Mapping[str, Any], size: int) -> ImageInfo:
    """An image from the answer of `docker image inspect`; `size` is in unpacked bytes."""
    return ImageInfo(
        id=answer["Id"],
        size=size,
        labels=answer["Config"].get("Labels") or {},
        config=answer["Config"],
        created=answer.get("Created") or "",
        layers=tuple(answer["RootFS"].get("Layers") or ()),
        platform=f"{answer.get('Os', '')}/{answer.get('Architecture', '')}",
    )


def listed_image(answer: Mapping[str, Any]) -> ListedImage:
    """An image from an entry of `docker images`."""
    return ListedImage(
        id=answer["Id"],
        tags=tuple(tag for tag in answer["RepoTags"] or () if tag != "<none>:<none>"),
        labels=answer["Labels"] or {},
    )
