"""Libraries that are built otherwise than expected are refused, or change only where they may."""

from __future__ import annotations

import struct
from io import BytesIO

import pytest
from elftools.elf.elffile import ELFFile

from tests.libraries import (
    PAGE,
    Code,
    container,
    entries,
    library,
    loaded,
    pruned,
)
from torch_images.fatbin import PruneError, containers, prune, section

ONE: list[list[Code]] = [[(80, False, False, 8), (90, False, False, 3 * PAGE)]]
TWO = [*ONE, ONE[0]]
SECOND = len(container(ONE[0]))


def aimed(offset: int, *, place: int = 24) -> bytes:
    """A library with one more pointer, at a place beside the wrappers, to an offset."""
    return library(ONE, more=lambda fatbin, wrappers: [(wrappers + place, 8, fatbin + offset)])


@pytest.mark.parametrize(("offset", "place"), [(0, 24), (SECOND - 8, 24), (0, 16)])
def test_pruned_refuses_a_foreign_pointer(offset: int, place: int) -> None:
    """Whatever it is for, it would not follow the containers."""
    with pytest.raises(PruneError, match=r"something else points into .nv_fatbin, at 0x[0-9a-f]+$"):
        pruned(aimed(offset, place=place), [80])


def test_pruned_refuses_a_container_without_a_wrapper() -> None:
    """Something unknown would have to find it."""
    for targets in ([0, 0], [SECOND, SECOND]):
        with pytest.raises(PruneError, match=r"^1 containers have no wrapper$"):
            pruned(library(TWO, targets=targets), [80])


@pytest.mark.parametrize(("align", "memory"), [(2 * PAGE, 0), (PAGE, 1), (PAGE, 64)])
def test_pruned_refuses_an_unusual_segment(align: int, memory: int) -> None:
    """A larger alignment would not hold for its second part, and memory beyond the file would move."""
    data = library(ONE, align=align, memory=memory)
    with pytest.raises(PruneError, match="is not one of plain pages"):
        pruned(data, [80])
    assert entries(prune(memoryview(data), None)) == ONE


def test_containers_stay_aligned_where_code_is_not() -> None:
    """As the driver reads them; entries() checks the address of each."""
    entry_lists: list[list[Code]] = [[(80, False, False, 2), (90, False, False, 14 + 3 * PAGE)]] * 3
    assert entries(pruned(library(entry_lists), [80])) == [one[:1] for one in entry_lists]


ROOM = 64 + 5 * 56  # up to the end of five program headers, one more than there are


def test_without_room_for_a_program_header_a_file_is_refused() -> None:
    assert entries(pruned(library(ONE, rela_at=ROOM), [80])) == [ONE[0][:1]]
    with pytest.raises(PruneError, match="no room for one more program header"):
        pruned(library(ONE, rela_at=ROOM - 8), [80])
    assert pruned(library(ONE, rela_at=ROOM - 8), [80, 90])  # nothing is split


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
        (altered(8, "<Q", len(WHOLE) - 16 + 1), "has no container at 0x58"),
        (WHOLE[:-1], "has no container at 0x0"),
        (altered(16, "<H", 3), "has an unknown entry at 0x68"),
        (altered(20, "<I", 40), "has an unknown entry at 0x68"),
        (altered(24, "<Q", 9), "has an unknown entry at 0x68"),
    ],
)
def test_containers_refuse_damage_by_offset(section: bytes, problem: str) -> None:
    with pytest.raises(PruneError, match=f"^.nv_fatbin {problem}$"):
        list(containers(memoryview(section)))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("slack", [0, 3 * PAGE])
def test_only_the_tables_leave_with_the_symbols(early: bool, slack: int) -> None:
    """What lies between them, loaded or not, and the section headers stay; what is of no section
    and beside a table goes with it.
    """
    data = library(ONE, early=early, slack=slack)
    new = prune(memoryview(data), None)
    (_, *before), (_, *after) = (list(loaded(file).items()) for file in (data, new))
    assert after == before  # and the first one has the headers
    old = {s.name: s for s in ELFFile(BytesIO(data)).iter_sections()}
    for new_section in ELFFile(BytesIO(new)).iter_sections():
        table = new_section.name in (".symtab", ".strtab", ".debug_info")
        assert new_section["sh_type"] == old[new_section.name]["sh_type"]
        assert new_section.data() == (b"" if table else old[new_section.name].data())
    assert 4 * PAGE + slack / 2 <= len(data) - len(new) <= 6 * PAGE + 48 + slack


def headers_of(data: bytes) -> tuple[int, int]:
    """Where a file's section headers are, and how many."""
    (shoff,) = struct.unpack_from("<Q", data, 40)
    (shnum,) = struct.unpack_from("<H", data, 60)
    return shoff, shnum


def test_section_content() -> None:
    data = memoryview(library(ONE))
    assert section(data, ".rodata") == b"r" * 0x100
    assert section(data, ".data") == b"d" * 8
    assert section(data, ".none") == b""
    with pytest.raises(PruneError, match=r"^damaged: "):
        section(data[:-100], ".data")
    with pytest.raises(PruneError, match=r"^not an ELF file"):
        section(memoryview(b"#!/bin/sh"), ".data")


def test_section_of_a_truncated_file() -> None:
    """By one byte."""
    data = library(ONE)
    shoff, shnum = headers_of(data)
    last = shoff + 64 * (shnum - 1)  # .shstrtab, which the headers follow
    (offset,) = struct.unpack_from("<Q", data, last + 24)
    for size, fits in ((len(data) - offset, True), (len(data) - offset + 1, False)):
        changed = bytearray(data)
        struct.pack_into("<Q", changed, shoff + 64 * 2 + 24, offset)  # .rodata
        struct.pack_into("<Q", changed, shoff + 64 * 2 + 32, size)
        if fits:
            assert len(section(memoryview(changed), ".rodata")) == size
            continue
        with pytest.raises(PruneError, match=r"^it ends before its sections do$"):
            section(memoryview(changed), ".rodata")


def test_containers_outside_all_segments_are_refused() -> None:
    data = bytearray(library(ONE))
    data[64 + 56 : 64 + 60] = struct.pack("<I", 4)  # the segment that has them becomes a note
    with pytest.raises(PruneError, match=r"^no segment holds \.nv_fatbin$"):
        pruned(bytes(data), [80])


def test_containers_without_a_section_of_wrappers_are_refused() -> None:
    data = library(ONE).replace(b".nvFatBinSegment\0", b".nvFatBinSegmenx\0")
    with pytest.raises(PruneError, match=r"^no \.nvFatBinSegment$"):
        pruned(data, [80])


def test_headers_that_lie_over_each_other_are_refused() -> None:
    """A section header within the program headers."""
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, 62, 1, 0, 64, 72, 0, 64, 56, 1, 64, 1, 0)
    table = struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 16, 0, 0, 0, 0)  # names: the first 16 bytes
    with pytest.raises(PruneError, match=r"^changes overlap at 0x48$"):
        pruned(header + bytes(8) + table, [80])
