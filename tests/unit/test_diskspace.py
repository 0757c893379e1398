"""What a build needs of the disk, from locks made up of round numbers, and as it was measured."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torch_images.build import diskspace, labels
from torch_images.build.diskspace import Held, check_room, disk_needed
from torch_images.build.plan import LockedImage, lock_image
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import DiskError
from torch_images.host.engine import Engine
from torch_images.layers.parent import PARENT_IMAGES
from torch_images.layers.plan import layer_plans
from torch_images.locks.image_lock import image_lock
from torch_images.locks.sources import LockedArchive, SourceLock
from torch_images.locks.wheels import LockedWheel, WheelLock

PACKED, UNPACKED = diskspace._PACKED, diskspace._UNPACKED
ADDED, BASE, STEPS = diskspace._ADDED, diskspace._BASE, diskspace._STEPS
GB = 1_000_000_000


def wheel(name: str, size: int) -> LockedWheel:
    filename = f"{name}-1-py3-none-any.whl"
    return LockedWheel(name=name, version="1", filename=filename, size=size, sha256=name)


def wheels(lock: WheelLock, *named: LockedWheel) -> WheelLock:
    return dataclasses.replace(lock, wheels=named)


def archives(lock: SourceLock, *sizes: int) -> SourceLock:
    found = tuple(
        LockedArchive(name=str(size), version="1", url="https://h/x", size=size, sha256=str(size))
        for size in sizes
    )
    return dataclasses.replace(lock, archives=found)


def usage(folder: Path, free: int) -> Callable[[Path], Any]:
    """A disk with so many bytes left."""
    found = shutil.disk_usage(folder)._replace(free=free)
    return lambda _: found


@pytest.fixture(scope="module")
def plain(config: Config, root: Path) -> LockedImage:
    """The whole image, whose wheels are 1 MB."""
    spec = choose(config)
    lock = image_lock(config, spec, root / "locks")
    few = wheels(lock.wheels, wheel("torch", 600_000), wheel("numpy", 400_000))
    return LockedImage(spec=spec, lock=dataclasses.replace(lock, wheels=few))


@pytest.fixture(scope="module")
def compiled(config: Config, root: Path) -> LockedImage:
    """A compiled one for one architecture: wheels 1 MB, tools 0.2, archives 0.03."""
    spec = choose(config, arch="12.0", source="fork", cuda="12.8")
    lock = image_lock(config, spec, root / "locks")
    assert lock.tools
    assert lock.sources
    assert lock.toolkit
    changed = dataclasses.replace(
        lock,
        wheels=wheels(lock.wheels, wheel("numpy", 1_000_000)),
        tools=wheels(lock.tools, wheel("ninja", 200_000)),
        sources=archives(lock.sources, 10_000),
        toolkit=archives(lock.toolkit, 20_000),
    )
    return LockedImage(spec=spec, lock=changed)


def needed(config: Config, *images: LockedImage, held: Held | None = None) -> int:
    """What is needed beyond no images at all, without what does not depend on bytes of inputs."""
    return disk_needed(config, images, held or Held()) - disk_needed(config, [])


def of(image: LockedImage, **changed: Any) -> LockedImage:
    return LockedImage(spec=image.spec, lock=dataclasses.replace(image.lock, **changed))


def test_a_torch_for_named_architectures_takes_less(config: Config, plain: LockedImage) -> None:
    narrowed = LockedImage(spec=choose(config, arch="12.0"), lock=plain.lock)
    less = needed(config, plain) - needed(config, narrowed)
    assert less == pytest.approx(600_000 * (2 * PACKED + UNPACKED - 2 * 0.34 - 1.23), abs=1)


def test_what_images_share_counts_once(config: Config, plain: LockedImage) -> None:
    more = wheels(plain.lock.wheels, wheel("torch", 600_000), wheel("scipy", 100_000))
    other = of(plain, wheels=more)
    both = needed(config, plain, plain, other) - needed(config, plain)
    assert both == pytest.approx(100_000 * (2 * PACKED + UNPACKED) + STEPS, abs=1)


def test_compiling_needs_trees_tools_and_archives(config: Config, compiled: LockedImage) -> None:
    bare = of(compiled, sources=None, tools=None, toolkit=None)
    more = needed(config, compiled) - needed(config, bare)
    assert more == pytest.approx(200_000 * ADDED + 30_000 * 3.85 + 45 * GB, abs=1)
    assert needed(config, compiled, compiled) == needed(config, compiled) + 45 * GB


def test_each_further_architecture_needs_more(compiled: LockedImage, config: Config) -> None:
    for arch, further in (("9.0,12.0", 1), ("8.0,9.0,12.0", 2)):
        spec = choose(config, arch=arch, source="fork", cuda="12.8")
        more = needed(config, LockedImage(spec=spec, lock=compiled.lock))
        assert more == needed(config, compiled) + further * 5 * GB


def test_what_is_there_is_not_needed_again(config: Config, plain: LockedImage) -> None:
    lower, upper = (
        plan for plans in layer_plans(config, plain.spec, plain.lock).values() for plan in plans
    )
    assert (lower.size, upper.size) == (600_000, 400_000)
    whole = needed(config, plain)
    cached = {lower.key: "sha256:a", upper.key: "sha256:b"}
    there = needed(config, plain, held=Held(cached=cached))
    assert whole - there == pytest.approx(1_000_000 * PACKED, abs=1)
    base = sum(deb.size for deb in plain.lock.base.debs) * BASE
    for chain, layers in (
        (["base", "sha256:a", "sha256:b", "more"], 1_000_000),
        (["base", "sha256:a", "other", "sha256:b"], 600_000),
        (["base", "sha256:a"], 600_000),
        (["base", "sha256:b"], 0),  # unpacked on other layers, which does not help
        ([], 0),
    ):
        more = needed(config, plain, held=Held(cached=cached, chains=[["x"], chain]))
        less = layers * (PACKED + UNPACKED) + (base if layers else 0)
        assert there - more == pytest.approx(less, abs=1)
    unknown = Held(chains=[["", "", ""]])  # without a layer in the cache, its diff id is not known
    assert needed(config, plain, held=unknown) == whole


class Asked(Engine):
    """An engine with labels and layers, which counts the questions for them."""

    def __init__(self, root: Path | None, locks: set[str], chains: list[tuple[str, ...]]) -> None:
        self._root, self._locks, self._chains, self.asked = root, locks, chains, 0

    def local_root(self) -> Path | None:
        return self._root

    def label_values(self, label: str) -> frozenset[str]:
        self.asked += 1
        return frozenset(self._locks if label == labels.LOCK else ())

    def layer_chains(self, label: str, repository: str) -> tuple[tuple[str, ...], ...]:
        self.asked += 1
        assert (label, repository) == (labels.ID, PARENT_IMAGES)
        return tuple(self._chains)


def test_an_engine_is_asked_only_where_the_disk_is_small(
    config: Config, plain: LockedImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = disk_needed(config, [plain])
    nothing = Asked(tmp_path, set(), [])
    monkeypatch.setattr(shutil, "disk_usage", usage(tmp_path, whole))
    check_room(config, [plain], tmp_path, nothing)
    assert not nothing.asked
    monkeypatch.setattr(shutil, "disk_usage", usage(tmp_path, whole - 1))
    with pytest.raises(DiskError):
        check_room(config, [plain], tmp_path, nothing)
    check_room(config, [plain], tmp_path, Asked(None, set(), []))
    for lock in (plain.lock, dataclasses.replace(plain.lock, compat=None)):
        check_room(config, [plain], tmp_path, Asked(tmp_path, {f"sha256:{lock.digest}"}, []))
    for number, plan in enumerate(
        plan for plans in layer_plans(config, plain.spec, plain.lock).values() for plan in plans
    ):
        made = {"digest": f"sha256:{number}", "diff_id": f"sha256:d{number}", "size": 1}
        (tmp_path / "layers" / plan.key).mkdir(parents=True)
        (tmp_path / "layers" / plan.key / "layer.json").write_text(json.dumps(made))
    base = sum(deb.size for deb in plain.lock.base.debs) * BASE
    rest = whole - int(1_000_000 * (2 * PACKED + UNPACKED) + base)
    monkeypatch.setattr(shutil, "disk_usage", usage(tmp_path, rest + 2))
    held = Asked(tmp_path, set(), [("base", "sha256:d0", "sha256:d1")])
    check_room(config, [plain], tmp_path, held)
    with pytest.raises(DiskError):
        check_room(config, [plain], tmp_path, nothing)


@pytest.mark.parametrize(
    ("axes", "beside", "measured"),
    [
        ({"cuda": "13.0", "torch": "2.11.0"}, False, 9.73),
        ({"cuda": "12.8", "torch": "2.10.0"}, False, 13.57),
        ({"cuda": "13.0", "torch": "2.14.1", "variant": "pod"}, True, 3.76),
    ],
)
def test_the_estimate_is_what_was_measured_and_little_more(
    config: Config, root: Path, axes: dict[str, str], beside: bool, measured: float
) -> None:
    """The peaks, in GB, are those of diskspace.py; `beside` is beside the plain image.

    They are of Debian 12, whose Python 3.11 had smaller wheels for pods.
    """
    image = lock_image(config, choose(config, **axes), root / "locks")
    plans = [p for ps in layer_plans(config, image.spec, image.lock).values() for p in ps]
    known = {plan.key: plan.title for plan in plans}
    held = Held(cached=known, chains=[["base", *known.values()]]) if beside else Held()
    assert measured <= disk_needed(config, [image], held) / 1e9 <= 1.12 * measured
