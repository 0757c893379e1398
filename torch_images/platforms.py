"""The platforms of images, with their names in Docker, Debian, Linux and wheels. Pure."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from torch_images.errors import UsageError, shown, suggest


@dataclass(frozen=True, order=True)
class Platform:
    """The system and processor that an image runs on.

    `name`: in Docker, e.g. "linux/arm64".
    `machine`: the processor in Linux and in tags of wheels, e.g. "aarch64".
    """

    name: str
    machine: str

    @property
    def architecture(self) -> str:
        """The processor in OCI images and Debian packages, e.g. "arm64"."""
        return self.name.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The suffix of locks and images: "-arm64"; "" for amd64, the first platform."""
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
    """The platform of a processor such as "aarch64"; AMD64 for any other processor.

    macOS calls that processor "arm64".
    """
    return next((p for p in PLATFORMS if machine in (p.machine, p.architecture)), AMD64)


def native() -> Platform:
    """The platform of this machine's processor, by `of_machine`."""
    return of_machine(platform.machine())
