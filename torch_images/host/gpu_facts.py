"""What an engine and this machine have for GPUs in containers. It changes nothing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_images.host import cdi
from torch_images.host.cdi_files import FOLDERS, read_folders
from torch_images.host.engine import Engine
from torch_images.host.gpus import GpuWays

# Docker's own --gpus works where the engine found this program when it started: moby 26.1.5,
# daemon/nvidia_linux.go. The runtime "nvidia" comes with it, but need not be set up.
HOOK = "nvidia-container-runtime-hook"
_SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # not in all users' PATH
_LISTS_DEVICES = (28, 2)  # the first release that names CDI devices in `docker info`
# The proprietary and the open kernel module, as scripts/image/runtime/facts.py reads them in a
# container; images copy that file, and none of this package's folders.
_NVRM = re.compile(r"NVRM version:.*?\s(\d{3,}\.\d+(?:\.\d+)?)\s")
_VERSION = re.compile(r"\d{3,}\.\d+(?:\.\d+)?")
_FIELD = re.compile(r"^(Model|GPU UUID):[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class EngineGpus:
    """What an engine has for GPUs.

    `folders`: where it looks for specs; none where CDI is off. `files`: the spec files, where the
    engine is this machine's. `twice`: devices that two files define, and so cannot be used.
    """

    version: str
    local: bool
    runtime: bool
    ways: GpuWays
    folders: tuple[str, ...] = ()
    files: tuple[cdi.SpecFile, ...] = ()
    twice: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, as the kernel driver calls it."""

    name: str
    uuid: str


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What this machine has: the kernel driver's version, "" for none, and its GPUs.

    `wsl`: whether it is WSL2, where Windows has the driver and neither can be seen.
    """

    driver: str
    gpus: tuple[Gpu, ...]
    wsl: bool


def engine_gpus(engine: Engine) -> EngineGpus:
    """Ask an engine; read spec files where it is this machine's."""
    local = engine.local_root() is not None
    path = f"{os.environ.get('PATH', '')}:{_SYSTEM}"
    hook = local and shutil.which(HOOK, path=path) is not None
    return from_info(engine.info(), local=local, hook=hook)


def from_info(info: Mapping[str, Any], *, local: bool, hook: bool) -> EngineGpus:
    """What an answer of `docker info` says; with `local`, spec files are read, too.

    `hook`: whether NVIDIA's program for Docker's own --gpus is on this machine.
    """
    version = str(info.get("ServerVersion") or "")
    runtime = "nvidia" in (info.get("Runtimes") or {})
    folders = tuple(map(str, info.get("CDISpecDirs") or ()))
    told = tuple(
        str(device.get("ID"))
        for device in info.get("DiscoveredDevices") or ()
        if device.get("Source") == "cdi"
    )
    # Where CDI is off, the specs that are there say what turning it on would give.
    files = read_folders(folders or FOLDERS) if local else ()
    devices, twice = cdi.resolve(files)
    flat = tuple(file for group in files for file in group)
    known: tuple[str, ...] | None = devices
    if told or (folders and _number(version) >= _LISTS_DEVICES):
        known = told
    elif not local or any(not file.readable for file in flat):
        known = None
    problem = next((f"{file.path}: {file.problem}" for file in flat if file.problem), "")
    if not problem and twice:
        problem = f"{twice[0]} is defined twice"
    own = True if runtime or hook else False if local else None
    return EngineGpus(
        version=version,
        local=local,
        runtime=runtime,
        ways=GpuWays(own=own, cdi=bool(folders), devices=known, problem=problem),
        folders=folders,
        files=flat,
        twice=twice,
    )


def machine(root: Path = Path("/")) -> Machine:
    """What the kernel driver of this machine tells; `root` is the root of the file system."""
    found = _NVRM.search(_text(root / "proc/driver/nvidia/version") + "\n")
    bare = _text(root / "sys/module/nvidia/version").strip()
    gpus = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        fields = dict(_FIELD.findall(_text(path)))
        gpus.append(Gpu(name=fields.get("Model", "unknown"), uuid=fields.get("GPU UUID", "")))
    return Machine(
        driver=found[1] if found else bare if _VERSION.fullmatch(bare) else "",
        gpus=tuple(gpus),
        wsl=(root / "dev/dxg").exists(),
    )


def _number(version: str) -> tuple[int, ...]:
    """The first two numbers of an engine's version; () for one that has none."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", version)
    return (int(found[1]), int(found[2])) if found else ()


def _text(path: Path) -> str:
    """The text of a small file; "" if it cannot be read."""
    try:
        with path.open(errors="replace") as file:
            return file.read(100_000)
    except OSError:
        return ""
