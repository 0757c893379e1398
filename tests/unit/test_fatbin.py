"""Libraries without the machine code of other architectures, on ELF files made here.

The real libtorch_cuda.so goes through the same function in every build of a pruned image, where
cuobjdump lists what is left.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from io import BytesIO

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_images.fatbin import Entry, PruneError, chosen, containers, prune

PAGE = 0x1000
SHIFT = 0x5000  # of addresses against offsets, from the second segment on

Code = tuple[int, bool, bool, int]  # architecture, PTX, specific, bytes
codes = st.lists(
    st.tuples(
        st.sampled_from((75, 80, 86, 89, 90, 100, 120)),
        st.booleans(),
        st.booleans(),
        st.integers(0, 700).map(lambda n: 8 * n),
    ),
    max_size=5,
)


def entry(arch: int, ptx: bool, specific: bool, size: int) -> bytes:
    """An entry of a container, as nvcc's fatbinary writes it."""
    head = struct.pack("<HHIQIIHHI", 1 if ptx else 2, 0x0101, 64, size, 0, 0, 0, 0, arch)
    flags = struct.pack("<QQ", 0x100000 if specific else 0x11, 0)
    return (head + bytes(8) + flags)[:64].ljust(64, b"\0") + bytes([arch]) * size


def container(held: list[Code]) -> bytes:
    body = b"".join(entry(*code) for code in held)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


@dataclass(frozen=True)
class Section:
    name: str
    kind: int
    flags: int
    data: bytes
    offset: int
    addr: int = 0


def library(held: list[list[Code]], symbols: int = 2 * PAGE + 16, pointer: int = 0) -> bytes:
    """A shared library with these containers; `pointer` makes one more relocation point there."""
    fatbin = b""
    places = []
    for one in held:
        places.append(len(fatbin))
        fatbin += container(one)
    start = PAGE + 0x100
    tail = start + len(fatbin)
    data = tail + 0x80 + -(tail + 0x80) % PAGE
    wrappers = b"".join(struct.pack("<IIQQ", 0x466243B1, 1, 0, 0) for _ in held)
    base = data + SHIFT
    relocations = [(base + 24 * n + 8, 8, start + SHIFT + at) for n, at in enumerate(places)]
    relocations += [(base + len(wrappers), 8, pointer + SHIFT + start)] if pointer else []
    rela = b"".join(struct.pack("<QQq", *r) for r in relocations)
    assert 0x400 + len(rela) <= PAGE
    after = data + len(wrappers) + 8
    sections = [
        Section(".rela.dyn", 4, 2, rela, 0x400, 0x400),
        Section(".rodata", 1, 2, b"r" * 0x100, PAGE, PAGE + SHIFT),
        Section(".nv_fatbin", 1, 2, fatbin, start, start + SHIFT),
        Section(".eh_frame", 1, 2, b"e" * 0x80, tail, tail + SHIFT),
        Section(".nvFatBinSegment", 1, 3, wrappers, data, base),
        Section(".data", 1, 3, bytes(8), data + len(wrappers), base + len(wrappers)),
        Section(".debug_info", 1, 0, b"d" * symbols, after),
        Section(".symtab", 2, 0, b"s" * symbols, after + symbols),
        Section(".strtab", 3, 0, b"t" * symbols, after + 2 * symbols),
    ]
    at = after + 3 * symbols
    names = b"\0" + b"".join(f"{s.name}\0".encode() for s in sections) + b".shstrtab\0"
    sections.append(Section(".shstrtab", 3, 0, names, at))
    shoff = at + len(names)
    loads = [
        (4, 0, 0, 0x400 + len(rela)),
        (4, PAGE, PAGE + SHIFT, tail + 0x80 - PAGE),
        (6, data, base, len(wrappers) + 8),
    ]
    segments = [struct.pack("<IIQQQQQQ", 1, f, o, v, v, n, n, PAGE) for f, o, v, n in loads]
    segments.append(struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16))
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    counts = (64, 56, len(segments), 64, len(sections) + 1, len(sections))
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, 62, 1, 0, 64, shoff, 0, *counts)
    whole = bytearray(shoff)
    whole[: len(header)] = header
    whole[64 : 64 + 56 * len(segments)] = b"".join(segments)
    table = bytes(64)
    strtab = 1 + [s.name for s in sections].index(".strtab")
    for s in sections:
        whole[s.offset : s.offset + len(s.data)] = s.data
        link = (names.index(f"\0{s.name}\0".encode()) + 1, s.kind, s.flags, s.addr, s.offset)
        table += struct.pack(
            "<IIQQQQIIQQ", *link, len(s.data), strtab if s.kind == 2 else 0, 0, 8, 24
        )
    return bytes(whole) + table


def loaded(data: bytes) -> dict[int, bytes]:
    """What a loader has in memory: bytes by the address of each segment."""
    return {
        s["p_vaddr"]: data[s["p_offset"] : s["p_offset"] + s["p_filesz"]]
        for s in ELFFile(BytesIO(data)).iter_segments("PT_LOAD")
    }


def at(memory: dict[int, bytes], address: int, size: int) -> bytes:
    for start, data in memory.items():
        if start <= address and address + size <= start + len(data):
            return data[address - start : address - start + size]
    raise AssertionError(f"nothing is loaded at {address:#x}")


def entries(data: bytes) -> list[list[tuple[int, bool, bool, int]]]:
    """The containers that the wrappers of a library lead to, after its relocations."""
    memory, found = loaded(data), []
    elf = ELFFile(BytesIO(data))
    rela = elf.get_section_by_name(".rela.dyn")
    assert isinstance(rela, RelocationSection)
    for relocation in rela.iter_relocations():
        address = relocation["r_addend"]
        size = struct.unpack("<IHHQ", at(memory, address, 16))[3]
        [(_, held)] = containers(memoryview(at(memory, address, 16 + size)))
        found.append([(e.arch, e.ptx, e.specific, len(e.data) - 64) for e in held])
    return found


def pruned(data: bytes, arches: list[int], *, symbols: bool = True) -> bytes:
    return b"".join(prune(memoryview(data), arches, symbols=symbols).pieces)


@settings(max_examples=60)
@given(st.lists(codes, min_size=1, max_size=4), st.sets(st.sampled_from((80, 90, 120)), min_size=1))
def test_only_what_is_loaded_stays_and_all_else_keeps_its_place(
    held: list[list[Code]], arches: set[int]
) -> None:
    data = library(held)
    new = pruned(data, sorted(arches))
    wanted = [
        [
            (e.arch, e.ptx, e.specific, len(e.data) - 64)
            for e in chosen([Entry(*c[:3], memoryview(bytes(c[3] + 64))) for c in one], arches)
        ]
        for one in held
    ]
    gone = sum(size for one in held for *_, size in one) - sum(c[3] for one in wanted for c in one)
    # Less than a page cannot leave the file, and so all stays as it is.
    assert entries(new) == wanted or (gone < 2 * PAGE and entries(new) == held)
    before, after = loaded(data), loaded(new)
    for section in ELFFile(BytesIO(data)).iter_sections():
        if section["sh_flags"] & 2 and section.name not in (".nv_fatbin", ".rela.dyn"):
            place = (section["sh_addr"], section["sh_size"])
            assert at(after, *place) == at(before, *place), section.name
    assert len(new) <= len(data) - 6 * PAGE + 3 * PAGE
    assert pruned(new, sorted(arches)) == new  # nothing is left to take


@given(st.lists(codes, min_size=1, max_size=3))
def test_sections_are_where_their_headers_say(held: list[list[Code]]) -> None:
    before = {s.name: s for s in ELFFile(BytesIO(library(held))).iter_sections()}
    new = ELFFile(BytesIO(pruned(library(held), [90])))
    for section in new.iter_sections():
        if section.name in (".symtab", ".strtab", ".debug_info"):
            assert section["sh_size"] == 0
        elif section.name not in (".nv_fatbin", ".rela.dyn", ""):
            assert section.data() == before[section.name].data()
    fatbin = new.get_section_by_name(".nv_fatbin")
    assert fatbin
    assert len(list(containers(memoryview(fatbin.data())))) == len(held)


@pytest.mark.parametrize(
    ("arches", "kept"),
    [
        ([90], {(90, False, False), (90, False, True)}),
        ([120], {(120, False, False)}),
        ([89], {(86, False, False)}),  # the nearest older one of the same major version
        ([103], {(100, False, False)}),  # not sm_100a, which runs on 10.0 only
        ([110], {(90, True, False)}),  # no machine code: the newest PTX that is not newer
        ([80, 90], {(80, False, False), (90, False, False), (90, False, True)}),
        ([70], set()),
    ],
)
def test_what_a_gpu_loads(arches: list[int], kept: set[tuple[int, bool, bool]]) -> None:
    offered = [(80, False, False), (86, False, False), (90, False, False), (90, False, True)]
    offered += [(100, False, False), (100, False, True), (120, False, False), (90, True, False)]
    found = chosen([Entry(*facts, memoryview(b"")) for facts in offered], arches)
    assert {(e.arch, e.ptx, e.specific) for e in found} == kept


def test_code_alone_or_symbols_alone() -> None:
    data = library([[(80, False, False, 3 * PAGE), (90, False, False, 8)]])
    both, code = pruned(data, [90]), pruned(data, [90], symbols=False)
    symbols = b"".join(prune(memoryview(data), None).pieces)
    assert len(data) - len(code) in (2 * PAGE, 3 * PAGE)
    assert len(data) - len(symbols) >= 5 * PAGE
    assert len(both) == len(code) + len(symbols) - len(data)
    assert entries(symbols) == entries(data)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"#!/bin/sh\n", "not an ELF file"),
        (library([[(90, False, False, 8)]])[:-100], "damaged"),
        (library([[(90, False, False, 3 * PAGE)]], pointer=32), "something else points into"),
        (
            library([[(90, False, False, 3 * PAGE)]]).replace(b"\x50\xed\x55\xba", b"abcd"),
            "no container",
        ),
        (
            library([[(90, False, False, 3 * PAGE)]]).replace(b"\xb1\x43\x62\x46", b"abcd"),
            "no wrapper",
        ),
    ],
)
def test_what_is_built_otherwise_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(PruneError, match=problem):
        pruned(data, [80])
