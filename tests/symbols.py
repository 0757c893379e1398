"""Shared libraries that define and use symbols, made byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Sequence

_NEEDED, _WEAK = 1, 2


def symbols_library(
    defines: Sequence[str] = (),
    uses: Sequence[str] = (),
    *,
    weak: Sequence[str] = (),
    loads: Sequence[str] = (),
) -> bytes:
    """A library that defines symbols, uses others, some of them weakly, and loads libraries."""
    strings = b"\0"
    place = {}
    for name in (*defines, *uses, *weak, *loads):
        place[name] = len(strings)
        strings += name.encode() + b"\0"

    def symbol(name: str, binding: int, section: int) -> bytes:
        return struct.pack("<IBBHQQ", place[name], binding << 4 | 2, 0, section, 0, 0)

    table = bytes(24)
    table += b"".join(symbol(name, 1, 1) for name in defines)
    table += b"".join(symbol(name, 1, 0) for name in uses)
    table += b"".join(symbol(name, _WEAK, 0) for name in weak)
    dynamic = b"".join(struct.pack("<QQ", _NEEDED, place[name]) for name in loads) + bytes(16)
    names = b"\0.dynstr\0.dynsym\0.dynamic\0.shstrtab\0"
    offset, headers, body = 64, [bytes(64)], b""
    for section, kind, data, link, size in (
        (b".dynstr", 3, strings, 0, 0),
        (b".dynsym", 11, table, 1, 24),
        (b".dynamic", 6, dynamic, 1, 16),
        (b".shstrtab", 3, names, 0, 0),
    ):
        at = names.index(section)
        headers.append(
            struct.pack("<IIQQQQIIQQ", at, kind, 2, 0, offset, len(data), link, 1, 1, size)
        )
        body += data
        offset += len(data)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01".ljust(16, b"\0"),
        *(3, 62, 1, 0, 0, offset, 0, 64, 56, 0, 64, len(headers), len(headers) - 1),
    )
    return head + body + b"".join(headers)
