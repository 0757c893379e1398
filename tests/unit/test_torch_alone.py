"""A source that compiles torch and takes the published Triton: the real tree's, in tests/real."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_images.build.compile_recipe import recipes
from torch_images.build.render import render
from torch_images.config.choose import choose
from torch_images.config.image import ImageSpec
from torch_images.config.load import load_config
from torch_images.config.lock_requests import wheel_input
from torch_images.config.types import Config
from torch_images.errors import ConfigError
from torch_images.locks.facts import with_facts
from torch_images.locks.image_lock import (
    ImageLock,
    image_lock,
    parse_image_lock,
    with_locked_trees,
)

REAL = Path(__file__).resolve().parents[1] / "real"


@pytest.fixture(scope="module")
def real() -> tuple[Config, ImageSpec, ImageLock]:
    """The configuration of the real tree, its image, and the image's locks."""
    config = with_facts(load_config(REAL / "images.yaml"), REAL / "locks")
    spec = choose(config)
    return config, spec, image_lock(config, spec, REAL / "locks")


def test_the_published_triton_stays(real: tuple[Config, ImageSpec, ImageLock]) -> None:
    _, spec, lock = real
    assert spec.source.torch
    assert lock.compiled.keys() == {"torch"}
    assert "torch" not in lock.wheels.versions()
    assert lock.triton == lock.wheels.versions()["triton"] == "3.2.0"
    assert with_locked_trees(spec, lock) == spec
    assert parse_image_lock(lock.texts()) == lock


def test_one_stage_compiles(real: tuple[Config, ImageSpec, ImageLock], root: Path) -> None:
    config, spec, lock = real
    context = render(config, spec, lock, root)
    assert "FROM toolchain AS compile-torch\n" in context.dockerfile
    assert "triton-tree" not in context.dockerfile
    assert "COPY --from=compile-torch /wheels/torch/ /\n" in context.dockerfile
    told = [f.path for f in context.files if f.path.startswith("source/") and "json" in f.path]
    assert told == ["source/features.json", "source/torch.json"]


def test_only_features_that_are_wanted_need_their_folders(
    real: tuple[Config, ImageSpec, ImageLock],
) -> None:
    _, spec, lock = real
    without = {feature.name: feature.needs for feature in spec.source.without if feature.needs}
    assert without == {"fbgemm": "third_party/fbgemm"}
    assert recipes(spec, lock)["torch"]["needs"] == {"kineto": "debian/kineto/libkineto"}


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


def test_needs_is_a_folder_of_the_tree(tmp_path: Path) -> None:
    path = tmp_path / "images.yaml"
    text = (REAL / "images.yaml").read_text()
    path.write_text(text.replace("needs: third_party/fbgemm", "needs: ../fbgemm"))
    with pytest.raises(
        ConfigError, match=r"is '\.\./fbgemm', which is not a path below the folder"
    ):
        load_config(path)
