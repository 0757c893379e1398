"""The platforms that images are for: the names that Docker, Debian, Linux and wheels have. Pure."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from torch_images.errors import UsageError, shown, suggest


@dataclass(frozen=True, order=True)
class Platform:
    """The system and processor that an image runs on.

    `name`: as Docker has it, such as "linux/arm64".
    `machine`: the processor as Linux and the tags of wheels have it, such as "aarch64".
    """

    name: str
    machine: str

    @property
    def architecture(self) -> str:
        """The processor as OCI images and Debian packages have it, such as "arm64"."""
        return self.name.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The end of names of locks and images: "-arm64"; "" for amd64, which was there first."""
        return "" if self == AMD64 else f"-{self.architecture}"

    def __str__(self) -> str:
        return self.name


AMD64 = Platform("linux/amd64", "x86_64")
ARM64 = Platform("linux/arm64", "aarch64")
PLATFORMS = (AMD64, ARM64)


def find(name: str) -> Platform:
    """The platform with a name. Raises UsageError, with a suggestion, for an unknown one."""
    for each in PLATFORMS:
        if each.name == name:
            return each
    known = [each.name for each in PLATFORMS]
    raise UsageError(f"unknown platform '{shown(name)}'", suggest(name, known))


def of_machine(machine: str) -> Platform:
    """The platform of a processor such as "aarch64"; AMD64 for one that no image is for.

    macOS calls that processor "arm64".
    """
    return next((p for p in PLATFORMS if machine in (p.machine, p.architecture)), AMD64)


def native() -> Platform:
    """The platform of this machine's processor, as `of_machine` has it."""
    return of_machine(platform.machine())
