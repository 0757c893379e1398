"""JSON from outside: malformed documents raise one kind of error."""

from __future__ import annotations

import itertools
import json
from typing import Any, TypeVar

T = TypeVar("T")
_TOO_DEEP = "it is nested too deeply"
_DEEPEST = 100  # levels; Python's recursion limit applies to writing and walking too
_KINDS = {dict: "an object", list: "a list", str: "text", int: "a number"}


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


def member(document: Any, *path: str | int, kind: type[T]) -> T:
    """The value at a path of keys and list positions, which must be of type `kind`.

    Raises MalformedError if it is missing or of another type.
    """
    where, value = "", document
    for step in path:
        where = f"{where}[{step}]" if isinstance(step, int) else f"{where}.{step}".lstrip(".")
        try:
            value = value[step]
        except (LookupError, TypeError):
            raise MalformedError(f"'{where}' is missing") from None
    # A boolean is an int in Python, but not in JSON.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise MalformedError(f"'{where or 'it'}' is not {_KINDS.get(kind, kind.__name__)}")
    return value


def optional(document: Any, key: str, *, kind: type[T]) -> T:
    """The value of a key of an object; empty if it is missing or null.

    Raises MalformedError.
    """
    if member(document, kind=dict).get(key) is None:
        return kind()
    return member(document, key, kind=kind)
