"""Shared libraries with device code, made byte by byte, and what is in them as a loader sees it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO

from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

from torch_images.fatbin import containers, prune

PAGE = 0x1000
_TAIL = 0x80  # bytes of the segment after its containers
SHIFT = 0x5000  # of addresses against offsets, from the second segment on

Code = tuple[int, bool, bool, int]  # architecture, PTX, specific, bytes
Relocation = tuple[int, int, int]  # where, kind, addend


def entry(arch: int, ptx: bool, specific: bool, size: int) -> bytes:
    """An entry of a container, as nvcc's fatbinary writes it."""
    head = struct.pack("<HHIQIIHHI", 1 if ptx else 2, 0x0101, 64, size, 0, 0, 0, 0, arch)
    flags = struct.pack("<QQ", 0x100000 if specific else 0x11, 0)
    return (head + bytes(8) + flags)[:64].ljust(64, b"\0") + bytes([arch]) * size


def container(codes: list[Code], version: int = 1) -> bytes:
    """A container with its number as its version."""
    body = b"".join(entry(*code) for code in codes)
    return struct.pack("<IHHQ", 0xBA55ED50, version, 16, len(body)) + body


@dataclass(frozen=True)
class Section:
    """A section with its content; `kind` and `flags` as in its header."""

    name: str
    kind: int
    flags: int
    data: bytes
    offset: int
    addr: int = 0


def nothing_more(_fatbin: int, _wrappers: int) -> list[Relocation]:
    """No relocations beside those of the wrappers."""
    return []


def library(
    code_lists: list[list[Code]],
    symbols: int = 2 * PAGE + 16,
    *,
    more: Callable[[int, int], list[Relocation]] = nothing_more,
    targets: list[int] | None = None,
    rela_at: int = 0x400,
    align: int = PAGE,
    memory: int = 0,
    slack: int = 0,
    debug: int = 0,
    early: bool = False,
) -> bytes:
    """A shared library with these containers, numbered from 1 by their version.

    `more` makes relocations from the addresses of containers and wrappers, before those of the
    wrappers, which point to `targets` (offsets), else to the containers. `rela_at` is where the
    first section begins. `align` is the alignment of the segment that has the containers,
    `memory` how much larger it is than in the file; 0x80 bytes follow them. `slack` are
    bytes of no section, loaded ones before the last table for debuggers and others after it.
    `debug` are the flags of .debug_info; `early` puts the section headers before the tables.
    """
    fatbin = b""
    places = []
    for number, one in enumerate(code_lists, 1):
        places.append(len(fatbin))
        fatbin += container(one, number)
    start = PAGE + 0x100
    end = start + len(fatbin)
    data = end + _TAIL + -(end + _TAIL) % PAGE
    wrappers = b"".join(struct.pack("<IIQQ", 0x466243B1, 1, 0, 0) for _ in code_lists)
    base = data + SHIFT
    aimed = places if targets is None else targets
    relocations = more(start + SHIFT, base)
    relocations += [(base + 24 * n + 8, 8, start + SHIFT + at) for n, at in enumerate(aimed)]
    rela = b"".join(struct.pack("<QQq", *r) for r in relocations)
    assert rela_at + len(rela) <= PAGE
    sections = [
        Section(".rela.dyn", 4, 2, rela, rela_at, rela_at),
        Section(".rodata", 1, 2, b"r" * 0x100, PAGE, PAGE + SHIFT),
        Section(".nv_fatbin", 1, 2, fatbin, start, start + SHIFT),
        Section(".eh_frame", 1, 2, b"e" * _TAIL, end, end + SHIFT),
        Section(".nvFatBinSegment", 1, 3, wrappers, data, base),
        Section(".data", 1, 3, b"d" * 8, data + len(wrappers), base + len(wrappers)),
    ]
    at = data + len(wrappers) + 8
    # has no bytes in the file, wherever it says that it is
    sections.append(Section(".bss", 8, 3, bytes(9 * PAGE), at, at + SHIFT))
    names = b"\0" + b"".join(f"{s.name}\0".encode() for s in sections)
    names += b".debug_info\0.comment\0.symtab\0.strtab\0.shstrtab\0"
    headers = 64 * (len(sections) + 6)
    shoff = at + len(names) + -(at + len(names)) % PAGE
    if early:
        sections.append(Section(".shstrtab", 3, 0, names, at))
        at = shoff + headers
    for name, kind, flags, letter, size in (
        (".debug_info", 1, debug, b"i", symbols),
        (".comment", 1, 0, b"c", 2 * PAGE + 8),
        (".symtab", 2, 0, b"s", symbols),
    ):
        sections.append(Section(name, kind, flags, letter * size, at))
        at += size
    unnamed, at = at, at + slack
    sections.append(Section(".strtab", 3, 0, b"t" * symbols, at))
    at += symbols + slack
    if not early:
        sections.append(Section(".shstrtab", 3, 0, names, at))
        shoff = at + len(names)
        at = shoff + headers
    loads = [
        (4, 0, 0, rela_at + len(rela), 0, PAGE),
        (4, PAGE, PAGE + SHIFT, end + _TAIL - PAGE, memory, align),
        (6, data, base, len(wrappers) + 8, 9 * PAGE, PAGE),
    ]
    loads += [(6, unnamed, unnamed + 20 * PAGE + SHIFT, slack, 0, PAGE)] if slack else []
    whole = bytearray(at)
    whole[unnamed : unnamed + slack] = b"u" * slack
    return _written(whole, sections, loads, shoff)


def _written(
    whole: bytearray,
    sections: list[Section],
    loads: list[tuple[int, int, int, int, int, int]],
    shoff: int,
) -> bytes:
    """A file with its headers and sections; `loads` are flags, offset, address, size, what more
    there is in memory, and alignment.
    """
    segments = [
        struct.pack("<IIQQQQQQ", 1, f, o, v, v + 64, n, n + extra, a)
        for f, o, v, n, extra, a in loads
    ]
    segments.append(struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16))
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    order = [s.name for s in sections]
    counts = (64, 56, len(segments), 64, len(sections) + 1, 1 + order.index(".shstrtab"))
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, 62, 1, 0, 64, shoff, 0, *counts)
    names = sections[order.index(".shstrtab")].data
    whole[: len(header)] = header
    whole[64 : 64 + 56 * len(segments)] = b"".join(segments)
    table = bytes(64)
    for s in sections:
        if s.kind != 8:
            whole[s.offset : s.offset + len(s.data)] = s.data
        link = (names.index(f"\0{s.name}\0".encode()) + 1, s.kind, s.flags, s.addr, s.offset)
        strtab = 1 + order.index(".strtab") if s.kind == 2 else 0
        info = 7 if s.name in (".symtab", ".nv_fatbin") else 0
        table += struct.pack("<IIQQQQIIQQ", *link, len(s.data), strtab, info, 8, 24)
    whole[shoff : shoff + len(table)] = table
    return bytes(whole)


def loaded(data: bytes) -> dict[int, bytes]:
    """What a loader has in memory: bytes by the address of each segment."""
    segments: dict[int, bytes] = {}
    last = 0
    for s in ELFFile(BytesIO(data)).iter_segments("PT_LOAD"):
        start, size = s["p_vaddr"], s["p_filesz"]
        assert last <= start, "segments are in order and do not overlap"
        assert s["p_offset"] + size <= len(data)
        assert s["p_paddr"] == start + 64
        last = start + s["p_memsz"]
        segments[start] = data[s["p_offset"] : s["p_offset"] + size]
    return segments


def at(memory: dict[int, bytes], address: int, size: int) -> bytes:
    """What is in memory at an address."""
    for start, data in memory.items():
        if start <= address and address + size <= start + len(data):
            return data[address - start : address - start + size]
    raise AssertionError(f"nothing is loaded at {address:#x}")


def entries(data: bytes) -> list[list[Code]]:
    """The containers that the wrappers of a library lead to, after its relocations."""
    memory = loaded(data)
    tables: list[list[Code]] = []
    elf = ELFFile(BytesIO(data))
    rela = elf.get_section_by_name(".rela.dyn")
    assert isinstance(rela, RelocationSection)
    for relocation in rela.iter_relocations():
        address = relocation["r_addend"]
        _, number, _, size = struct.unpack("<IHHQ", at(memory, address, 16))
        assert address % 8 == 0
        assert number == len(tables) + 1
        [(_, codes)] = containers(memoryview(at(memory, address, 16 + size)))
        tables.append([(e.arch, e.ptx, e.specific, len(e.data) - 64) for e in codes])
    return tables


def pruned(data: bytes, arches: list[int], *, symbols: bool = True) -> bytes:
    """A library as prune() writes it."""
    return prune(memoryview(data), arches, symbols=symbols)
