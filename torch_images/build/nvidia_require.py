"""NVIDIA_REQUIRE_CUDA: the hosts that an image can start on. Pure."""

from __future__ import annotations

from torch_images.config.types import Cuda
from torch_images.inside.decision import BRANDS

COMPAT_FOLDER = (
    "/opt/cuda-compat"  # in images; NVIDIA's container toolkit acts on /usr/local/cuda/compat
)
# The brands of NVIDIA's official value, in its order and in the container toolkit's syntax, as read
# in nvidia/cuda:13.0.2 and 12.8.1.
_ORDER = (4, 2, 14, 1, 12, 13, 7, 8, 9, 10, 11)
_BRANDS = ("unknown", *(BRANDS[n].replace(" ", "").lower() for n in _ORDER))


def require_cuda(cuda: Cuda, *, compat: bool) -> str:
    """The hosts that an image can start on, in the container toolkit's syntax.

    Space is "or", comma is "and". `compat`: whether the image has NVIDIA's compat library. The
    conditions are NVIDIA's own, and a last one: any driver from the oldest on that runs the CUDA
    version in any way, be it in an image with that library. On these hosts the entrypoint says what
    works, or what would. A refusal names the first condition: "unsatisfied condition: cuda>=13.0".
    """
    floor = int(cuda.floor)
    hosts = [f"cuda>={cuda.version}"]
    branches = [branch for branch in cuda.compat if branch < floor] if compat else []
    for branch in branches:
        hosts += [f"brand={b},driver>={branch},driver<{branch + 1}" for b in _BRANDS]
    return " ".join([*hosts, f"driver>={min([floor, *cuda.compat])}"])
