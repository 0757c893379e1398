"""What `torch-info` says of an image."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_images.arch import Capability, coverage

COMPILED = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


def load() -> Callable[[Sequence[str], Sequence[str]], list[str]]:
    """The function `architectures` of the command torch-info, which is a script without suffix."""
    script = Path(__file__).parents[2] / "scripts/image/commands/torch-info"
    loader = SourceFileLoader("torch_info", str(script))
    spec = importlib.util.spec_from_loader("torch_info", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    function: Any = module.architectures
    return function  # type: ignore[no-any-return]


architectures = load()


@pytest.mark.parametrize(
    ("pruned", "left"),
    [
        ([], COMPILED),
        (["9.0"], ["sm_90"]),
        (["8.0", "12.0"], ["sm_80", "sm_120"]),
        (["8.9"], ["sm_86"]),
        (["12.1"], ["sm_120"]),
        (["13.0"], ["compute_120"]),
        (["7.0"], []),
    ],
)
def test_a_pruned_image_has_what_its_architectures_load(pruned: list[str], left: list[str]) -> None:
    assert architectures(COMPILED, pruned) == left


CAPABILITIES = st.builds(Capability, st.integers(5, 13), st.integers(0, 9))


@given(CAPABILITIES, st.sets(CAPABILITIES), st.sets(CAPABILITIES))
def test_its_rule_is_that_of_the_pipeline(
    gpu: Capability, machine: set[Capability], virtual: set[Capability]
) -> None:
    elf = [c.sm.replace("sm", "sm_") for c in machine]
    ptx = [c.sm.replace("sm", "compute_") for c in virtual]
    best = coverage(gpu, elf, ptx)
    assert architectures(elf + ptx, [str(gpu)]) == ([best.target] if best else [])
