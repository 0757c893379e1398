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

    Space is "or", comma is "and". `note` is the compat library's, "" without one. Drivers that run
    the CUDA version by minor-version compatibility are allowed too: NVIDIA's own images refuse
    them, although their GPUs work.
    """
    branch = int(cuda.driver.partition(".")[0])
    floor = int(cuda.floor)
    hosts = [f"cuda>={cuda.version}"]
    if floor < branch:
        hosts.append(f"driver>={floor},driver<{branch}")
    for number in _branches(note):
        if number < floor:
            hosts += [f"brand={b},driver>={number},driver<{number + 1}" for b in _BRANDS]
    return " ".join(hosts)


def _branches(note: str) -> list[int]:
    """The driver branches in a note; [] for a malformed one."""
    try:
        return sorted(json.loads(note)["driver"])
    except (ValueError, KeyError, TypeError):
        return []
