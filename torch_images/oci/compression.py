"""How small the layers of an image are, and where the image says so. Pure.

A label would be a part of the configuration, and a file a part of a layer: images of equal content
would differ. The manifest names the compressed layers anyway, so it is what says how.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from torch_images import jsondoc
from torch_images.errors import UsageError, shown, suggest

ANNOTATION = "io.github.torch-images.compression"


class Compression(enum.StrEnum):
    """How the layers of an image are compressed; the tars inside are the same."""

    FAST = "fast"  # as they come: from layers/make.py, and from BuildKit
    SMALL = "small"  # all of them again, see layers/repack.py


def parse(text: str) -> Compression:
    """The word after --compression. Raises UsageError for any other."""
    try:
        return Compression(text)
    except ValueError:
        words = [str(each) for each in Compression]
        raise UsageError(f"unknown compression '{text}'", suggest(text, words)) from None


def recording(compression: Compression) -> dict[str, str]:
    """What the manifest of an image says of it; nothing for FAST, as in all earlier images."""
    return {} if compression is Compression.FAST else {ANNOTATION: str(compression)}


def recorded(manifest: Mapping[str, Any]) -> Compression:
    """What the manifest of an image, which may be anybody's, says of its compression.

    Raises UsageError for a word that this version does not know.
    """
    try:
        held = jsondoc.optional(manifest, "annotations", kind=dict)
        word = jsondoc.optional(held, ANNOTATION, kind=str) or str(Compression.FAST)
    except jsondoc.MalformedError as error:
        raise UsageError(f"the image's manifest is damaged: {error}", "build it again") from None
    if word not in [str(each) for each in Compression]:
        raise UsageError(
            f"the image's manifest names an unknown compression, '{shown(word)}'",
            "take the version of torch-images that built it",
        )
    return Compression(word)
