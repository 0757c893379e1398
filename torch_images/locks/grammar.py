"""The format of every file in locks/: a header, then two lines for each input, sorted.

# date: 2026-11-21
# request: numpy pip
# 16837230 bytes, numpy-2.3.5-cp311-cp311-manylinux_2_28_x86_64.whl
numpy==2.3.5 --hash=sha256:...

The text is not trusted before it is parsed: a lock may come from an image, or from a merge.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from torch_images.errors import LockError, UsageError, shown
from torch_images.platforms import AMD64, Platform, find

_WRITTEN = "# Written by `invoke lock`; do not edit."
# For inputs whose server could not be reached when the lock was written.
ENTERED = "# Entered by hand, with a hash that public repositories pin; `invoke lock` replaces it."
_HEADER = re.compile(r"# (?P<key>[a-z]+): (?P<value>[!-~]+(?: [!-~]+)*)")
# 15 digits are a petabyte. More cannot be a size, and Python refuses very long numbers.
_ABOUT = re.compile(
    r"# (?P<size>[0-9]{1,15}|\?) bytes, (?P<where>[!-~]+)(?: from (?P<origin>[!-~]+))?"
)
_LINE = re.compile(r"[!-~]+(?: [!-~]+)*")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_OLDEST = dt.date(1980, 1, 1)  # zip archives cannot have earlier dates
_LARGEST = 1 << 24  # bytes; the largest lock of this project has 50,000
_LONGEST_VERSION = 80


@dataclass(frozen=True)
class Entry:
    """One locked input: two lines of a lock file.

    `size`: bytes of the file; 0 if unknown, which is written as "?".
    `where`: a file name, a path below an archive's root, or a URL.
    `line`: the line that pins it, such as "numpy==2.3.5 --hash=sha256:...".
    `origin`: the URL of its index; "" for the usual source of its kind.
    """

    size: int
    where: str
    line: str
    origin: str = ""


def compose(header: Mapping[str, str], entries: Iterable[Entry]) -> str:
    """The text of a lock file. Keys of the header whose value is "" are left out."""
    lines = [_WRITTEN, *(f"# {key}: {value}" for key, value in header.items() if value)]
    for entry in entries:
        origin = f" from {entry.origin}" if entry.origin else ""
        lines += [f"# {entry.size or '?'} bytes, {entry.where}{origin}", entry.line]
    return "\n".join(lines) + "\n"


def parse(
    text: str, name: str, keys: Collection[str], *, origins: bool = False
) -> tuple[dict[str, str], list[Entry]]:
    """Header and entries of a lock file; `name` is the file's, without suffix.

    The first line may also be ENTERED. `keys` are those allowed in the header; `origins` says
    whether an entry may name its index. Raises LockError, with file and line, for
    any other line that `compose` does not write, for another key, and for a header without a date.
    """
    header: dict[str, str] = {}
    entries: list[Entry] = []
    about: re.Match[str] | None = None
    number = 0
    for number, line in enumerate(text.split("\n"), 1):
        if about:
            if line.startswith("#") or not _LINE.fullmatch(line):
                raise damaged(name, "no locked input follows this size", number - 1)
            size = 0 if about["size"] == "?" else int(about["size"])
            entries.append(Entry(size, about["where"], line, about["origin"] or ""))
            about = None
        elif (match := _ABOUT.fullmatch(line)) and (origins or not match["origin"]):
            about = match
        elif (match := _HEADER.fullmatch(line)) and not entries:
            key = match["key"]
            if key in header or key not in keys:
                fault = "occurs twice" if key in header else "is unknown"
                raise damaged(name, f"the header '{key}' {fault}", number)
            header[key] = match["value"]
        elif line and line not in (_WRITTEN, ENTERED):
            raise unreadable(name, line, number)
    if about:
        raise damaged(name, "it ends in the middle of an input", number)
    if not _is_date(header.get("date", "")):
        raise damaged(name, "the header lacks a date")
    return header, entries


def unlocked(header: Mapping[str, str], name: str) -> bool:
    """Whether the header says that a build resolved the lock itself.

    Raises LockError for any value but "yes".
    """
    if header.get("unlocked", "yes") != "yes":
        raise damaged(name, "'unlocked' may only be yes")
    return "unlocked" in header


def platform_word(platform: Platform) -> str:
    """The platform in the form of a header; "" for linux/amd64, which is left out."""
    return "" if platform == AMD64 else platform.name


def platform(header: Mapping[str, str], name: str) -> Platform:
    """The platform in a header. Raises LockError for text that `platform_word` does not return."""
    try:
        named = find(header.get("platform", AMD64.name))
    except UsageError as error:
        raise damaged(name, error.message) from None
    if platform_word(named) != header.get("platform", ""):
        raise damaged(name, f"the header names the platform {named}, which is the default")
    return named


def check_once(names: Iterable[str], name: str) -> None:
    """Raise LockError if one of `names` occurs twice; `name` is the lock's."""
    twice = [each for each, count in Counter(names).items() if count > 1]
    if twice:
        raise damaged(name, f"{twice[0]} occurs twice")


def is_version(text: str) -> bool:
    """Whether a text is a version by PEP 440."""
    if len(text) > _LONGEST_VERSION or not text.isascii():
        return False
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def unreadable(name: str, line: str, number: int | None = None) -> LockError:
    """The error for a line that is not a locked input; `number` is the line's, from 1."""
    return damaged(name, f"not a locked input: {shown(line)}", number)


def damaged(name: str, problem: str, number: int | None = None) -> LockError:
    """The error for a lock file that `invoke lock` did not write; `number` is a line's, from 1."""
    where = f"locks/{name}.txt:{number}" if number else f"locks/{name}.txt"
    return LockError(f"{where}: {problem}", f"run `invoke lock --select {name}`")


def read(path: Path) -> str:
    """The text of a lock file.

    Raises LockError if it is missing, not a regular file, larger than 16 MiB, or not UTF-8.
    """
    try:
        if path.exists() and not path.is_file():
            raise damaged(path.stem, "it is not a file")
        with path.open("rb") as stream:
            data = stream.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise damaged(path.stem, f"it has more than {_LARGEST} bytes")
        return data.decode().replace("\r\n", "\n")
    except FileNotFoundError:
        raise LockError(
            f"locks/{path.name} does not exist", f"run `invoke lock --select {path.stem}`"
        ) from None
    except UnicodeDecodeError as error:
        raise damaged(path.stem, f"it is not text in UTF-8, from byte {error.start} on") from None
    except OSError as error:
        raise damaged(path.stem, f"it cannot be read: {error.strerror}") from None


def write(path: Path, text: str) -> None:
    """Write a lock file in one step. Raises LockError if a folder has its name."""
    if path.is_dir():
        raise LockError(f"locks/{path.name} is a folder", "move it away")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def _is_date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    try:
        return dt.date.fromisoformat(text) >= _OLDEST
    except ValueError:
        return False
