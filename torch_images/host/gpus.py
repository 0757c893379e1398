"""GPUs for a container: the value of --gpus -> the requests that docker-py sends. Pure.

Docker's own `--gpus` needs NVIDIA's Container Toolkit beside the engine. The Container Device
Interface (CDI) needs a spec file that names the device, and an engine that reads it. The user picks
one; an engine that lacks it refuses to start the container, see diagnose.py.
"""

from __future__ import annotations

import re
from typing import Any

from torch_images.errors import UsageError, shown

# docker-py's options of a device request, as containers.create takes them.
Request = dict[str, Any]

_OWN = re.compile(r"all|(?P<count>[1-9][0-9]{0,3})|device=(?P<ids>[\w:-]+(?:,[\w:-]+)*)", re.ASCII)
# https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md allows a vendor or a
# class of one letter, but that crashes Docker 26.1.5 ("panic: slice bounds out of range").
_PART = r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]"
_CDI = re.compile(rf"{_PART}/{_PART}=[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def device_requests(words: str) -> list[Request]:
    """The requests for a choice of GPUs; [] for "".

    `words` are names of CDI devices, e.g. "nvidia.com/gpu=0,nvidia.com/gpu=1", or as for `docker
    run --gpus`: "all", a number, or "device=0,1". Raises UsageError for other text.
    """
    if not words:
        return []
    if chosen := _OWN.fullmatch(words):
        request: Request = {"count": int(chosen["count"] or -1)}
        if chosen["ids"]:
            request = {"device_ids": chosen["ids"].split(",")}
        return [{**request, "capabilities": [["gpu"]]}]
    names = words.split(",")
    if not all(map(_CDI.fullmatch, names)):
        raise UsageError(
            f"--gpus {shown(words)} is not a choice of GPUs",
            "give all, 2, or device=0,1; or names of CDI devices, such as nvidia.com/gpu=all",
        )
    return [{"driver": "cdi", "device_ids": list(dict.fromkeys(names))}]
