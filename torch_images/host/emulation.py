"""Whether programs of another processor run on this machine, through an emulator.

Linux starts the emulator that is registered in binfmt_misc for a program's first bytes. It works in
containers and chroots only with flag F: the kernel then opens the emulator's file at registration.
scripts/setup-engine registers QEMU's emulators, and makes the same checks.
"""

from __future__ import annotations

import re
from pathlib import Path

from torch_images.errors import EngineError, shown
from torch_images.platforms import AMD64, ARM64, Platform, native

BINFMT = Path("/proc/sys/fs/binfmt_misc")

# Bytes of the longest entry that is read. A registration has at most 1920.
_LONGEST = 8192
_ENTRY = re.compile(
    r"enabled\ninterpreter [^\n]*\nflags: (?P<flags>[A-Z]*)\noffset 0\n"
    r"magic (?P<magic>(?:[0-9a-f]{2}){1,20})(?:\nmask (?P<mask>[0-9a-f]+))?"
)
# A processor's number in the header of an ELF program.
_NUMBERS = {AMD64: 0x3E, ARM64: 0xB7}

# Settings of QEMU, in its variable QEMU_CPU. By default it emulates vectors of 64 bytes, which no
# Arm processor used with NVIDIA's GPUs has, and torch.compile's code crashes there; Grace has 16.
_PROCESSORS = {ARM64: {"QEMU_CPU": "max,sve-default-vector-length=16"}}


def emulated(platform: Platform, folder: Path = BINFMT) -> bool:
    """Whether containers of this machine run programs of a platform through an emulator.

    `folder` is where binfmt_misc is mounted. Only for foreign platforms: no emulator is registered
    for the machine's own.
    """
    return any(_emulators(platform, folder).values())


def processor(platform: Platform) -> dict[str, str]:
    """Environment that makes QEMU's processor like the real ones of a platform."""
    return _PROCESSORS.get(platform, {})


def check_platform(
    platform: Platform, folder: Path = BINFMT, *, machine: Platform | None = None
) -> None:
    """Raise EngineError unless containers of this machine run programs of a platform.

    `machine` is the platform of this machine's processor, detected if None.
    """
    if platform == (machine or native()):
        return
    emulators = _emulators(platform, folder)
    if any(emulators.values()):
        return
    if emulators:
        name = shown(next(iter(emulators)))
        raise EngineError(
            f"the emulator '{name}' for {platform} is registered without flag F: containers cannot "
            "use it",
            f"as root, `echo -1` into {folder}/{name}, then {set_up(platform)}",
        )
    raise EngineError(f"this machine cannot run programs of {platform}", set_up(platform))


def set_up(platform: Platform) -> str:
    """The hint of an error about a platform that does not run here."""
    return (
        f"run scripts/setup-engine --platform {platform} in a clone of the project, or give a "
        "native builder with --builder"
    )


def _emulators(platform: Platform, folder: Path) -> dict[str, bool]:
    """Whether each enabled emulator of a platform has flag F, by its name, sorted.

    Malformed entries are skipped.
    """
    if _text(folder / "status").strip() != "enabled":
        return {}
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return {}
    matches = ((path.name, _ENTRY.fullmatch(_text(path).rstrip("\n"))) for path in paths)
    return {
        name: "F" in entry["flags"]
        for name, entry in matches
        if entry and _takes(entry["magic"], entry["mask"], platform)
    }


def _takes(magic: str, mask: str | None, platform: Platform) -> bool:
    """Whether an entry is for all of a platform's programs; `magic` and `mask` are hexadecimal.

    That is, for programs at fixed addresses (ELF type 2) and for others (type 3).
    """
    if mask is None:
        mask = "ff" * (len(magic) // 2)
    if len(mask) != len(magic):
        return False
    number = _NUMBERS[platform]
    headers = (
        b"\x7fELF\2\1\1" + bytes(9) + bytes((kind, 0, number, 0)) for kind in (2, 3)
    )  # 64 bits, little-endian, version 1, any system
    pairs = tuple(zip(bytes.fromhex(magic), bytes.fromhex(mask), strict=True))
    return all(
        not any((byte ^ value) & bits for byte, (value, bits) in zip(header, pairs, strict=False))
        for header in headers
    )


def _text(path: Path) -> str:
    """The beginning of a file; "" if it is unreadable or not a regular file."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as stream:
            return stream.read(_LONGEST).decode("ascii", "replace")
    except OSError:
        return ""
