"""Labels: what is written is read back, and anybody's labels are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.conftest import T130
from torch_images.build.labels import ID, LOCK, read, write, write_built
from torch_images.build.plan import ImagePlan, lock_image, plan_image, version
from torch_images.config.choose import choose
from torch_images.config.types import Config

BASE = "sha256:" + "b" * 64


@pytest.fixture
def image(config: Config, root: Path) -> ImagePlan:
    locked = lock_image(config, choose(config, arch="12.0", compat="with"), root / "locks")
    return plan_image(config, locked, root)


def test_write_and_read(config: Config, image: ImagePlan) -> None:
    built = write_built(base_digest=BASE, compat_note='{"driver":[580]}')
    parsed = read({**write(config, image), **built})
    assert parsed.id == image.spec.id
    assert parsed.version == version(config, image)
    assert parsed.torch == f"{T130}"
    assert parsed.lock == f"sha256:{image.lock.digest}"
    assert parsed.inputs == f"sha256:{image.identity}"
    assert parsed.compat == image.lock.compat_version != ""
    assert not parsed.unlocked


def test_read_labels_of_an_image_without_compat_or_full_lock(
    config: Config, root: Path, image: ImagePlan
) -> None:
    bare = plan_image(config, lock_image(config, choose(config, arch="12.0"), root / "locks"), root)
    built = write_built(base_digest=BASE, compat_note="")
    parsed = read({**write(config, bare), **built})
    assert parsed.compat == ""
    compiled = lock_image(config, choose(config, arch="12.0", source="fork"), root / "locks")
    assert compiled.lock.sources
    lock = replace(compiled.lock, sources=replace(compiled.lock.sources, unlocked=True))
    loose = plan_image(config, replace(compiled, lock=lock), root)
    assert read(write(config, loose)).unlocked


def test_write_labels_are_printable(config: Config, image: ImagePlan) -> None:
    built = write_built(base_digest=BASE, compat_note="")
    written = {**write(config, image), **built}
    assert {ID, LOCK} <= written.keys()
    assert all(text and text.isprintable() for text in written.values())
    names = ("org.opencontainers.image.", "io.github.torch-images.")
    assert all(key.startswith(names) for key in written)


@given(st.dictionaries(st.sampled_from([ID, LOCK, "io.github.torch-images.compat"]), st.text()))
def test_read_arbitrary_labels(labels: dict[str, str]) -> None:
    parsed = read(labels)
    assert parsed.id == labels.get(ID, "")
    assert parsed.lock == labels.get(LOCK, "")
    assert not parsed.unlocked
