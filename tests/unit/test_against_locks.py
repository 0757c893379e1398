"""What an image is compared with: all of its locks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.fakes import plan_of
from torch_images.config.types import Config
from torch_images.verify.verify import claim


@pytest.mark.parametrize("axes", [{}, {"variant": "pod"}, {"source": "fork"}])
def test_claim_has_the_whole_lock(config: Config, root: Path, axes: dict[str, str]) -> None:
    planned = plan_of(config, root, **axes)
    claimed, lock = claim(config, planned), planned.lock
    locked = {wheel.name: wheel.version for wheel in lock.all_wheels} | lock.compiled
    assert claimed["packages"] == locked
    assert {"torch", "triton"} <= locked.keys()
    assert claimed["debs"] == {deb.name: deb.version for deb in lock.all_debs}
    assert claimed["locks"] == lock.texts()
