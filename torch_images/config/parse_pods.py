"""The section `pods` of images.yaml."""

from __future__ import annotations

import re
import shlex

from torch_images.config.parse_fields import BRANCH, MOST_PORTS, folder, url
from torch_images.config.types import Pods
from torch_images.config.yaml_nodes import Value

_PORT = re.compile(r"([1-9][0-9]{0,4})/(?:http|tcp)")
_CUDA = re.compile(r"[1-9][0-9]?\.[0-9]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SMALLEST_VOLUME = 10  # GB, RunPod's own limit
_LARGEST = 99_999  # GB


def load_pods(value: Value) -> Pods:
    """What a template of pods says. Raises ConfigError."""
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
        api=url(fields["api"]),
        readme_api=url(fields["readme-api"]),
        variant=fields.text("variant"),
        args=_words(fields["args"]) if "args" in fields else "",
        ports=tuple(_port(v) for v in fields["ports"].scalars()),
        environment=tuple((k, v.text()) for k, v in fields["environment"].entries()),
        room=_gigabytes(fields["room"]),
        volume=size,
        volume_path=folder(volume["path"]),
        hosts=tuple(
            (_cuda(cuda, v), v.matching(BRANCH, "a driver branch like 580"))
            for cuda, v in fields["hosts"].filled().entries()
        ),
    )


def _words(value: Value) -> str:
    """Words as a shell reads them. Raises ConfigError for quotes that are not closed."""
    try:
        shlex.split(value.text())
    except ValueError as error:
        raise value.wrong(f"is not a row of words: {error}", "close the quotes") from None
    return value.text()


def _port(value: Value) -> str:
    what = "a port like 22/tcp or 8888/http"
    text = value.matching(_PORT, what)
    if int(text.partition("/")[0]) > MOST_PORTS:
        raise value.wrong(f"is not {what}", f"give one up to {MOST_PORTS}")
    return text


def _cuda(key: str, value: Value) -> str:
    if not _CUDA.fullmatch(key):
        raise value.error(f"'{key}' is not a CUDA version like 12.8 or 13.0")
    return key


def _gigabytes(value: Value) -> int:
    return value.number("a number of GB", 1, _LARGEST)
