"""How much disk a build takes, and whether the engine has it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from torch_images.build.plan import LockedImage
from torch_images.errors import DiskError

# Unpacked wheels are about 1.85 times their download (measured: 5.0 GB of 2.74). They exist as
# layers in this user's cache and in the engine, and unpacked there once; what a variant adds is
# unpacked twice. The base and BuildKit's own files add about 2 GB.
_DISK_PER_WHEEL_BYTE = 1.85 + 2 * 1.0
_DISK_FIXED = 2_000_000_000
# Layers that are packed again exist as layers in this user's cache and in the engine once more, and
# for a while in a file of the whole image.
_DISK_PER_SMALL_BYTE = 2 * 1.0
# Compiling torch and Triton: trees, objects, wheels and the compile cache. PyTorch's build folder
# takes some 20 GB for one architecture and 5 for each further one.
_DISK_COMPILING, _DISK_PER_ARCH = 45_000_000_000, 5_000_000_000


def disk_needed(images: Sequence[LockedImage], *, small: bool = False) -> int:
    """Bytes that building these images takes from nothing; wheels they share count once.

    `small`: layers are packed again, which takes as much as they were and twice what they become.
    """
    wheels = {wheel for image in images for wheel in image.lock.all_wheels}
    wheels |= {w for image in images for lock in image.lock.unpacked for w in lock.wheels}
    tools = {w for image in images if image.lock.tools for w in image.lock.tools.wheels}
    archives = {archive for image in images for archive in image.lock.all_archives}
    size = sum(wheel.size for wheel in wheels | tools) * (
        _DISK_PER_WHEEL_BYTE + (_DISK_PER_SMALL_BYTE if small else 0)
    )
    size += sum(archive.size for archive in archives) * _DISK_PER_WHEEL_BYTE
    for image in images:
        if image.lock.sources:
            size += _DISK_COMPILING + _DISK_PER_ARCH * (len(image.spec.architectures) - 1)
    return int(size) + _DISK_FIXED


def check_disk(
    data_root: Path | None, images: Sequence[LockedImage], *, small: bool = False
) -> None:
    """Raise DiskError where the engine's disk cannot hold images that it has nothing of yet.

    `data_root` is None for a remote engine, whose disk cannot be seen from here.
    """
    if data_root is None or not images:
        return
    free, needed = shutil.disk_usage(data_root).free, disk_needed(images, small=small)
    if free < needed:
        raise DiskError(
            f"building needs about {needed / 1e9:.0f} GB, {data_root} has {free / 1e9:.1f} GB free",
            "free some with `invoke gc` or `docker system prune`, or, when most layers are "
            "built already, go on with --skip-disk-check",
        )
