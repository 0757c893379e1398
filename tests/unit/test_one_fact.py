"""Facts that programs of images restate, because they run where this package is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torch_images.inside.times import EPOCH


@pytest.mark.parametrize(
    "path",
    [
        "scripts/image/build/clamp-mtimes",
        "scripts/image/build/install-packages",
        "tests/image/test_files.py",
    ],
)
def test_the_first_year_of_a_zip_archive(root: Path, path: str) -> None:
    """1980: what is older than a wheel can say has that time in all layers."""
    seconds = {int(number) for number in re.findall(r"\b3155\d{5}\b", (root / path).read_text())}
    assert seconds == {EPOCH}
