"""JSON from outside: malformed documents raise one kind of error."""

from __future__ import annotations

import json
from typing import Any


class MalformedError(ValueError):
    """A malformed document; the message says where, on one line."""


def parse(text: str | bytes) -> Any:
    """Parse a text. Raises MalformedError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also bytes that are not text, huge numbers
        raise MalformedError(f"it is not JSON: {' '.join(str(error).split())[:100]}") from None
