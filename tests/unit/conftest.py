"""What unit tests share: the real images.yaml and locks, and golden files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from torch_images.config.load import load_config
from torch_images.config.types import Config
from torch_images.locks.facts import with_facts

ROOT = Path(__file__).resolve().parents[2]

# "ci" makes the same examples in every run, "long" makes new ones and many more. Neither measures
# time: a busy machine is no fault of what is tested.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "long",
    deadline=None,
    max_examples=1000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write tests/golden anew, test no more")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--golden"):
        items[:] = [item for item in items if "golden" in getattr(item, "fixturenames", ())]


@pytest.fixture
def golden(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], None]:
    """Compare a text that people read with its file in tests/golden; --golden writes the file.

    The sentences stand there alone: another test asserts an exit code and one noun.
    """
    monkeypatch.setenv("COLUMNS", "100")

    def check(name: str, text: str) -> None:
        path = ROOT / "tests" / "golden" / name
        if request.config.getoption("--golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.read_text() == text, "if the new text is right: ./inv test --golden"

    return check


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def config() -> Config:
    """The project's own images.yaml."""
    return with_facts(load_config(ROOT / "images.yaml"), ROOT / "locks")


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
