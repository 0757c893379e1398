"""GPUs for a container: what the user said and what the engine has -> requests. Pure.

There are two ways. Docker's own `--gpus` needs a program of NVIDIA's Container Toolkit beside the
engine. The Container Device Interface (CDI) needs spec files, and an engine that reads them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch_images.errors import EngineError, UsageError, shown, suggest
from torch_images.host.cdi import KIND, is_qualified

# docker-py's options of a device request, as containers.create takes them.
Request = dict[str, Any]

GENERATE = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
INSTALL = (
    "install the NVIDIA Container Toolkit and configure the engine for it: "
    "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/"
)
TURN_ON = (
    'add "features": {"cdi": true} to the daemon.json of the engine, Docker 25 or newer, and '
    "restart it"
)
_OWN = re.compile(r"all|(?P<count>[1-9][0-9]{0,3})|device=(?P<ids>[\w:-]+(?:,[\w:-]+)*)", re.ASCII)
# NVIDIA's names of a GPU, or of a part of one, by number: 0, gpu0, 0:1, mig0:1.
_NUMBERED = re.compile(r"(?:gpu|mig)?([0-9]{1,4})(?::([0-9]{1,4}))?")


@dataclass(frozen=True, kw_only=True)
class GpuWays:
    """What an engine has to give GPUs to containers.

    `own`: whether Docker's own `--gpus` works; None where that cannot be known.
    `cdi`: whether CDI is on.
    `devices`: the qualified names of all CDI devices; None where they cannot be known. Where CDI is
    off, those that it would have.
    `problem`: why a spec file is of no use, where one is.
    """

    own: bool | None
    cdi: bool
    devices: tuple[str, ...] | None
    problem: str = ""

    @property
    def gpus(self) -> tuple[str, ...]:
        """The devices that are NVIDIA's GPUs, as far as they are known."""
        return tuple(name for name in self.devices or () if name.startswith(f"{KIND}="))


def check_words(words: str) -> None:
    """Raise UsageError for words that are no choice of GPUs, in any engine.

    They are those of `docker run --gpus`: "all", a number, or "device=0,1"; or names of CDI devices
    such as "nvidia.com/gpu=0,nvidia.com/gpu=1". "" is no GPU at all.
    """
    if words and not _OWN.fullmatch(words) and not all(map(is_qualified, words.split(","))):
        raise UsageError(
            f"--gpus {shown(words)} is not a choice of GPUs",
            f"give all, 2, or device=0,1; or names of CDI devices, such as {KIND}=0",
        )


def device_requests(words: str, ways: GpuWays) -> list[Request]:
    """The requests for a choice of GPUs, in the way that the engine has; none for "".

    Docker's own way goes first where both work. Raises UsageError for words that are no choice, and
    for devices that no spec has; EngineError where the engine has no way.
    """
    check_words(words)
    if not words:
        return []
    chosen = _OWN.fullmatch(words)
    if not chosen:
        return [_by_cdi(tuple(dict.fromkeys(words.split(","))), ways)]
    if ways.own or not (ways.cdi and (ways.gpus or ways.devices is None)):
        if ways.own is False:
            raise no_way(ways)
        return [{**_own(chosen), "capabilities": [["gpu"]]}]
    names: tuple[str, ...] = (f"{KIND}=all",)
    if chosen["ids"]:
        names = tuple(f"{KIND}={one}" for one in chosen["ids"].split(","))
    elif chosen["count"]:
        names = _first(int(chosen["count"]), ways)
    elif ways.gpus and not set(names) & set(ways.gpus):
        names = ways.gpus  # a spec that was written by hand may have no name for all
    return [_by_cdi(names, ways)]


def no_way(ways: GpuWays) -> EngineError:
    """Why an engine gives no GPUs, and what to do about it."""
    if ways.cdi:
        problem = f" ({shown(ways.problem)})" if ways.problem else ""
        return EngineError(
            f"CDI is on in the engine, but no spec is for {KIND}{problem}",
            f"run {GENERATE}, with the NVIDIA Container Toolkit installed",
        )
    if ways.gpus:
        return EngineError(
            f"CDI is off in the engine, although specs for {KIND} are there", TURN_ON
        )
    return EngineError("the engine cannot give GPUs to containers", INSTALL)


def _own(chosen: re.Match[str]) -> Request:
    """Docker's own request, without its capabilities."""
    if chosen["ids"]:
        return {"device_ids": chosen["ids"].split(",")}
    return {"count": int(chosen["count"] or -1)}


def _by_cdi(names: tuple[str, ...], ways: GpuWays) -> Request:
    """The request for these CDI devices. Raises EngineError, and UsageError for unknown ones."""
    if not ways.cdi:
        raise no_way(ways) if ways.gpus else EngineError("CDI is off in the engine", TURN_ON)
    for name in names:
        if ways.devices is not None and name not in ways.devices:
            if not ways.devices:
                raise no_way(ways)
            raise UsageError(f"no CDI spec has {shown(name)}", suggest(name, ways.devices))
    return {"driver": "cdi", "device_ids": list(names)}


def _first(count: int, ways: GpuWays) -> tuple[str, ...]:
    """The first GPUs by number. Raises UsageError where there are fewer."""
    if ways.devices is None:
        return tuple(f"{KIND}={index}" for index in range(count))
    names = by_number(ways.gpus)
    if len(names) < count:
        raise UsageError(f"--gpus {count} is more than the CDI specs have", suggest("", ways.gpus))
    return names[:count]


def by_number(gpus: Sequence[str]) -> tuple[str, ...]:
    """The GPUs that have a number, in its order; where none has, all but the sum of all.

    A spec can name each GPU twice, by number and by UUID.
    """
    numbered = {}
    for name in gpus:
        if found := _NUMBERED.fullmatch(name.partition("=")[2]):
            numbered[name] = (int(found[1]), int(found[2] or -1))
    if numbered:
        return tuple(sorted(numbered, key=numbered.__getitem__))
    return tuple(name for name in gpus if name != f"{KIND}=all")
