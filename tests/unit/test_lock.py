from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.conftest import T130
from torch_images.config.choose import choose
from torch_images.config.lock_selection import inputs
from torch_images.config.types import Config
from torch_images.errors import LockError, UsageError
from torch_images.locks.image_lock import ImageLock, image_lock


@pytest.fixture
def lock(config: Config, root: Path) -> ImageLock:
    return image_lock(config, choose(config), root / "locks")


def test_locks_are_chosen_by_name(config: Config) -> None:
    assert [i.name for i in inputs(config, "base-tri*")] == [
        "base-trixie",
        "base-trixie-arm64",
        "base-trixie-devel",
        "base-trixie-pod",
    ]
    with pytest.raises(
        UsageError, match="no lock matches 'base-bokworm'; did you mean 'base-bookw"
    ):
        inputs(config, "base-bokworm")


def test_a_variant_adds_what_the_plain_image_lacks(config: Config, root: Path) -> None:
    """So that both share all layers of the plain one."""
    plain = image_lock(config, choose(config), root / "locks")
    devel = image_lock(config, choose(config, variant="devel"), root / "locks")
    assert (devel.wheels, devel.base) == (plain.wheels, plain.base)
    assert devel.extra_wheels is not None
    assert devel.extra_debs is not None
    assert {"cmake", "nvidia-cuda-nvcc", "nvidia-nvvm"} <= devel.extra_wheels.versions().keys()
    assert not devel.extra_wheels.versions().keys() & plain.wheels.versions().keys()
    assert {"git", "make"} <= devel.extra_debs.versions().keys()
    assert not devel.extra_debs.versions().keys() & plain.base.versions().keys()
    assert len({lock.digest for lock in (plain, devel)}) == 2


def test_an_extra_replaces_what_it_must(config: Config, root: Path) -> None:
    """And no more: all else has the versions, and the layers, of the plain image."""
    pod = image_lock(config, choose(config, variant="pod"), root / "locks")
    assert pod.extra_wheels is not None
    plain, more = pod.wheels.versions(), pod.extra_wheels.versions()
    assert plain.keys() & more.keys() == {"cuda-bindings"}
    versions = {wheel.name: wheel.version for wheel in pod.all_wheels}
    assert versions["cuda-bindings"] == more["cuda-bindings"] != plain["cuda-bindings"]
    assert len(versions) == len(pod.all_wheels)
    assert "nvidia-cutlass" not in versions
    assert [w.name for lock in pod.unpacked for w in lock.wheels] == ["nvidia-cutlass"]


def changed_locks(root: Path, folder: Path, name: str, old: str, new: str) -> Path:
    """A folder with all locks, one of them changed."""
    for path in (root / "locks").glob("*.*"):
        shutil.copy(path, folder)
    path = folder / f"{name}.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return folder


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        (f"wheel-cu130-torch{T130}-py313", {}),
        ("base-trixie", {}),
        ("compat-cu130", {"compat": "with"}),
        ("tools-build", {}),
        ("base-trixie-devel", {"variant": "devel"}),
        ("build-fork-trixie", {"source": "fork"}),
        ("unpacked-cutlass-cu130-py313", {"variant": "pod"}),
    ],
)
def test_a_lock_that_was_resolved_for_more_is_out_of_step(
    config: Config, root: Path, tmp_path: Path, name: str, axes: dict[str, str]
) -> None:
    """What was asked for beside may have changed every version, and is in the image itself."""
    locks = changed_locks(root, tmp_path, name, '"request": [', '"request": ["another", ')
    with pytest.raises(
        LockError,
        match=rf"^locks/{name}\.json is out of step: it was resolved for .*another.*, expected "
        rf".*; run `invoke lock --select {name}`$",
    ) as caught:
        image_lock(config, choose(config, **axes), locks)
    assert "another" not in caught.value.message.partition(", expected ")[2]
