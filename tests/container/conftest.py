"""Checks that run with the torch they check: inside an image, or on any machine that has one.

Inside an image, TORCH_IMAGES_EXPECTED names a JSON file with what the image claims to be. Without
it, the checks that compare with a claim are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case per architecture, feature and package that the image claims."""
    claims = {"arch": "arches", "feature": "features"}
    for argument, key in claims.items():
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, EXPECTED[key] if EXPECTED else [])
