"""Libraries without the machine code of other architectures, on ELF files made here.

The real libtorch_cuda.so goes through the same function in every build of a pruned image, where
cuobjdump lists what is left.
"""

from __future__ import annotations

from io import BytesIO

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.libraries import PAGE, Code, at, entries, library, loaded, pruned
from torch_images.fatbin import Entry, PruneError, chosen, prune

codes = st.lists(
    st.tuples(
        st.sampled_from((75, 80, 86, 89, 90, 100, 120)),
        st.booleans(),
        st.booleans(),
        st.integers(0, 700).map(lambda n: 8 * n),
    ),
    max_size=5,
)


@settings(max_examples=60)
@given(st.lists(codes, min_size=1, max_size=4), st.sets(st.sampled_from((80, 90, 120)), min_size=1))
def test_pruned_keeps_loaded_code_and_offsets(lists: list[list[Code]], arches: set[int]) -> None:
    data = library(lists)
    new = pruned(data, sorted(arches))
    kept = [
        [
            (e.arch, e.ptx, e.specific, len(e.data) - 64)
            for e in chosen([Entry(*c[:3], memoryview(bytes(c[3] + 64))) for c in one], arches)
        ]
        for one in lists
    ]
    gone = sum(size for one in lists for *_, size in one) - sum(c[3] for one in kept for c in one)
    # Less than a page cannot leave the file, and so all stays as it is.
    assert entries(new) == kept or (gone < 2 * PAGE and entries(new) == lists)
    before, after = loaded(data), loaded(new)
    for section in ELFFile(BytesIO(data)).iter_sections():
        if section["sh_flags"] & 2 and section.name not in (".nv_fatbin", ".rela.dyn", ".bss"):
            place = (section["sh_addr"], section["sh_size"])
            assert at(after, *place) == at(before, *place), section.name
    assert len(new) <= len(data) - 6 * PAGE + 3 * PAGE
    assert pruned(new, sorted(arches)) == new  # nothing is left to take


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
        ([100], {(100, False, False), (100, False, True)}),
    ],
)
def test_chosen_code_per_gpu(arches: list[int], kept: set[tuple[int, bool, bool]]) -> None:
    offered = [(80, False, False), (86, False, False), (90, False, False), (90, False, True)]
    offered += [(100, False, False), (100, False, True), (120, False, False), (90, True, False)]
    selected = chosen([Entry(*facts, memoryview(b"")) for facts in offered], arches)
    assert {(e.arch, e.ptx, e.specific) for e in selected} == kept


def test_code_alone_or_symbols_alone() -> None:
    data = library([[(80, False, False, 3 * PAGE), (90, False, False, 8)]])
    both, code = pruned(data, [90]), pruned(data, [90], symbols=False)
    symbols = prune(memoryview(data), None)
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
def test_pruned_refuses_other_layouts(data: bytes, problem: str) -> None:
    with pytest.raises(PruneError, match=problem):
        pruned(data, [80])
