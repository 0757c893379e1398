"""JSON from outside: documents that are not what they should be give one kind of error."""

from __future__ import annotations

import itertools
import json
from typing import Any, TypeVar

T = TypeVar("T")
_TOO_DEEP = "it is nested too deeply"
_DEEPEST = 100  # levels; what is written again, or walked through, has the same limit of Python's
_KINDS = {dict: "an object", list: "a list", str: "text", int: "a number"}


class MalformedError(ValueError):
    """A document that is not what it should be; the message says where, on one line."""


def parse(text: str | bytes) -> Any:
    """What a text says. Raises MalformedError for what is not JSON, or cannot be held."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise MalformedError(_TOO_DEEP) from None
    except ValueError as error:  # also for bytes that are no text, and for endless numbers
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
    """What a document has at a path of keys and places, which must be of a kind.

    Raises MalformedError where it is missing or of another kind.
    """
    where, value = "", document
    for step in path:
        where = f"{where}[{step}]" if isinstance(step, int) else f"{where}.{step}".lstrip(".")
        try:
            value = value[step]
        except (LookupError, TypeError):
            raise MalformedError(f"'{where}' is missing") from None
    # A truth is a number to Python, but not to whoever wrote the document.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise MalformedError(f"'{where or 'it'}' is not {_KINDS.get(kind, kind.__name__)}")
    return value


def optional(document: Any, key: str, *, kind: type[T]) -> T:
    """What an object has under a key; empty where that is nothing, or null.

    Raises MalformedError.
    """
    if member(document, kind=dict).get(key) is None:
        return kind()
    return member(document, key, kind=kind)
