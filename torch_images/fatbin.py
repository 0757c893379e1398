"""Remove machine code that no chosen architecture runs, and symbols, from a shared library.

nvcc puts device code into the section .nv_fatbin as containers, one for each object file, with an
entry for each target. A wrapper in .nvFatBinSegment points to each container through a relocation.
This module moves the containers together, which leaves one hole, and updates the wrappers'
relocations. It splits the segment around the hole, and removes the hole's bytes from the file. All
other code and data keep their addresses. Tables for debuggers (.symtab, .strtab, .debug_*), which
no program needs to run, are removed in the same way.

Wrapper and container are as in CUDA's fatbinary_section.h and fatBinaryCtl.h. NVIDIA does not
document entries: they are as seen in torch 2.10 and 2.11, and confirmed by cuobjdump.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch_images.arch import Capability

_WRAPPER, _CONTAINER = 0x466243B1, 0xBA55ED50
_PTX, _ELF = 1, 2
# In an entry's flags: for exactly this architecture or its family (sm_90a, sm_100f).
_SPECIFIC = 0x100000

_LOAD, _RELATIVE = 1, 8
_NULL, _RELA, _NOBITS, _ALLOC = 0, 4, 8, 2
_PAGE = 0x1000
_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_PHDR = struct.Struct("<IIQQQQQQ")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_RELATION = struct.Struct("<QQq")
_WRAP = struct.Struct("<IIQQ")
_HEAD = struct.Struct("<IHHQ")
_SHORTEST = 48  # bytes of an entry's header with flags
_ENTRY = struct.Struct("<HHIQIIHHI")


class PruneError(Exception):
    """A file has an unexpected structure; the message says where."""


@dataclass(frozen=True, eq=False)
class Entry:
    """Code for one target: its architecture as a number, e.g. 90, and the bytes, with the header.

    `ptx`: whether a driver still has to compile it; `specific`: whether it is for a target such as
    sm_90a.
    """

    arch: int
    ptx: bool
    specific: bool
    data: memoryview = field(repr=False)


def chosen(entries: Sequence[Entry], arches: Iterable[int]) -> tuple[Entry, ...]:
    """The entries of a container that one of these architectures would load, in their order.

    That is machine code for exactly this architecture; else the newest older machine code of the
    same major version; else the newest PTX that is not newer.
    """
    kept: set[Entry] = set()
    for arch in arches:
        own = Capability.of_number(arch)
        code = [e for e in entries if not e.ptx and not e.specific]
        code = [e for e in code if own.runs(Capability.of_number(e.arch))]
        ptx = [] if code else [e for e in entries if e.ptx and e.arch <= arch]
        newest = max((e.arch for e in (*code, *ptx)), default=0)
        kept |= {e for e in (*code, *ptx) if e.arch == newest}
        kept |= {e for e in entries if e.arch == arch and not e.ptx}
    return tuple(entry for entry in entries if entry in kept)


def containers(section: memoryview) -> Iterator[tuple[int, tuple[Entry, ...]]]:
    """Each container of a section: its offset and entries. Raises PruneError."""
    offset = 0
    while offset < len(section):
        if len(section) - offset < _HEAD.size:
            break
        magic, _, header, size = _HEAD.unpack_from(section, offset)
        if magic == 0:  # containers are aligned to eight bytes
            offset += 8
            continue
        if magic != _CONTAINER or header != _HEAD.size or offset + header + size > len(section):
            raise PruneError(f".nv_fatbin has no container at {offset:#x}")
        end, at, entries = offset + header + size, offset + header, []
        while at < end:
            kind, _, length, payload, _, _, _, _, arch = _ENTRY.unpack_from(section, at)
            (flags,) = struct.unpack_from("<Q", section, at + 40)
            following = at + length + payload
            if kind not in (_PTX, _ELF) or length < _SHORTEST or following > end:
                raise PruneError(f".nv_fatbin has an unknown entry at {at:#x}")
            entries.append(
                Entry(arch, kind == _PTX, bool(flags & _SPECIFIC), section[at:following])
            )
            at = following
        yield offset, tuple(entries)
        offset = end


class _Segment(NamedTuple):
    type: int
    flags: int
    offset: int
    vaddr: int
    paddr: int
    filesz: int
    memsz: int
    align: int


class _Section(NamedTuple):
    name: str
    at: int  # where its header is
    type: int
    flags: int
    addr: int
    offset: int
    size: int


@dataclass(frozen=True)
class _File:
    data: memoryview
    phoff: int
    shoff: int
    segments: tuple[_Segment, ...]
    sections: tuple[_Section, ...]

    def section(self, name: str) -> _Section | None:
        return next((s for s in self.sections if s.name == name), None)


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Turn errors of readers into PruneError."""
    try:
        yield
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise PruneError(f"damaged: {error}") from None


def section(data: memoryview, name: str) -> bytes:
    """The content of a section of an ELF file; b"" if it is missing. Raises PruneError."""
    with _reading():
        section = _read(data).section(name)
    return bytes(data[section.offset : section.offset + section.size]) if section else b""


@_reading()
def prune(data: memoryview, arches: Iterable[int] | None = None, *, symbols: bool = True) -> bytes:
    """The library without code that no architecture in `arches` loads, and without `symbols`.

    `arches` are numbers such as 90; None keeps all code.
    Raises PruneError for a library with another structure.
    """
    file = _read(data)
    cuts: list[tuple[int, int]] = []  # ranges of the file that leave it; whole pages
    patches: dict[int, bytes] = {}
    segments = list(file.segments)
    sizes: dict[int, tuple[int, int]] = {}
    fatbin = file.section(".nv_fatbin") if arches is not None else None
    if fatbin and arches is not None:
        packed, moved = _packed(file, fatbin, sorted(set(arches)))
        hole = _hole(fatbin.offset + len(packed), fatbin.offset + fatbin.size)
        if hole:
            segments = _split(segments, hole)
            patches[fatbin.offset] = packed + bytes(hole[0] - fatbin.offset - len(packed))
            patches |= _relocated(file, fatbin, moved)
            sizes[fatbin.at] = (fatbin.offset, len(packed))
            cuts.append(hole)
    if symbols:
        tables, holes = _symbols(file)
        cuts += holes
        sizes |= {table.at: (table.offset, 0) for table in tables}
    patches |= _headers(file, segments, sizes, sorted(cuts))
    return b"".join(_pieces(data, patches, sorted(cuts)))


def _read(data: memoryview) -> _File:
    if bytes(data[:6]) != b"\x7fELF\x02\x01" or len(data) < _EHDR.size:
        raise PruneError("not an ELF file of 64 bits, little endian")
    header = _EHDR.unpack_from(data)
    phoff, shoff, phnum, shnum, names = header[5], header[6], header[10], header[12], header[13]
    segments = tuple(_Segment(*_PHDR.unpack_from(data, phoff + 56 * n)) for n in range(phnum))
    raw = [_SHDR.unpack_from(data, shoff + 64 * n) for n in range(shnum)]
    texts = bytes(data[raw[names][4] : raw[names][4] + raw[names][5]]) if raw else b""
    sections = tuple(
        _Section(
            texts[r[0] : texts.index(b"\0", r[0])].decode(),
            shoff + 64 * n,
            *r[1:6],
        )
        for n, r in enumerate(raw)
    )
    parts = [(s.offset, s.filesz) for s in segments]
    parts += [(s.offset, s.size) for s in sections if s.type not in (_NULL, _NOBITS)]
    if any(offset + size > len(data) for offset, size in parts):
        raise PruneError("it ends before its sections do")
    return _File(data, phoff, shoff, segments, sections)


def _packed(file: _File, fatbin: _Section, arches: Sequence[int]) -> tuple[bytes, dict[int, int]]:
    """The section with its containers moved together, and their new addresses."""
    section = file.data[fatbin.offset : fatbin.offset + fatbin.size]
    packed, moved = bytearray(), {}
    for offset, entries in containers(section):
        kept = chosen(entries, arches)
        packed += bytes(-(fatbin.addr + len(packed)) % 8)
        moved[fatbin.addr + offset] = fatbin.addr + len(packed)
        _, version, size, _ = _HEAD.unpack_from(section, offset)
        packed += _HEAD.pack(_CONTAINER, version, size, sum(len(e.data) for e in kept))
        for entry in kept:
            packed += entry.data
    return bytes(packed), moved


def _relocated(file: _File, fatbin: _Section, moved: dict[int, int]) -> dict[int, bytes]:
    """The relocations that point each wrapper to the new address of its container."""
    wrappers = file.section(".nvFatBinSegment")
    if not wrappers:
        raise PruneError("no .nvFatBinSegment")
    for offset in range(wrappers.offset, wrappers.offset + wrappers.size, _WRAP.size):
        if _WRAP.unpack_from(file.data, offset)[0] != _WRAPPER:
            raise PruneError(f".nvFatBinSegment has no wrapper at {offset:#x}")
    pointers = range(wrappers.addr + 8, wrappers.addr + wrappers.size, _WRAP.size)
    end = fatbin.addr + fatbin.size
    patches, wrapped = {}, set()
    for table in (section for section in file.sections if section.type == _RELA):
        for at in range(table.offset, table.offset + table.size, _RELATION.size):
            where, kind, addend = _RELATION.unpack_from(file.data, at)
            if kind & 0xFFFFFFFF != _RELATIVE or not fatbin.addr <= addend < end:
                continue
            if where not in pointers or addend not in moved:
                raise PruneError(f"something else points into .nv_fatbin, at {where:#x}")
            patches[at] = _RELATION.pack(where, kind, moved[addend])
            wrapped.add(addend)
    if wrapped != moved.keys():
        raise PruneError(f"{len(moved.keys() - wrapped)} containers have no wrapper")
    return patches


def _hole(start: int, end: int) -> tuple[int, int] | None:
    """The whole pages of a range; None if there are none."""
    start, end = start + -start % _PAGE, end - end % _PAGE
    return (start, end) if start < end else None


def _split(segments: Sequence[_Segment], hole: tuple[int, int]) -> list[_Segment]:
    """The segments, with the loaded one around the hole split in two; offsets are the old ones."""
    parts = []
    for s in segments:
        if s.type == _LOAD and s.offset < hole[0] and hole[1] <= s.offset + s.filesz:
            if s.align > _PAGE or s.filesz != s.memsz:
                raise PruneError("the segment of .nv_fatbin is not one of plain pages")
            before, skipped = hole[0] - s.offset, hole[1] - s.offset
            parts.append(s._replace(filesz=before, memsz=before))
            places = hole[1], s.vaddr + skipped, s.paddr + skipped
            sizes = s.filesz - skipped, s.memsz - skipped
            parts.append(_Segment(s.type, s.flags, *places, *sizes, s.align))
        else:
            parts.append(s)
    if len(parts) == len(segments):
        raise PruneError("no segment holds .nv_fatbin")
    return parts


def _symbols(file: _File) -> tuple[list[_Section], list[tuple[int, int]]]:
    """The sections for debuggers, and the pages of the file that only they use."""
    tables = [
        s
        for s in file.sections
        if not s.flags & _ALLOC
        and (s.name in (".symtab", ".strtab") or s.name.startswith(".debug"))
    ]
    headers = {table.at for table in tables}
    used = [(s.offset, s.offset + s.filesz) for s in file.segments if s.filesz]
    used += [
        (s.offset, s.offset + s.size)
        for s in file.sections
        if s.at not in headers and s.type != _NOBITS and s.size
    ]
    used += [(0, _EHDR.size), (file.shoff, file.shoff + _SHDR.size * len(file.sections))]
    holes, at = [], 0
    for start, end in sorted([*used, (len(file.data), len(file.data))]):
        between = _hole(at, start)
        if between and any(
            t.offset < between[1] and t.offset + t.size > between[0] for t in tables
        ):
            holes.append(between)
        at = max(at, end)
    return tables, holes


def _headers(
    file: _File,
    segments: Sequence[_Segment],
    sizes: dict[int, tuple[int, int]],
    cuts: Sequence[tuple[int, int]],
) -> dict[int, bytes]:
    """ELF header, program headers and section headers for a file without the cuts, by offset."""

    def new(offset: int) -> int:
        return offset - sum(min(end, offset) - start for start, end in cuts if start < offset)

    end = file.phoff + _PHDR.size * len(segments)
    first = min(
        [s.offset for s in file.sections if s.offset and s.size and s.type != _NOBITS], default=end
    )
    if end > first:
        raise PruneError("no room for one more program header")
    table = b"".join(_PHDR.pack(*s._replace(offset=new(s.offset))) for s in segments)
    header = list(_EHDR.unpack_from(file.data))
    header[6], header[10] = new(header[6]), len(segments)
    patches = {0: _EHDR.pack(*header), file.phoff: table}
    for section in file.sections:
        fields = list(_SHDR.unpack_from(file.data, section.at))
        if section.at in sizes:
            fields[4], fields[5] = sizes[section.at]
            fields[7] = fields[7] if fields[5] else 0
        fields[4] = new(fields[4])
        patches[section.at] = _SHDR.pack(*fields)
    return patches


def _pieces(
    data: memoryview, patches: dict[int, bytes], cuts: Sequence[tuple[int, int]]
) -> Iterator[bytes | memoryview]:
    """The file with the patches applied and without the cuts, which must not overlap."""
    changes = [(start, start + len(new), new) for start, new in patches.items()]
    changes += [(start, end, b"") for start, end in cuts]
    at = 0
    for start, end, new in sorted(changes):
        if start < at:
            raise PruneError(f"changes overlap at {start:#x}")
        yield data[at:start]
        yield new
        at = end
    yield data[at:]
