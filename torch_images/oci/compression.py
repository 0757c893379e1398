"""How small the layers of wheels become."""

from __future__ import annotations

import enum

from torch_images.errors import UsageError, shown, suggest


class Compression(enum.StrEnum):
    """How hard layers of wheels are compressed; the tars inside are the same."""

    FAST = "fast"
    SMALL = "small"  # zstd's level 19: fewer bytes to pull, many times the time to pack


def parse(text: str) -> Compression:
    """The word after --compression, or of a label. Raises UsageError for any other."""
    try:
        return Compression(text)
    except ValueError:
        words = [str(each) for each in Compression]
        raise UsageError(f"unknown compression '{shown(text)}'", suggest(text, words)) from None
