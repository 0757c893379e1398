"""A source that compiles torch and takes the published Triton: the real tree's, in tests/real."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_images.build.render import render
from torch_images.config.choose import choose
from torch_images.config.image import ImageSpec
from torch_images.config.load import load_config
from torch_images.config.lock_requests import wheel_input
from torch_images.config.types import Config
from torch_images.locks.facts import with_facts
from torch_images.locks.image_lock import (
    ImageLock,
    image_lock,
)

REAL = Path(__file__).resolve().parents[1] / "real"


@pytest.fixture(scope="module")
def real() -> tuple[Config, ImageSpec, ImageLock]:
    """The configuration of the real tree, its image, and the image's locks."""
    config = with_facts(load_config(REAL / "images.yaml"), REAL / "locks")
    spec = choose(config)
    return config, spec, image_lock(config, spec, REAL / "locks")


def test_one_stage_compiles(real: tuple[Config, ImageSpec, ImageLock], root: Path) -> None:
    config, spec, lock = real
    context = render(config, spec, lock, root)
    assert "FROM toolchain AS compile-torch\n" in context.dockerfile
    assert "triton-tree" not in context.dockerfile
    assert "COPY --from=compile-torch /wheels/torch/ /\n" in context.dockerfile
    paths = [f.path for f in context.files if f.path.startswith("source/") and "json" in f.path]
    assert paths == ["source/torch.json", "source/torch_images/inside/features.json"]


def test_a_version_that_torch_does_not_require_is_locked_in_a_lock_of_its_own(
    real: tuple[Config, ImageSpec, ImageLock],
) -> None:
    # torch 2.11.0, whose CUDA libraries it has, requires Triton 3.6.0 and any newer SymPy.
    config, spec, lock = real
    published = choose(config, source="wheel", arch="9.0")
    ours, theirs = (wheel_input(config, one) for one in (spec, published))
    assert ours.overrides == ("triton==3.2.0", "sympy==1.13.1")
    assert set(ours.request) - set(theirs.request) == set(ours.overrides)
    assert ours.name == f"{theirs.name}-debian" == lock.wheels.name


def test_headers_of_wheels_lie_in_the_toolkit(
    real: tuple[Config, ImageSpec, ImageLock], root: Path
) -> None:
    config, spec, lock = real
    assert lock.tools
    assert lock.tools.versions()["nvidia-cutlass"] == "3.4.1.0"
    stage = render(config, spec, lock, root).dockerfile.partition("AS toolchain")[2]
    assert "/site-packages/cutlass_library/source/include/. " in stage.partition("FROM ")[0]
