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


def library(
    held: list[list[Code]],
    symbols: int = 2 * PAGE + 16,
    *,
    pointer: int | None = None,
    targets: list[int] | None = None,
    rela_at: int = 0x400,
    align: int = PAGE,
    more: int = 0,
) -> bytes:
    """A shared library with these containers.

    `pointer` makes one more relocation point to that offset in their section, `targets` are the
    offsets that the wrappers point to, else where the containers are. `rela_at` is where the first
    section begins, `align` and `more` are the alignment of the segment that has the containers, and
    by how many bytes it is larger in memory than in the file.
    """
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
    aimed = places if targets is None else targets
    relocations = [(base + 24 * n + 8, 8, start + SHIFT + at) for n, at in enumerate(aimed)]
    if pointer is not None:
        relocations += [(base + len(wrappers), 8, pointer + SHIFT + start)]
    rela = b"".join(struct.pack("<QQq", *r) for r in relocations)
    assert rela_at + len(rela) <= PAGE
    after = data + len(wrappers) + 8
    sections = [
        Section(".rela.dyn", 4, 2, rela, rela_at, rela_at),
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
        (4, 0, 0, rela_at + len(rela), 0, PAGE),
        (4, PAGE, PAGE + SHIFT, tail + 0x80 - PAGE, more, align),
        (6, data, base, len(wrappers) + 8, 0, PAGE),
    ]
    segments = [
        struct.pack("<IIQQQQQQ", 1, f, o, v, v, n, n + extra, a) for f, o, v, n, extra, a in loads
    ]
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


def relocations(data: bytes) -> set[tuple[int, int]]:
    """Where a library's relocations are, and where they point to."""
    rela = ELFFile(BytesIO(data)).get_section_by_name(".rela.dyn")
    assert isinstance(rela, RelocationSection)
    return {(r["r_offset"], r["r_addend"]) for r in rela.iter_relocations()}


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


ONE: list[list[Code]] = [[(80, False, False, 8), (90, False, False, 3 * PAGE)]]
TWO = [*ONE, ONE[0]]
SECOND = len(container(ONE[0]))


@pytest.mark.parametrize("pointer", [0, 32, SECOND - 8])
def test_a_foreign_pointer_is_refused_even_to_where_a_container_begins(pointer: int) -> None:
    """Whatever it is for, it would not follow the containers."""
    with pytest.raises(PruneError, match=r"something else points into .nv_fatbin, at 0x[0-9a-f]+$"):
        pruned(library(ONE, pointer=pointer), [80])


@pytest.mark.parametrize("pointer", [-8, SECOND])
def test_a_pointer_beside_the_containers_stays(pointer: int) -> None:
    data = library(ONE, pointer=pointer)
    [kept] = [r for r in relocations(data) if r[0] not in {w for w, _ in relocations(library(ONE))}]
    assert kept in relocations(pruned(data, [80]))


def test_a_wrapper_that_points_into_a_container_is_refused() -> None:
    with pytest.raises(PruneError, match="something else points into"):
        pruned(library(TWO, targets=[0, SECOND + 16]), [80])


def test_a_container_without_a_wrapper_is_refused() -> None:
    """Something unknown would have to find it."""
    for targets in ([0, 0], [SECOND, SECOND]):
        with pytest.raises(PruneError, match="^1 containers have no wrapper$"):
            pruned(library(TWO, targets=targets), [80])


@pytest.mark.parametrize(("align", "more"), [(2 * PAGE, 0), (PAGE, 1), (PAGE, PAGE)])
def test_a_segment_that_cannot_be_split_is_refused(align: int, more: int) -> None:
    """A larger alignment would not hold for its second part, and memory beyond the file would move."""
    data = library(ONE, align=align, more=more)
    with pytest.raises(PruneError, match="is not one of plain pages"):
        pruned(data, [80])
    assert entries(b"".join(prune(memoryview(data), None).pieces)) == ONE


def test_a_finer_alignment_is_no_obstacle() -> None:
    assert entries(pruned(library(ONE, align=16), [80])) == [ONE[0][:1]]


ROOM = 64 + 5 * 56  # up to the end of five program headers, one more than there are


def test_without_room_for_a_program_header_a_file_is_refused() -> None:
    assert entries(pruned(library(ONE, rela_at=ROOM), [80])) == [ONE[0][:1]]
    with pytest.raises(PruneError, match="no room for one more program header"):
        pruned(library(ONE, rela_at=ROOM - 8), [80])
    assert pruned(library(ONE, rela_at=ROOM - 8), [80, 90])  # nothing is split
