"""What a build needs of the disk, to the byte, from locks made up of round numbers."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from torch_images.build.diskspace import check_disk, disk_needed
from torch_images.build.plan import LockedImage
from torch_images.config.matrix import choose
from torch_images.config.types import Config
from torch_images.errors import DiskError
from torch_images.locks.image_lock import image_lock
from torch_images.locks.sources import LockedArchive, SourceLock
from torch_images.locks.wheels import LockedWheel, WheelLock

FIXED = 2_000_000_000
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


@pytest.fixture(scope="module")
def plain(config: Config, root: Path) -> LockedImage:
    """The image for one architecture, whose wheels are 1000 bytes."""
    spec = choose(config, arch="12.0")
    lock = image_lock(config, spec, root / "locks")
    few = wheels(lock.wheels, wheel("torch", 600), wheel("numpy", 400))
    return LockedImage(spec=spec, lock=dataclasses.replace(lock, wheels=few))


@pytest.fixture(scope="module")
def compiled(config: Config, root: Path) -> LockedImage:
    """A compiled one for one architecture: wheels 1000 bytes, tools 200, archives 30."""
    spec = choose(config, arch="12.0", source="fork", cuda="12.8")
    lock = image_lock(config, spec, root / "locks")
    assert lock.tools
    assert lock.sources
    assert lock.toolkit
    changed = dataclasses.replace(
        lock,
        wheels=wheels(lock.wheels, wheel("numpy", 1000)),
        tools=wheels(lock.tools, wheel("ninja", 200)),
        sources=archives(lock.sources, 10),
        toolkit=archives(lock.toolkit, 20),
    )
    return LockedImage(spec=spec, lock=changed)


def test_wheels_are_unpacked_nearly_four_times(plain: LockedImage) -> None:
    assert disk_needed([plain]) == 3850 + FIXED


def test_nothing_needs_what_is_fixed() -> None:
    assert disk_needed([]) == FIXED


def test_what_images_share_counts_once(plain: LockedImage) -> None:
    more = wheels(plain.lock.wheels, wheel("torch", 600), wheel("scipy", 100))
    other = LockedImage(spec=plain.spec, lock=dataclasses.replace(plain.lock, wheels=more))
    assert disk_needed([plain, plain, other]) == int(1100 * 3.85) + FIXED


def test_what_a_variant_unpacks_counts(plain: LockedImage) -> None:
    extra = wheels(plain.lock.wheels, wheel("cutlass", 10_000))
    more = wheels(plain.lock.wheels, wheel("vision", 100))
    lock = dataclasses.replace(plain.lock, unpacked=(extra,), extra_wheels=more)
    assert disk_needed([LockedImage(spec=plain.spec, lock=lock)]) == int(11_100 * 3.85) + FIXED


def test_compiling_needs_trees_tools_and_archives(compiled: LockedImage) -> None:
    assert disk_needed([compiled]) == int(1230 * 3.85) + FIXED + 45 * GB
    assert disk_needed([compiled, compiled]) == int(1230 * 3.85) + FIXED + 90 * GB


def test_each_further_architecture_needs_more(compiled: LockedImage, config: Config) -> None:
    for arch, further in (("9.0,12.0", 1), ("8.0,9.0,12.0", 2)):
        spec = choose(config, arch=arch, source="fork", cuda="12.8")
        more = disk_needed([LockedImage(spec=spec, lock=compiled.lock)])
        assert more == disk_needed([compiled]) + further * 5 * GB


@pytest.mark.parametrize(("short", "enough"), [(0, True), (1, False), (-1, True)])
def test_the_last_byte_counts(
    plain: LockedImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: int, enough: bool
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=disk_needed([plain]) - short)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    if enough:
        check_disk(tmp_path, [plain])
    else:
        with pytest.raises(DiskError, match=r"needs about 2 GB, .* has 2\.0 GB free"):
            check_disk(tmp_path, [plain])


def test_no_images_and_no_disk_to_see_need_nothing(
    plain: LockedImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    check_disk(tmp_path, [])
    check_disk(None, [plain])
