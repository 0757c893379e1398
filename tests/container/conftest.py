"""Checks that run with the torch they check: inside an image, or on any machine that has one.

Inside an image, TORCH_IMAGES_EXPECTED names a JSON file with what the image claims to be. Without
it, the checks that compare with a claim are skipped. Those marked `gpu` want a CUDA device, and fail
where there is none; they skip what this GPU cannot do, and say so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_FILE = os.environ.get("TORCH_IMAGES_EXPECTED")
EXPECTED: dict[str, Any] | None = json.loads(Path(_FILE).read_text()) if _FILE else None


@pytest.fixture(scope="session")
def expected() -> dict[str, Any]:
    """What the image claims to be."""
    if EXPECTED is None:
        pytest.skip("no claim to compare with: TORCH_IMAGES_EXPECTED is not set")
    return EXPECTED


@pytest.fixture
def observe(record_property: Callable[[str, object], None]) -> Callable[[str, object], None]:
    """Note a fact of the image in the report, by name."""
    return record_property


@pytest.fixture(autouse=True)
def _device(request: pytest.FixtureRequest) -> Iterator[None]:
    """A device and fixed random numbers for checks marked `gpu`, whose settings end with them."""
    if "gpu" not in request.keywords:
        yield
        return
    import torch

    assert torch.cuda.is_available(), "torch sees no CUDA device"
    torch.manual_seed(0)
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)
    torch.compiler.reset()
    torch.cuda.empty_cache()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case per architecture, feature and package that the image claims."""
    claims = {"arch": "arches", "feature": "features"}
    for argument, key in claims.items():
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, EXPECTED[key] if EXPECTED else [])
