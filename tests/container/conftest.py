"""Checks that import the torch they check: inside an image, or on any machine that has torch.

Inside an image, TORCH_IMAGES_EXPECTED is the path of a JSON file with what the image claims to be.
Without it, checks that compare with a claim are skipped. Checks marked `gpu` fail without a CUDA
device. They skip what the GPU cannot do, and give the reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

_FILE = os.environ.get("TORCH_IMAGES_EXPECTED")
EXPECTED: dict[str, Any] | None = json.loads(Path(_FILE).read_text()) if _FILE else None

# What torch takes from the variables of an image's start, before a check changes it.
SETTINGS: dict[str, Any] = {}
if EXPECTED:
    SETTINGS = {
        "precision": torch.get_float32_matmul_precision(),
        "allowed": torch.backends.cuda.matmul.allow_tf32,
        "matmul": getattr(torch.backends.cuda.matmul, "fp32_precision", None),
        "convolutions": torch.backends.cudnn.allow_tf32,
        "expandable": torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"],
    }

EMULATED = bool(os.environ.get("TORCH_IMAGES_EMULATED"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip in an emulator what only a real processor shows; the reason is that of the mark."""
    for item in items if EMULATED else ():
        if mark := item.get_closest_marker("native"):
            item.add_marker(pytest.mark.skip(reason=f"not in an emulator: {mark.args[0]}"))


@pytest.fixture(scope="session")
def expected() -> dict[str, Any]:
    """What the image claims to be."""
    if EXPECTED is None:
        pytest.skip("no claim to compare with: TORCH_IMAGES_EXPECTED is not set")
    return EXPECTED


@pytest.fixture
def observe(record_property: Callable[[str, object], None]) -> Callable[[str, object], None]:
    """Record a fact of the image, by name, in the report."""
    return record_property


@pytest.fixture(autouse=True)
def _device(request: pytest.FixtureRequest) -> Iterator[None]:
    """For checks marked `gpu`: require a device, fix the seed, and restore settings afterwards."""
    if "gpu" not in request.keywords:
        yield
        return
    assert torch.cuda.is_available(), "torch sees no CUDA device"
    torch.manual_seed(0)
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)
    torch.compiler.reset()
    torch.cuda.empty_cache()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one case per architecture and per feature that the image claims."""
    claims = {"arch": "arches", "feature": "features"}
    for argument, key in claims.items():
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, EXPECTED[key] if EXPECTED else [])
