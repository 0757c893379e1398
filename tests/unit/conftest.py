"""What unit tests share: the real images.yaml and locks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from torch_images.config import Config
from torch_images.load import load_config

ROOT = Path(__file__).resolve().parents[2]

# Hypothesis measures time, too, and a busy machine is no fault of what is tested.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def config() -> Config:
    """The project's own images.yaml."""
    return load_config(ROOT / "images.yaml")


@pytest.fixture
def yaml_file(tmp_path: Path) -> Callable[..., Path]:
    """Write images.yaml with some text replaced, and return its path."""

    def write(*replacements: tuple[str, str]) -> Path:
        text = (ROOT / "images.yaml").read_text()
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new, 1)
        path = tmp_path / "images.yaml"
        path.write_text(text)
        return path

    return write
