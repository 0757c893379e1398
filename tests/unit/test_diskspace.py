"""What a build needs of the disk, from locks made up of round numbers, and as it was measured."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from torch_images.build import diskspace
from torch_images.build.diskspace import check_room, disk_needed
from torch_images.build.plan import LockedImage
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import DiskError
from torch_images.host.engine import Engine
from torch_images.layers.plan import layer_plans
from torch_images.locks.image_lock import image_lock
from torch_images.locks.sources import LockedArchive, SourceLock
from torch_images.locks.wheels import LockedWheel, WheelLock

WHEEL, PRUNED = diskspace._WHEEL, diskspace._PRUNED
ADDED, BASE, STEPS = diskspace._ADDED, diskspace._BASE, diskspace._STEPS
GB = 1_000_000_000


def wheel(name: str, size: int) -> LockedWheel:
    filename = f"{name}-1-py3-none-any.whl"
    return LockedWheel(name=name, version="1", filename=filename, size=size, sha256=name)


def wheels(lock: WheelLock, *items: LockedWheel) -> WheelLock:
    return dataclasses.replace(lock, wheels=items)


def archives(lock: SourceLock, *sizes: int) -> SourceLock:
    replaced = tuple(
        LockedArchive(name=str(size), version="1", url="https://h/x", size=size, sha256=str(size))
        for size in sizes
    )
    return dataclasses.replace(lock, archives=replaced)


def usage(folder: Path, free: int) -> Callable[[Path], Any]:
    """A disk with so many bytes left."""
    current = shutil.disk_usage(folder)._replace(free=free)
    return lambda _: current


def engine(root: Path | None) -> Engine:
    """An engine whose data are in a folder; None for one on another machine."""
    return cast("Engine", SimpleNamespace(local_root=lambda: root))


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


def needed(config: Config, *images: LockedImage, cached: Collection[str] = ()) -> int:
    """What is needed beyond no images at all, without what does not depend on bytes of inputs."""
    return disk_needed(config, images, cached) - disk_needed(config, [])


def of(image: LockedImage, **changed: Any) -> LockedImage:
    return LockedImage(spec=image.spec, lock=dataclasses.replace(image.lock, **changed))


def test_disk_needed_for_compiling(config: Config, compiled: LockedImage) -> None:
    bare = of(compiled, sources=None, tools=None, toolkit=None)
    more = needed(config, compiled) - needed(config, bare)
    assert more == pytest.approx(200_000 * ADDED + 30_000 * 3.85 + 45 * GB, abs=1)
    assert needed(config, compiled, compiled) == needed(config, compiled) + 45 * GB


def test_disk_needed_without_cached_layers(config: Config, plain: LockedImage) -> None:
    lower, upper = (
        plan for plans in layer_plans(config, plain.spec, plain.lock).values() for plan in plans
    )
    whole, base = needed(config, plain), sum(deb.size for deb in plain.lock.base.debs) * BASE
    for cached, less in (
        ({lower.key}, 600_000 * WHEEL + base),
        ({upper.key}, 400_000 * WHEEL),
        ({lower.key, upper.key}, 1_000_000 * WHEEL + base),
        ({"another"}, 0),
    ):
        assert whole - needed(config, plain, cached=cached) == pytest.approx(less, abs=1)


def test_check_room_at_the_last_byte(
    config: Config, plain: LockedImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = disk_needed(config, [plain])
    monkeypatch.setattr(shutil, "disk_usage", usage(tmp_path, has))
    check_room(config, [plain], tmp_path, engine(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", usage(tmp_path, has - 1))
    with pytest.raises(DiskError, match=r"needs about \d+\.\d GB, .* has \d\.\d GB free"):
        check_room(config, [plain], tmp_path, engine(tmp_path))


def test_check_room_ignores_layers_in_the_cache(
    config: Config, plain: LockedImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for plan in (p for ps in layer_plans(config, plain.spec, plain.lock).values() for p in ps):
        record = {"digest": "sha256:1", "diff_id": "sha256:2", "size": 1}
        (tmp_path / "layers" / plan.key).mkdir(parents=True)
        (tmp_path / "layers" / plan.key / "layer.json").write_text(json.dumps(record))
    base = sum(deb.size for deb in plain.lock.base.debs) * BASE
    rest = disk_needed(config, [plain]) - int(1_000_000 * WHEEL + base)
    monkeypatch.setattr(shutil, "disk_usage", usage(tmp_path, rest + 2))
    check_room(config, [plain], tmp_path, engine(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", usage(tmp_path, rest - 2))
    with pytest.raises(DiskError):
        check_room(config, [plain], tmp_path, engine(tmp_path))
    check_room(config, [plain], tmp_path, engine(None))
