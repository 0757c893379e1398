"""The name of a driver -> its version, and whether it supports a GPU. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.version import Version

from torch_images.config.types import Config
from torch_images.errors import UsageError, shown
from torch_images.pick.gpus import Gpu

# 570.133, 570.133.20; also in v570.133.20, 570.133.20-0ubuntu1 and the lines of nvidia-smi.
_VERSION = r"(?<![0-9.])[1-9][0-9]{2}\.[0-9]{1,3}(?:\.[0-9]{1,2})?(?![0-9]|\.[0-9])"
# R570, 570-server, 570.xx, nvidia-driver-570-open.
_BRANCH = re.compile(r"(?:[a-z]+[- ])*r?([1-9][0-9]{2})(?:xx|\+)?(?:[-. ][a-z]+)*")
_ASK = "nvidia-smi --query-gpu=driver_version --format=csv,noheader"
_LONGEST = 200  # characters of a line of nvidia-smi


@dataclass(frozen=True, kw_only=True)
class Driver:
    """A host's driver: its version, and its branch if only that was given, else ""."""

    version: str
    branch: str = ""

    @property
    def assumed(self) -> str:
        """The assumption made because only a branch was given, else ""."""
        known = "" if self.version == f"{self.branch}.00" else f"{self.version}, "
        return f"assuming {known}the oldest {self.branch} driver" if self.branch else ""


def find_driver(config: Config, named: str) -> Driver:
    """The driver that a text names; for a branch, such as "R570", its oldest driver.

    If that is unknown, it is a version below all of the branch, "550.00". Raises UsageError for
    any other text, such as a CUDA version.
    """
    text = named.strip().lower()[:_LONGEST]
    versions = set(re.findall(_VERSION, text))
    branch = _BRANCH.fullmatch(text)
    if len(versions) == 1:
        [version] = versions
        known = (whole for cuda in config.cudas for whole in (cuda.driver, cuda.floor))
        # "580.65" is 580.65.06
        whole = next((each for each in known if each.startswith(f"{version}.")), version)
        driver = Driver(version=whole)
    elif branch:
        # The minimum driver of a CUDA version is the first of the branch released with it.
        first = [c.driver for c in config.cudas if c.driver.partition(".")[0] == branch[1]]
        oldest = min(first, key=Version, default=f"{branch[1]}.00")
        driver = Driver(version=oldest, branch=branch[1])
    else:
        raise UsageError(
            f"'{shown(named)}' is not a driver's version",
            f"give what this prints on the host, such as 570.133, or a branch, such as 570: {_ASK}",
        )
    return driver


def unsupported(gpu: Gpu, version: str) -> str:
    """Why a driver does not support a host's GPUs, so that no image runs; "" if it does."""
    for one in gpu.all:
        first, last = one.architecture.first_driver, one.architecture.last_driver
        words = f"driver {version} does not support {one.name}: the"
        if _branch(version) < int(first):
            why = "and a compat library cannot change that"
            return f"{words} first branch that does is {first}, {why}"
        if last and _branch(version) > int(last):
            return f"{words} last branch that does is {last}"
    return ""


def remedy(config: Config, gpu: Gpu) -> str:
    """The driver to install for GPUs: one that runs the default CUDA version."""
    [default] = [cuda for cuda in config.cudas if cuda.version == config.defaults.cuda]
    if last := next((a.last_driver for a in gpu.architectures if a.last_driver), ""):
        return f"install driver {last}"
    first = [architecture.first_driver for architecture in gpu.architectures]
    least = max(*first, default.driver.partition(".")[0])
    return f"install driver {least} or newer"


def _branch(version: str) -> int:
    return int(version.partition(".")[0])
