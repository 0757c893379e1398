"""The compression of layers of wheels."""

from __future__ import annotations

import enum

from torch_images.errors import UsageError, shown, suggest


class Compression(enum.StrEnum):
    """How much layers of wheels are compressed; the tars inside are the same."""

    FAST = "fast"
    SMALL = "small"  # zstd's level 19: fewer bytes to pull, many times the time to pack


def parse(text: str) -> Compression:
    """Parse the value of --compression, or of a label. Raises UsageError for other text."""
    try:
        return Compression(text)
    except ValueError:
        words = [str(each) for each in Compression]
        raise UsageError(f"unknown compression '{shown(text)}'", suggest(text, words)) from None
