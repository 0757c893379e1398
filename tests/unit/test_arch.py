from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_images.arch import Capability, coverage, widespread

capabilities = st.builds(Capability, st.integers(1, 29), st.integers(0, 9))


@given(capabilities)
def test_capability_reads_what_it_prints(capability: Capability) -> None:
    assert Capability.parse(str(capability)) == capability
    assert Capability.of_target(f"sm_{capability.major}{capability.minor}") == capability


@pytest.mark.parametrize(
    ("gpu", "code", "runs"),
    [
        ("8.6", "8.6", True),
        ("8.9", "8.6", True),
        ("8.6", "8.9", False),
        ("9.0", "8.9", False),
        ("8.9", "9.0", False),
        ("12.0", "10.0", False),
    ],
)
def test_machine_code_runs_on_later_minor_versions_of_its_major(
    gpu: str, code: str, runs: bool
) -> None:
    assert Capability.parse(gpu).runs(Capability.parse(code)) == runs


@given(st.text())
def test_other_text_is_no_capability(text: str) -> None:
    try:
        assert str(Capability.parse(text)) == text
    except ValueError as error:
        assert text in str(error)


@given(capabilities, st.lists(capabilities), st.lists(capabilities))
def test_coverage_obeys_nvidias_rules(
    capability: Capability, elf: list[Capability], ptx: list[Capability]
) -> None:
    names = [f"sm_{c.major}{c.minor}" for c in elf]
    virtual = [f"compute_{c.major}{c.minor}" for c in ptx]
    support = coverage(capability, names, virtual)
    # The rule of Capability.runs once more, on purpose: a check against NVIDIA's words.
    same_major = [c for c in elf if c.major == capability.major and c.minor <= capability.minor]
    assert (support is not None) == bool(same_major or [c for c in ptx if c <= capability])
    if support and support.kind == "native":
        assert capability in elf
    if support and support.kind == "ptx":
        assert not same_major


def test_widespread_omits_a_few_kernels() -> None:
    # Counted in libtorch_cuda.so of torch 2.11.0+cu130.
    counts = Counter(sm_75=444, sm_80=444, sm_86=444, sm_89=1, sm_90=448, sm_100=503, sm_103=59)
    assert widespread(counts) == {"sm_75", "sm_80", "sm_86", "sm_90", "sm_100"}
    assert widespread(Counter()) == set()
    assert widespread(Counter(sm_90=1), like=counts) == set()
