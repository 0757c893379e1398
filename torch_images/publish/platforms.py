"""The platform of a host: what its processor runs, and which of them images are built for. Pure."""

from __future__ import annotations

from torch_images.errors import UsageError, shown, suggest

AMD64, ARM64 = "linux/amd64", "linux/arm64"
PLATFORMS = (AMD64, ARM64)
BUILT = (AMD64,)


def host_platform(named: str = "", *, gpu: str = "") -> str:
    """The platform of a host: the one that was named, else linux/amd64.

    `gpu` is the name of a GPU that only hosts with Arm processors have, "" for any other. Raises
    UsageError for a platform that is unknown, or that no image is built for.
    """
    if named and named not in PLATFORMS:
        raise UsageError(f"unknown platform '{shown(named)}'", suggest(named, PLATFORMS))
    platform = ARM64 if gpu else named or AMD64
    if platform not in BUILT:
        whose = f", which every host of {gpu} is" if gpu else ""
        raise UsageError(
            f"no image is built for {platform} yet{whose}",
            f"one for {AMD64} would end in 'exec format error' there",
        )
    return platform
