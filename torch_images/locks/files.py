"""Lock files: JSON with a line for each input, so that a diff shows what changed.

The text is not trusted before it is parsed: a lock may come from an image.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import hashlib
import json
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, TypeAdapter, ValidationError

from torch_images.config.schema import Section, Wrong, matches
from torch_images.errors import LockError, shown

_LONGEST_VERSION = 80


def is_version(text: str) -> bool:
    """Whether a text is a version by PEP 440."""
    if len(text) > _LONGEST_VERSION or not text.isascii():
        return False
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _version(text: str) -> str:
    if not is_version(text) or text != text.strip():
        raise Wrong("is not a version")
    return text


PythonVersion = Annotated[str, AfterValidator(_version)]
Sha256 = Annotated[str, matches(r"[0-9a-f]{64}", "a SHA-256")]
Word = Annotated[str, matches(r"[!-~]+", "a word")]


@dataclass(frozen=True, kw_only=True)
class Lock(Section):
    """The content of a lock file.

    `name`: the file's name without suffix, e.g. "base-bookworm".
    `date`: the day on which it was resolved (UTC).
    """

    name: str
    date: dt.date

    @property
    def digest(self) -> str:
        """SHA-256 of the lock's text, in hexadecimal."""
        return hashlib.sha256(dumps(self).encode()).hexdigest()


_Kind = TypeVar("_Kind", bound=Lock)


@lru_cache(maxsize=512)  # many images share a lock
def dumps(lock: Lock) -> str:
    """The text of a lock's file, sorted, so that equal locks have equal texts."""
    members = _members(lock)
    del members["name"]
    return "{\n " + ",\n ".join(f'"{key}": {_block(v)}' for key, v in members.items()) + "\n}\n"


def _block(value: Any) -> str:
    """The JSON of a member, with a line for each entry of a list or member of an object."""
    if isinstance(value, Section):
        lines = [f'"{key}": {_json(member)}' for key, member in _members(value).items()]
        return "{\n  " + ",\n  ".join(lines) + "\n }"
    if isinstance(value, tuple) and value and isinstance(value[0], Section):
        return "[\n  " + ",\n  ".join(map(_json, sorted(value))) + "\n ]"
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, default=lambda v: _members(v) if isinstance(v, Section) else str(v))


def _members(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that do not have their default."""
    own = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {f.name: own[f.name] for f in dataclasses.fields(value) if own[f.name] != f.default}


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def parse(kind: type[_Kind], text: str, name: str) -> _Kind:
    """The lock in a text; `name` is the file's, without suffix. Raises LockError."""
    lock: _Kind = _parsed(cast("Any", kind), text, name)
    return lock


@lru_cache(maxsize=256)  # many images share a lock
def _parsed(kind: Any, text: str, name: str) -> Any:
    try:
        return _adapter(kind).validate_python({**json.loads(text), "name": name})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        # Without the input: a URL may have a password.
        raise damaged(name, f"{where}: {shown(first['msg'])}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise damaged(name, f"it is not a lock: {shown(str(error))}") from None


def read(kind: type[_Kind], path: Path) -> _Kind:
    """The lock in a file. Raises LockError if the file is missing or damaged."""
    try:
        text = path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        raise LockError(
            f"locks/{path.name} does not exist", f"run `invoke lock --select {path.stem}`"
        ) from None
    except OSError as error:
        raise damaged(path.stem, f"it cannot be read: {error.strerror}") from None
    return parse(kind, text, path.stem)


def update(path: Path, lock: Lock) -> bool:
    """Write a lock file of a draft, unless only the date of the old one differs.

    Returns whether the file changed. Raises LockError, and writes nothing, for a lock that could
    not be read again: its content comes from indexes and archives.
    """
    text = dumps(lock)
    parse(type(lock), text, lock.name)
    with contextlib.suppress(LockError):  # replace a damaged file
        before = read(type(lock), path)
        if dumps(dataclasses.replace(lock, date=before.date)) == dumps(before):
            return False
    path.write_text(text, encoding="utf-8")
    return True


def damaged(name: str, problem: str) -> LockError:
    """The error for a lock file that `invoke lock` did not write."""
    return LockError(f"locks/{name}.json: {problem}", f"run `invoke lock --select {name}`")
