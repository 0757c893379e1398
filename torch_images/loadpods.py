"""The part of images.yaml that is about pods, see load.py."""

from __future__ import annotations

import re

from torch_images.config import Pods
from torch_images.yamlnode import Value

_API = re.compile(r"https?://[A-Za-z0-9.-]+(?::[0-9]+)?(?:/[A-Za-z0-9._~-]+)*")
_PORT = re.compile(r"[1-9][0-9]{0,4}/(?:http|tcp)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SMALLEST_VOLUME = 10  # GB, RunPod's own limit


def load_pods(value: Value) -> Pods:
    """The template of pods. Raises ConfigError."""
    fields = value.record(
        ("api", "readme-api", "variant", "ports", "environment", "room", "volume", "hosts"),
        ("args",),
    )
    volume = fields["volume"].record(("size", "path"))
    size = _gigabytes(volume["size"])
    if size < _SMALLEST_VOLUME:
        raise volume["size"].error(f"a volume of {size} GB is too small", "give 10 or more")
    for name, variable in fields["environment"].entries():
        if not _VARIABLE.fullmatch(name):
            raise variable.error(f"'{name}' is not the name of a variable")
    return Pods(
        api=fields["api"].matching(_API, "a URL"),
        readme_api=fields["readme-api"].matching(_API, "a URL"),
        variant=fields.text("variant"),
        args=fields.text("args"),
        ports=tuple(
            v.matching(_PORT, "a port like 22/tcp or 8888/http") for v in fields["ports"].items()
        ),
        environment=tuple((k, v.text()) for k, v in fields["environment"].entries()),
        room=_gigabytes(fields["room"]),
        volume=size,
        volume_path=volume["path"].matching(re.compile(r"(?:/[A-Za-z0-9._-]+)+"), "a path"),
        hosts=tuple(
            (cuda, v.matching(re.compile(r"[0-9]{3}"), "a driver branch like 580"))
            for cuda, v in fields["hosts"].entries()
        ),
    )


def _gigabytes(value: Value) -> int:
    return int(value.matching(re.compile(r"[1-9][0-9]{0,4}"), "a number of GB"))
