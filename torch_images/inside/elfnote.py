"""The ELF note of a compat library: the driver branches and GPU brands that it supports.

Section headers: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.sheader.html
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from torch_images.inside.decision import Note

SECTION = ".note.cuda.fwd_compatibility"
LIMIT = 1 << 20  # bytes


def read_note(path: Path) -> Note | None:
    """The note of a library; None if there is none, or if it cannot be parsed."""
    try:
        for text in _notes(path):
            found = json.loads(text[text.index("{") : text.rindex("}") + 1])
            return Note(tuple(map(int, found["driver"])), tuple(map(int, found["device"])))
    except Exception:  # noqa: BLE001  there is no end to how a file can be damaged
        return None
    return None


def _notes(path: Path) -> Iterator[str]:
    """The content of the section in a 64-bit little-endian ELF file."""
    with path.open("rb") as file:
        header = file.read(64)
        if header[:6] != b"\x7fELF\x02\x01":
            return
        offset, size, count, names = struct.unpack_from("<40xQ10xHHH", header)
        table = _part(file, offset, size * count)
        entries = [struct.unpack_from("<IIQQQQ", table, size * i) for i in range(count)]
        strings = _part(file, *entries[names][4:])
        for name, _, _, _, start, length in entries:
            if strings[name : strings.index(b"\0", name)].decode() == SECTION:
                yield _part(file, start, length).decode("latin-1")


def _part(file: BinaryIO, offset: int, length: int) -> bytes:
    """A part of an ELF file. No real table of sections, or note, is as long as LIMIT."""
    file.seek(offset)
    return file.read(min(length, LIMIT))
