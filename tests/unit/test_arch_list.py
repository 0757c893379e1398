"""The list of architectures in libtorch_python.so: only what an image's GPUs load stays in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_images import fatbin
from torch_images.arch import Capability
from torch_images.arch_list import ArchListError, narrowed
from torch_images.config.choose import choose
from torch_images.config.matrix import matrix
from torch_images.config.types import Config

TEXT = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
KNOWN = (70, 75, 80, 86, 89, 90, 100, 103, 110, 120, 121)


def library(text: str = TEXT, before: bytes = b"\x7fELF\0", after: bytes = b"\0cuda\0") -> bytes:
    return before + text.encode() + after


def test_machine_code_stands_for_its_ptx_and_single_kernels_for_nothing() -> None:
    text = "sm_80 sm_90 sm_90a sm_120 compute_120"
    for arch in (80, 90, 120):
        assert narrowed(library(text), [arch]) == library(f"sm_{arch}".ljust(len(text)))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "it has 0 lists of architectures, not one"),
        (library("sm_90"), "it has 0 lists"),  # one target alone may be any text
        (library(before=b"no zero byte"), "it has 0 lists"),
        (library(after=b" and more\0"), "it has 0 lists"),
        (library() + library(), "it has 2 lists"),
        (library() + library("sm_80 sm_90"), "it has 2 lists"),
    ],
)
def test_exactly_one_list_or_none_is_touched(data: bytes, problem: str) -> None:
    with pytest.raises(ArchListError, match=problem):
        narrowed(data, [90])


@given(
    st.sets(st.sampled_from(KNOWN), min_size=2),
    st.sets(st.sampled_from(KNOWN), min_size=1),
    st.binary(max_size=40),
    st.binary(max_size=40),
)
def test_narrowed_changes_only_the_list(
    targets: set[int], arches: set[int], before: bytes, after: bytes
) -> None:
    text = " ".join(f"sm_{target}" for target in sorted(targets))
    data = library(text, before + b"\0", b"\0" + after)
    code = [fatbin.Entry(t, ptx=False, specific=False, data=memoryview(b"")) for t in targets]
    served = {Capability.of_number(t) for t in targets}
    if not all(any(Capability.of_number(a).runs(c) for c in served) for a in arches):
        with pytest.raises(ArchListError):
            narrowed(data, arches)
        return
    output = narrowed(data, arches)
    assert len(output) == len(data)
    start, end = len(before) + 1, len(before) + 1 + len(text)
    assert (output[:start], output[end:]) == (data[:start], data[end:])
    words = output[start:end].decode()
    assert re.fullmatch(r"sm_\d+( sm_\d+)* *", words)
    assert words.split() == [
        f"sm_{e.arch}" for e in sorted(fatbin.chosen(code, arches), key=number)
    ]
    if words == text:  # nothing to leave out: once more changes nothing
        assert narrowed(output, arches) == output
    else:  # blanks fill it up: it is not taken for a whole list again
        with pytest.raises(ArchListError, match="0 lists"):
            narrowed(output, arches)


def number(entry: fatbin.Entry) -> int:
    return entry.arch


def test_images_are_checked_for_the_list_that_is_written(config: Config, root: Path) -> None:
    specs = [spec for spec in matrix(config) if spec.narrowed]
    specs.append(choose(config, arch="8.9,12.0"))
    assert len(specs) > 1
    for spec in specs:
        facts = spec.release.facts
        assert facts
        text = " ".join(f"sm_{a.major}{a.minor}" for a in facts.arches)
        arches = [a.capability.major * 10 + a.capability.minor for a in spec.architectures]
        [_, left, *_] = narrowed(library(text), arches).split(b"\0")
        assert tuple(left.decode().split()) == spec.arch_list
