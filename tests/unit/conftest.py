"""What unit tests share: a small images.yaml with its locks, and golden files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from torch_images.config.load import load_config
from torch_images.config.types import Config
from torch_images.locks.facts import with_facts

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "tests" / "fixtures" / "images.yaml"
LOCKS = IMAGES.with_name("locks")
CONFIG = with_facts(load_config(IMAGES), LOCKS)
# The newest release of torch there for each CUDA version, their minor versions, and the one before.
T128, T130, OLDER130 = "2.10.0", "2.14.1", "2.11.0"
M128, M130 = "2.10", "2.14"

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


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_IMAGES_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


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
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's folder, but with the images.yaml and locks of tests/fixtures."""
    folder = tmp_path_factory.mktemp("root")
    for path in (*ROOT.iterdir(), IMAGES, LOCKS):
        if path.parent != ROOT or path.name not in ("images.yaml", "locks"):
            (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture(scope="session")
def config() -> Config:
    """The images.yaml of tests/fixtures."""
    return CONFIG


@pytest.fixture(scope="session")
def real() -> Config:
    """The project's own images.yaml, for the few tests that are about it."""
    return with_facts(load_config(ROOT / "images.yaml"), ROOT / "locks")


@pytest.fixture
def yaml_file(tmp_path: Path) -> Callable[..., Path]:
    """Write the fixture's images.yaml with some text replaced, and return its path."""

    def write(*replacements: tuple[str, str]) -> Path:
        text = IMAGES.read_text()
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new, 1)
        path = tmp_path / "images.yaml"
        path.write_text(text)
        return path

    return write
