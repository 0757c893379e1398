"""The platform of a host: what its processor runs, and which of them images are built for. Pure."""

from __future__ import annotations

import re

from torch_images.errors import UsageError, shown, suggest

AMD64, ARM64 = "linux/amd64", "linux/arm64"
PLATFORMS = (AMD64, ARM64)
BUILT = (AMD64,)
# GPUs that only come with an Arm processor, by name or by compute capability: Grace hosts, DGX
# Spark, Jetson (https://developer.nvidia.com/cuda-gpus).
_WITH_ARM = re.compile(r"\b(?:gh200|gb200|gb300|gb10|dgx spark)\b|^(?:8\.7|11\.0|12\.1)$")


def host_platform(gpu: str, named: str = "") -> str:
    """The platform of the host of a GPU: that of the GPU, else the one that was named.

    Raises UsageError for a platform that is unknown, or that no image is built for.
    """
    if named and named not in PLATFORMS:
        raise UsageError(f"unknown platform '{shown(named)}'", suggest(named, PLATFORMS))
    bound = _WITH_ARM.search(gpu.lower().strip())
    platform = ARM64 if bound else named or AMD64
    if platform not in BUILT:
        whose = f", which every host of {shown(gpu)} is" if bound else ""
        raise UsageError(
            f"no image is built for {platform} yet{whose}",
            f"one for {AMD64} would end in 'exec format error' there",
        )
    return platform
