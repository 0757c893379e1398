"""NVIDIA_REQUIRE_CUDA: the hosts that an image can start on. Pure."""

from __future__ import annotations

import json

from torch_images.config.types import Cuda

COMPAT_FOLDER = (
    "/opt/cuda-compat"  # in images; NVIDIA's container toolkit acts on /usr/local/cuda/compat
)
# The brands of NVIDIA's official value, in its order and in the container toolkit's syntax, read in
# nvidia/cuda:13.0.2 and 12.8.1. scripts/image/runtime/decision.py has the brands by number; a unit
# test keeps both in step.
_BRANDS = (
    *("unknown", "grid", "tesla", "nvidia", "quadro", "quadrortx", "nvidiartx"),
    *("vapps", "vpc", "vcs", "vws", "cloudgaming"),
)


def require_cuda(cuda: Cuda, note: str) -> str:
    """The hosts that an image can start on, in the container toolkit's syntax.

    Space is "or", comma is "and". `note` is the compat library's, "" without one. The conditions
    are NVIDIA's own, and a last one: any driver from the oldest on that runs the CUDA version in
    any way, be it with a compat library. On these hosts the start says what works, or what would.
    The toolkit's refusal names the first condition alone: "unsatisfied condition: cuda>=13.0".
    """
    floor = int(cuda.floor)
    hosts = [f"cuda>={cuda.version}"]
    for number in _branches(note):
        if number < floor:
            hosts += [f"brand={b},driver>={number},driver<{number + 1}" for b in _BRANDS]
    return " ".join([*hosts, f"driver>={min([floor, *cuda.compat])}"])


def _branches(note: str) -> list[int]:
    """The driver branches in a note; [] for a malformed one."""
    try:
        return sorted(json.loads(note)["driver"])
    except (ValueError, KeyError, TypeError):
        return []
