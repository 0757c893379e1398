"""The form of every file in locks/: a header, then two lines for each input, sorted.

# date: 2026-11-21
# request: numpy pip
# 16837230 bytes, numpy-2.3.5-cp311-cp311-manylinux_2_28_x86_64.whl
numpy==2.3.5 --hash=sha256:...
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch_images.errors import LockError

_WRITTEN = "# Written by `invoke lock`; do not edit."
_HEADER = re.compile(r"# (?P<key>[a-z]+): (?P<value>\S+(?: \S+)*)")
_ABOUT = re.compile(r"# (?P<size>[0-9]+|\?) bytes, (?P<where>\S+)")


@dataclass(frozen=True)
class Entry:
    """One input: its size in bytes (0 for unknown), the file it is, and the line that pins it."""

    size: int
    where: str
    line: str


def compose(header: Mapping[str, str], entries: Iterable[Entry]) -> str:
    """The text of a lock file; headers without a value are left out."""
    lines = [_WRITTEN, *(f"# {key}: {value}" for key, value in header.items() if value)]
    for entry in entries:
        lines += [f"# {entry.size or '?'} bytes, {entry.where}", entry.line]
    return "\n".join(lines) + "\n"


def parse(text: str, name: str) -> tuple[dict[str, str], list[Entry]]:
    """Header and entries of a lock file.

    Raises LockError with the file's name and line for what is neither, and for a header without a
    date.
    """
    header: dict[str, str] = {}
    entries: list[Entry] = []
    about: re.Match[str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if match := _HEADER.fullmatch(line):
            header[match["key"]] = match["value"]
        elif match := _ABOUT.fullmatch(line):
            about = match
        elif about and line and not line.startswith("#"):
            size = 0 if about["size"] == "?" else int(about["size"])
            entries.append(Entry(size, about["where"], line))
            about = None
        elif line and line != _WRITTEN:
            raise unreadable(name, line, number)
    try:
        dt.date.fromisoformat(header["date"])
    except (KeyError, ValueError):
        raise damaged(name, "the header lacks a date") from None
    return header, entries


def unreadable(name: str, line: str, number: int | None = None) -> LockError:
    """The error for a line that pins nothing."""
    return damaged(name, f"not a locked input: {line}", number)


def damaged(name: str, problem: str, number: int | None = None) -> LockError:
    """The error for a lock file that was not written by `invoke lock`."""
    where = f"locks/{name}.txt:{number}" if number else f"locks/{name}.txt"
    return LockError(f"{where}: {problem}", f"run `invoke lock --select {name}`")


def read(path: Path) -> str:
    """The text of a lock file. Raises LockError where it is missing."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LockError(
            f"locks/{path.name} does not exist", f"run `invoke lock --select {path.stem}`"
        ) from None


def write(path: Path, text: str) -> None:
    """Write a lock file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
