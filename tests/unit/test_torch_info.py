"""What `torch-info` says of an image."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

COMPILED = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.fixture(scope="module")
def architectures() -> Callable[[Sequence[str], Sequence[str]], list[str]]:
    script = Path(__file__).parents[2] / "scripts/image/commands/torch-info"
    loader = SourceFileLoader("torch_info", str(script))
    spec = importlib.util.spec_from_loader("torch_info", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    found: Any = module.architectures
    return found  # type: ignore[no-any-return]


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
def test_a_pruned_image_has_what_its_architectures_load(
    architectures: Callable[[Sequence[str], Sequence[str]], list[str]],
    pruned: list[str],
    left: list[str],
) -> None:
    assert architectures(COMPILED, pruned) == left
