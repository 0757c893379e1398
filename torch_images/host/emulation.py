"""Whether programs of another processor run on this machine, through an emulator.

Linux starts the emulator that is registered in binfmt_misc for a program's first bytes. It works in
containers and chroots only with flag F: the kernel then opens the emulator's file at registration.
scripts/setup-engine registers QEMU's emulators, and makes the same check.
"""

from __future__ import annotations

import re
from pathlib import Path

from torch_images.errors import EngineError
from torch_images.platforms import AMD64, ARM64, Platform, native

BINFMT = Path("/proc/sys/fs/binfmt_misc")

# A processor's number at the end of an entry's magic: the first 20 bytes of an ELF program of 64
# bits, little-endian, in hexadecimal.
_NUMBERS = {AMD64: "3e00", ARM64: "b700"}

# Settings of QEMU, in its variable QEMU_CPU. By default it emulates vectors of 64 bytes, which no
# Arm processor used with NVIDIA's GPUs has, and torch.compile's code crashes there; Grace has 16.
_PROCESSORS = {ARM64: {"QEMU_CPU": "max,sve-default-vector-length=16"}}


def emulated(platform: Platform, folder: Path = BINFMT) -> bool:
    """Whether containers of this machine run programs of a platform through an emulator.

    `folder` is where binfmt_misc is mounted. Only for foreign platforms: no emulator is registered
    for the machine's own.
    """
    magic = rf"magic 7f454c460201[0-9a-f]{{24}}{_NUMBERS[platform]}"
    entry = re.compile(rf"enabled\n.*^flags: \w*F.*^{magic}$", re.DOTALL | re.MULTILINE)
    files = [path for path in folder.glob("*") if path.name not in ("register", "status")]
    on = files and (folder / "status").read_text() == "enabled\n"
    return bool(on and any(entry.match(path.read_text()) for path in files))


def processor(platform: Platform) -> dict[str, str]:
    """Environment that makes QEMU's processor like the real ones of a platform."""
    return _PROCESSORS.get(platform, {})


def check_platform(
    platform: Platform, folder: Path = BINFMT, *, machine: Platform | None = None
) -> None:
    """Raise EngineError unless containers of this machine run programs of a platform.

    `machine` is the platform of this machine's processor, detected if None.
    """
    if platform != (machine or native()) and not emulated(platform, folder):
        raise EngineError(
            f"this machine cannot run programs of {platform}",
            f"run scripts/setup-engine --platform {platform} in a clone of the project, or give a "
            "native builder with --builder",
        )
