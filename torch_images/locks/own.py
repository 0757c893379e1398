"""torch-images.lock: all inputs of the image of a user's own project, in one file.

It has the locks of the image, so a build reads no other, and SHA-256 of what they were resolved
from and of what this project adds, so a build knows when they do not fit any more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_images.config.image import ImageSpec
from torch_images.config.own import LOCK, Own
from torch_images.errors import LockError
from torch_images.locks.image_lock import ImageLock, parse_image_lock
from torch_images.locks.requirements import request
from torch_images.project import version

_SCHEMA = 1
_HINT = "run `invoke lock`"


@dataclass(frozen=True, kw_only=True)
class OwnLock:
    """The lock of a user's own image.

    `version`: that of torch-images which made it.
    `axes`: the values of the image's axes then.
    `request`: as of `requirements.request`.
    `parts`: SHA-256 of what torch-images adds to the image, by part.
    """

    version: str
    axes: Mapping[str, str]
    request: Mapping[str, str]
    parts: Mapping[str, str]
    lock: ImageLock

    def text(self) -> str:
        """The text of its file, with a line for each input."""
        locks = ",\n".join(f'"{name}": {text.strip()}' for name, text in self.lock.texts().items())
        head = {
            "schema": _SCHEMA,
            "torch-images": self.version,
            "image": self.axes,
            "request": self.request,
            "parts": self.parts,
        }
        return f'{json.dumps(head, indent=1)[:-2]},\n "locks": {{\n{locks}\n}}\n}}\n'


def read(own: Own) -> OwnLock:
    """The lock of a user's own image. Raises LockError if it is missing or damaged."""
    try:
        data = json.loads(own.lock.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LockError(
            f"{own.repository} is not locked: {own.root} has no {LOCK}", _HINT
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise LockError(f"{LOCK} cannot be read: {error}", _HINT) from None
    try:
        if data["schema"] != _SCHEMA:
            raise LockError(f"{LOCK} is of another version of torch-images", _HINT)
        texts = {str(name): json.dumps(lock) for name, lock in data["locks"].items()}
        maps = {name: _map(data[name]) for name in ("image", "request", "parts")}
        version = str(data["torch-images"])
    except (AttributeError, KeyError, TypeError):
        raise LockError(f"{LOCK} is damaged", f"{_HINT}, or take it from the last commit") from None
    return OwnLock(
        version=version,
        axes=maps["image"],
        request=maps["request"],
        parts=maps["parts"],
        lock=parse_image_lock(texts),
    )


def read_lock(spec: ImageSpec) -> ImageLock:
    """The locks of a user's own image, as long as they are for what its project asks today.

    Raises LockError as `read` does, and for a lock that was resolved for something else.
    """
    assert spec.own
    lock = read(spec.own)
    moved = [
        *changes(lock.axes, spec.axes),
        *changes(lock.request, request(spec.own), values=False),
    ]
    if moved:
        raise LockError(f"{LOCK} is out of step: {', '.join(moved)}", _HINT)
    return lock.lock


def require_parts(own: Own, parts: Mapping[str, str]) -> None:
    """Raise LockError if a build would add other parts than when the image was locked."""
    lock = read(own)
    if moved := changes(lock.parts, parts, values=False):
        raise LockError(
            f"{LOCK} is of torch-images {lock.version}, and in this one, {version()}, these parts "
            f"of the image differ: {', '.join(moved)}",
            f"install torch-images {lock.version} for the same image again, or {_HINT} for one by "
            "this version, with the same packages",
        )


def changes(old: Mapping[str, str], new: Mapping[str, str], *, values: bool = True) -> list[str]:
    """What differs between two mappings, as words: with `values`, "torch 2.14.1 -> 2.15.0"."""
    names = [n for n in dict.fromkeys([*old, *new]) if old.get(n) != new.get(n)]
    if not values:
        return [f"{name} changed" for name in names]
    return [f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}" for name in names]


def _map(value: Any) -> dict[str, str]:
    return {str(name): str(text) for name, text in value.items()}
