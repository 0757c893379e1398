"""JSON from outside: malformed documents raise one kind of error."""

from __future__ import annotations

import itertools
import json
from typing import Any

_TOO_DEEP = "it is nested too deeply"
_DEEPEST = 100  # levels; Python's recursion limit applies to writing and walking too


class MalformedError(ValueError):
    """A malformed document; the message says where, on one line."""


def parse(text: str | bytes) -> Any:
    """Parse a text. Raises MalformedError for invalid or too deeply nested JSON."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise MalformedError(_TOO_DEEP) from None
    except ValueError as error:  # also for bytes that are not text, and for huge numbers
        raise MalformedError(f"it is not JSON: {' '.join(str(error).split())[:100]}") from None
    level = [document]
    for _ in range(_DEEPEST):
        lists = [each for each in level if isinstance(each, list)]
        lists += [[*each.values()] for each in level if isinstance(each, dict)]
        level = [*itertools.chain.from_iterable(lists)]
        if not level:
            return document
    raise MalformedError(_TOO_DEEP)
