"""A source that compiles torch and takes the published Triton: the real tree's, in tests/real."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_images.build.compile_recipe import recipes
from torch_images.build.render import render
from torch_images.config.choose import choose
from torch_images.config.image import ImageSpec
from torch_images.config.load import load_config
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
    assert without == {"fbgemm": "third_party/fbgemm", "kineto": "third_party/kineto"}
    assert recipes(spec, lock)["torch"]["needs"] == {}


def test_triton_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "images.yaml"
    text = (REAL / "images.yaml").read_text()
    head, found, rest = text.partition("    torch:\n      repository")
    assert found
    path.write_text(f"{head}    triton:\n      repository{rest}")
    with pytest.raises(
        ConfigError, match=r"'sources\.debian\.triton' is compiled, and no torch for it"
    ):
        load_config(path)


def test_needs_is_a_folder_of_the_tree(tmp_path: Path) -> None:
    path = tmp_path / "images.yaml"
    text = (REAL / "images.yaml").read_text()
    path.write_text(text.replace("needs: third_party/fbgemm", "needs: ../fbgemm"))
    with pytest.raises(
        ConfigError, match=r"is '\.\./fbgemm', which is not a path below the folder"
    ):
        load_config(path)
