"""The choice of GPUs for a container. Pure."""

from __future__ import annotations

import re
from typing import Any

from torch_images.errors import UsageError


def gpu_options(words: str) -> dict[str, Any]:
    """docker-py's container options for a choice of GPUs; {} for "".

    `words` are those of `docker run --gpus`: "all", a number, or "device=0,1". Raises UsageError
    for any others.
    """
    if not words:
        return {}
    request: dict[str, Any] = {"count": -1}
    if re.fullmatch(r"[1-9][0-9]{0,3}", words):
        request = {"count": int(words)}
    elif devices := re.fullmatch(r"device=([\w-]+(?:,[\w-]+)*)", words):
        request = {"device_ids": devices[1].split(",")}
    elif words != "all":
        raise UsageError(f"--gpus {words} is not a choice of GPUs", "give all, 2, or device=0,1")
    return {"device_requests": [{**request, "capabilities": [["gpu"]]}]}
