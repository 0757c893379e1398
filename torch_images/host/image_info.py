"""What an engine tells of an image."""

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
