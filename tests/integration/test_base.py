"""The bootstrapped base."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_images.base import bootstrap
from torch_images.config import Config
from torch_images.runner import Runner
from torch_images.workplace import Workplace


@pytest.mark.slow
def test_two_bootstraps_are_equal(
    config: Config, place: Workplace, runner: Runner, tmp_path: Path
) -> None:
    layouts = [
        bootstrap(config.bases[0], cache=tmp_path / name, network=place.network, run=runner)
        for name in ("one", "a second, longer name")
    ]
    assert layouts[0].digest == layouts[1].digest
