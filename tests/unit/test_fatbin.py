"""Libraries without the machine code of other architectures, on ELF files made here.

The real libtorch_cuda.so goes through the same function in every build of a pruned image, where
cuobjdump lists what is left.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
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
Relocation = tuple[int, int, int]  # where, kind, addend
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


def container(held: list[Code], version: int = 1) -> bytes:
    body = b"".join(entry(*code) for code in held)
    return struct.pack("<IHHQ", 0xBA55ED50, version, 16, len(body)) + body


@dataclass(frozen=True)
class Section:
    name: str
    kind: int
    flags: int
    data: bytes
    offset: int
    addr: int = 0


def nothing_more(_fatbin: int, _wrappers: int) -> list[Relocation]:
    return []


def library(
    held: list[list[Code]],
    symbols: int = 2 * PAGE + 16,
    *,
    more: Callable[[int, int], list[Relocation]] = nothing_more,
    targets: list[int] | None = None,
    rela_at: int = 0x400,
    align: int = PAGE,
    memory: int = 0,
    tail: int = 0x80,
    slack: int = 0,
    debug: int = 0,
    early: bool = False,
) -> bytes:
    """A shared library with these containers, numbered from 1 by their version.

    `more` makes relocations from the addresses of containers and wrappers, before those of the
    wrappers, which point to `targets` (offsets), else to the containers. `rela_at` is where the
    first section begins. `align` is the alignment of the segment that has the containers,
    `memory` how much larger it is than in the file, `tail` how much of it follows them. `slack` are
    bytes of no section, loaded ones before the last table for debuggers and others after it.
    `debug` are the flags of .debug_info; `early` puts the section headers before the tables.
    """
    fatbin = b""
    places = []
    for number, one in enumerate(held, 1):
        places.append(len(fatbin))
        fatbin += container(one, number)
    start = PAGE + 0x100
    end = start + len(fatbin)
    data = end + tail + -(end + tail) % PAGE
    wrappers = b"".join(struct.pack("<IIQQ", 0x466243B1, 1, 0, 0) for _ in held)
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
        Section(".eh_frame", 1, 2, b"e" * tail, end, end + SHIFT),
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
        (4, PAGE, PAGE + SHIFT, end + tail - PAGE, memory, align),
        (6, data, base, len(wrappers) + 8, 9 * PAGE, PAGE),
    ]
    loads += [(6, unnamed, unnamed + 20 * PAGE + SHIFT, slack, 0, PAGE)] if slack else []
    segments = [
        struct.pack("<IIQQQQQQ", 1, f, o, v, v + 64, n, n + extra, a)
        for f, o, v, n, extra, a in loads
    ]
    segments.append(struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16))
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    order = [s.name for s in sections]
    counts = (64, 56, len(segments), 64, len(sections) + 1, 1 + order.index(".shstrtab"))
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, 62, 1, 0, 64, shoff, 0, *counts)
    whole = bytearray(at)
    whole[: len(header)] = header
    whole[64 : 64 + 56 * len(segments)] = b"".join(segments)
    whole[unnamed : unnamed + slack] = b"u" * slack
    table = bytes(64)
    for s in sections:
        if s.kind != 8:
            whole[s.offset : s.offset + len(s.data)] = s.data
        link = (names.index(f"\0{s.name}\0".encode()) + 1, s.kind, s.flags, s.addr, s.offset)
        strtab = 1 + order.index(".strtab") if s.kind == 2 else 0
        table += struct.pack("<IIQQQQIIQQ", *link, len(s.data), strtab, 0, 8, 24)
    whole[shoff : shoff + headers] = table
    return bytes(whole)


def loaded(data: bytes) -> dict[int, bytes]:
    """What a loader has in memory: bytes by the address of each segment."""
    found, last = {}, 0
    for s in ELFFile(BytesIO(data)).iter_segments("PT_LOAD"):
        start, size = s["p_vaddr"], s["p_filesz"]
        assert last <= start, "segments are in order and do not overlap"
        assert s["p_offset"] + size <= len(data)
        assert s["p_paddr"] == start + 64
        last = start + s["p_memsz"]
        found[start] = data[s["p_offset"] : s["p_offset"] + size]
    return found


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
        _, number, _, size = struct.unpack("<IHHQ", at(memory, address, 16))
        assert address % 8 == 0
        assert number == len(found) + 1
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
        if section["sh_flags"] & 2 and section.name not in (".nv_fatbin", ".rela.dyn", ".bss"):
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
    assert len(data) - len(symbols) >= 4 * PAGE
    assert len(both) == len(code) + len(symbols) - len(data)
    assert entries(symbols) == entries(data)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"#!/bin/sh\n", "not an ELF file"),
        (library([[(90, False, False, 8)]])[:-100], "damaged"),
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


def aimed(offset: int, *, place: int = 24) -> bytes:
    """A library with one more pointer, at a place beside the wrappers, to an offset."""
    return library(ONE, more=lambda fatbin, wrappers: [(wrappers + place, 8, fatbin + offset)])


@pytest.mark.parametrize(
    ("offset", "place"), [(0, 24), (32, 24), (SECOND - 8, 24), (0, 16), (32, 8)]
)
def test_a_foreign_pointer_is_refused_even_to_where_a_container_begins(
    offset: int, place: int
) -> None:
    """Whatever it is for, it would not follow the containers."""
    with pytest.raises(PruneError, match=r"something else points into .nv_fatbin, at 0x[0-9a-f]+$"):
        pruned(aimed(offset, place=place), [80])


@pytest.mark.parametrize("offset", [-8, SECOND])
def test_a_pointer_beside_the_containers_stays(offset: int) -> None:
    data = aimed(offset)
    [kept] = relocations(data) - relocations(library(ONE))
    assert kept in relocations(pruned(data, [80]))


def test_what_is_no_pointer_is_let_be() -> None:
    """Another kind of relocation, and bytes that only look like one across two of them."""

    def more(fatbin: int, wrappers: int) -> list[Relocation]:
        return [(wrappers + 24, 1, fatbin), (wrappers + 24, 8, 8), (fatbin + 16, 1, 0)]

    data = library(ONE, more=more)
    new = pruned(data, [80])
    assert relocations(data) - relocations(library(ONE)) <= relocations(new)
    assert new == pruned(new, [80])
    assert len(data) - len(new) >= 2 * PAGE


def test_a_wrapper_that_points_into_a_container_is_refused() -> None:
    with pytest.raises(PruneError, match="something else points into"):
        pruned(library(TWO, targets=[0, SECOND + 16]), [80])


def test_a_container_without_a_wrapper_is_refused() -> None:
    """Something unknown would have to find it."""
    for targets in ([0, 0], [SECOND, SECOND]):
        with pytest.raises(PruneError, match="^1 containers have no wrapper$"):
            pruned(library(TWO, targets=targets), [80])


@pytest.mark.parametrize(("align", "memory"), [(2 * PAGE, 0), (PAGE, 1), (PAGE, 64)])
def test_a_segment_that_cannot_be_split_is_refused(align: int, memory: int) -> None:
    """A larger alignment would not hold for its second part, and memory beyond the file would move."""
    data = library(ONE, align=align, memory=memory)
    with pytest.raises(PruneError, match="is not one of plain pages"):
        pruned(data, [80])
    assert entries(b"".join(prune(memoryview(data), None).pieces)) == ONE


def test_a_finer_alignment_is_no_obstacle() -> None:
    assert entries(pruned(library(ONE, align=16), [80])) == [ONE[0][:1]]


def test_containers_outside_all_segments_are_refused() -> None:
    data = bytearray(library(ONE))
    data[64 + 56 : 64 + 60] = struct.pack("<I", 4)  # the segment that has them becomes a note
    with pytest.raises(PruneError, match="^no segment holds .nv_fatbin$"):
        pruned(bytes(data), [80])


def test_the_hole_may_end_a_segment() -> None:
    """Where code ends at the end of a page, and of its segment, nothing follows the hole."""
    room = 4 * PAGE - 0x100 - len(container([(80, False, False, 0), (90, False, False, 0)]))
    data = library([[(80, False, False, 0), (90, False, False, room)]], tail=0)
    new = pruned(data, [80], symbols=False)
    assert entries(new) == [[(80, False, False, 0)]]
    assert len(data) - len(new) == 3 * PAGE


def test_less_than_a_page_is_left_where_it_is() -> None:
    """A page's end lies in what could go, but no whole page."""
    data = library([[(80, False, False, 8), (90, False, False, PAGE)]])
    assert pruned(data, [80], symbols=False) == data


def test_containers_stay_aligned_where_code_is_not() -> None:
    """As the driver reads them; entries() checks the address of each."""
    held: list[list[Code]] = [[(80, False, False, 2), (90, False, False, 14 + 3 * PAGE)]] * 3
    assert entries(pruned(library(held), [80])) == [one[:1] for one in held]


ROOM = 64 + 5 * 56  # up to the end of five program headers, one more than there are


def test_without_room_for_a_program_header_a_file_is_refused() -> None:
    assert entries(pruned(library(ONE, rela_at=ROOM), [80])) == [ONE[0][:1]]
    with pytest.raises(PruneError, match="no room for one more program header"):
        pruned(library(ONE, rela_at=ROOM - 8), [80])
    assert pruned(library(ONE, rela_at=ROOM - 8), [80, 90])  # nothing is split


def test_the_account_of_what_left() -> None:
    held = [*ONE, [(90, True, False, 8), (120, False, True, 2 * PAGE)]]
    data = library(held)
    found = prune(memoryview(data), [80, 90, 120])
    assert found.size == len(b"".join(found.pieces))
    assert (found.code, len(data) - found.size) == (0, found.symbols)
    assert found.symbols >= 4 * PAGE
    found = prune(memoryview(data), [120])
    assert found.code == 2 * PAGE
    assert found.code + found.symbols == len(data) - found.size
    assert found.left == {"sm_120*": 1, "compute_90": 1}
    assert prune(memoryview(data), [90], symbols=False).left == {"sm_90": 1, "compute_90": 1}
    assert prune(memoryview(data), None).left == {}
    assert prune(memoryview(data), [120], symbols=False).symbols == 0


@pytest.mark.parametrize(
    ("ptx", "specific", "target"),
    [(False, False, "sm_90"), (False, True, "sm_90*"), (True, False, "compute_90")],
)
def test_targets_are_named_as_cuobjdump_names_them(ptx: bool, specific: bool, target: str) -> None:
    assert Entry(90, ptx, specific, memoryview(b"")).target == target


def test_specific_code_is_not_an_older_one_to_fall_back_to() -> None:
    offered = [Entry(100, False, True, memoryview(b"")), Entry(90, True, False, memoryview(b""))]
    assert chosen(offered, [103]) == (offered[1],)
    assert chosen(offered, [90]) == (offered[1],)  # PTX of just this version
    assert chosen(offered, [89]) == ()


def test_containers_may_have_zeros_between_and_after_them() -> None:
    one, two = container([(90, False, False, 8)]), container([(80, False, False, 16)])
    for gap in (0, 8, 16, 24):
        section = one + bytes(gap) + two + bytes(gap) + one + bytes(gap)
        found = list(containers(memoryview(section)))
        second = len(one) + gap
        assert [at for at, _ in found] == [0, second, second + len(two) + gap]
        assert [e.arch for _, held in found for e in held] == [90, 80, 90]


def test_an_entry_with_the_shortest_header() -> None:
    short = struct.pack("<HHIQIIHHI", 2, 0x0101, 48, 8, 0, 0, 0, 0, 90).ljust(48, b"\0") + b"x" * 8
    section = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(short)) + short
    [(_, [found])] = containers(memoryview(section))
    assert (found.arch, len(found.data)) == (90, 56)


WHOLE = container([(90, False, False, 8)])


def altered(at: int, form: str, value: int) -> bytes:
    """Two containers, the second with another value at an offset."""
    size = struct.calcsize(form)
    second = WHOLE[:at] + struct.pack(form, value) + WHOLE[at + size :]
    return WHOLE + second


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        (altered(0, "<I", 1), "has no container at 0x58"),
        (altered(6, "<H", 24), "has no container at 0x58"),
        (altered(8, "<Q", len(WHOLE) - 16 + 1), "has no container at 0x58"),
        (WHOLE[:-1], "has no container at 0x0"),
        (altered(16, "<H", 3), "has an unknown entry at 0x68"),
        (altered(16, "<H", 0), "has an unknown entry at 0x68"),
        (altered(20, "<I", 40), "has an unknown entry at 0x68"),
        (altered(24, "<Q", 9), "has an unknown entry at 0x68"),
    ],
)
def test_a_damaged_container_is_refused_where_it_is(section: bytes, problem: str) -> None:
    with pytest.raises(PruneError, match=f"^.nv_fatbin {problem}$"):
        list(containers(memoryview(section)))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("slack", [0, 3 * PAGE])
def test_only_the_tables_leave_with_the_symbols(early: bool, slack: int) -> None:
    """What lies between them, loaded or not, and the section headers stay; what is of no section
    and beside a table goes with it.
    """
    data = library(ONE, early=early, slack=slack)
    found = prune(memoryview(data), None)
    new = b"".join(found.pieces)
    (_, *before), (_, *after) = (list(loaded(file).items()) for file in (data, new))
    assert after == before  # and the first one has the headers
    old = {s.name: s for s in ELFFile(BytesIO(data)).iter_sections()}
    for section in ELFFile(BytesIO(new)).iter_sections():
        table = section.name in (".symtab", ".strtab", ".debug_info")
        assert section["sh_type"] == old[section.name]["sh_type"]
        assert section.data() == (b"" if table else old[section.name].data())
    assert 4 * PAGE + slack / 2 <= found.symbols <= 6 * PAGE + 48 + slack


def test_a_table_that_is_loaded_stays() -> None:
    """Such as .debug_gdb_scripts, which a debugger reads from memory."""
    new = b"".join(prune(memoryview(library(ONE, debug=2)), None).pieces)
    section = ELFFile(BytesIO(new)).get_section_by_name(".debug_info")
    assert section
    assert section.data() == b"i" * (2 * PAGE + 16)


def test_room_of_no_table_stays() -> None:
    """Nobody knows what it is for."""
    data = library(ONE, symbols=0, slack=3 * PAGE)
    assert b"".join(prune(memoryview(data), None).pieces) == data


def test_a_library_without_device_code_only_loses_its_symbols() -> None:
    data = library(ONE).replace(b".nv_fatbin\0", b".nv_other_\0")
    found = prune(memoryview(data), [80])
    assert (found.code, found.left) == (0, {})
    assert b"".join(found.pieces) == b"".join(prune(memoryview(data), None).pieces)


def test_containers_without_a_section_of_wrappers_are_refused() -> None:
    data = library(ONE).replace(b".nvFatBinSegment\0", b".nvFatBinSegmenx\0")
    with pytest.raises(PruneError, match="^no .nvFatBinSegment$"):
        pruned(data, [80])


def test_the_shortest_elf_file_is_a_header() -> None:
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, 62, 1, 0, 64, 0, 0, 64, 56, 0, 64, 0, 0)
    assert pruned(header, [80]) == header
    with pytest.raises(PruneError, match="^not an ELF file of 64 bits, little endian$"):
        pruned(header[:-1], [80])
