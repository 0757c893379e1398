"""What `doctor` finds out: whether containers get GPUs, in which way, and what to do if not. Pure.

It speaks of this machine and its engine. `cuda-doctor` in a container cannot see the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch_images.errors import EngineError, UsageError, shown
from torch_images.host.connection import ABSENT
from torch_images.host.gpu_facts import EngineGpus, Machine
from torch_images.host.gpus import device_requests

OWN, CDI, NONE = "own", "cdi", "none"  # the ways that `--gpus all` can go
_RUN = {
    OWN: "docker run --rm --gpus all IMAGE cuda-doctor",
    CDI: "docker run --rm --device nvidia.com/gpu=all IMAGE cuda-doctor",
}
# This verb sets nothing up: what it would report could be gone afterwards.
_SET_UP = "start it, or run `./inv build`, which sets one up"
_DRIVER = (
    "no driver of NVIDIA's is loaded on this machine; install one, then the NVIDIA Container "
    "Toolkit: docs/runtime.md says what a host must have"
)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What this machine and its engine give to containers.

    `engine` is None where none can be used. `way` is that of `--gpus all`. `works`: whether
    containers get GPUs; None where that cannot be known from here. `advice` says what to do unless
    they do.
    """

    machine: Machine
    engine: EngineGpus | None
    way: str
    works: bool | None
    advice: str


def diagnose(machine: Machine, engine: EngineGpus | EngineError) -> Diagnosis:
    """Put together what a machine and its engine have; an error stands for no engine."""
    if isinstance(engine, EngineError):
        hint = _SET_UP if engine.hint == ABSENT else engine.hint
        advice = str(EngineError(engine.message, hint))
        return Diagnosis(machine=machine, engine=None, way=NONE, works=False, advice=advice)
    way, works, advice = NONE, True, ""
    try:
        [request] = device_requests("all", engine.ways)
        way = CDI if request.get("driver") == "cdi" else OWN
    except (EngineError, UsageError) as error:
        works, advice = False, str(error)
    present = bool(machine.driver or machine.gpus or machine.wsl)
    if engine.local and not present:
        works, advice = False, _DRIVER
    elif (way == OWN and engine.ways.own is None) or (way == CDI and engine.ways.devices is None):
        told = "the engine does not say what it has; try"
        return Diagnosis(
            machine=machine, engine=engine, way=way, works=None, advice=f"{told} {_RUN[way]}"
        )
    return Diagnosis(machine=machine, engine=engine, way=way, works=works, advice=advice)


def document(found: Diagnosis) -> dict[str, Any]:
    """A diagnosis as plain data, for --json."""
    engine = found.engine
    return {
        "works": found.works,
        "way": found.way,
        "advice": found.advice,
        "driver": found.machine.driver,
        "wsl": found.machine.wsl,
        "gpus": [asdict(gpu) for gpu in found.machine.gpus],
        "engine": engine
        and {
            "version": engine.version,
            "local": engine.local,
            "nvidia_runtime": engine.runtime,
            "own": engine.ways.own,
            "cdi": engine.ways.cdi,
            "folders": list(engine.folders),
            "specs": [asdict(file) for file in engine.files],
            "defined_twice": list(engine.twice),
            "devices": None if engine.ways.devices is None else list(engine.ways.devices),
        },
    }


def text(found: Diagnosis) -> str:
    """A diagnosis for people."""
    machine = found.machine
    driver = machine.driver or "none that can be seen"
    gpus = [f"{shown(gpu.name)} ({shown(gpu.uuid)})" for gpu in machine.gpus]
    lines = [
        ("driver", f"{driver}{', WSL2 has the driver of Windows' if machine.wsl else ''}"),
        *_each("GPU", gpus or ["none that can be seen"]),
        *(_engine(found.engine) if found.engine else [("engine", "none that can be used")]),
    ]
    ways = {OWN: "goes Docker's own way", CDI: "goes by CDI", NONE: "goes no way"}
    lines.append(("--gpus all", ways[found.way]))
    said = "Whether containers get GPUs cannot be known from here"
    if found.works is not None:
        said = f"Containers get {'GPUs' if found.works else 'no GPU'} here"
    said += f": {_RUN[found.way] if found.works else found.advice}"
    return "\n".join([*(f"{name:<11} {value}".rstrip() for name, value in lines), "", said])


def _engine(engine: EngineGpus) -> list[tuple[str, str]]:
    """The lines about an engine."""
    where = "" if engine.local else ", on another machine"
    cdi = f"on, looks in {', '.join(map(shown, engine.folders))}" if engine.ways.cdi else "off"
    lines = [
        ("engine", f"Docker {shown(engine.version)}{where}"),
        ("runtime", f"nvidia is {'there' if engine.runtime else 'not there'}"),
        ("CDI", cdi),
    ]
    specs = []
    for file in engine.files:
        held = f"{len(file.devices)} devices" if not file.problem else shown(file.problem)
        specs.append(f"{shown(file.path)}: {held}")
    if engine.local:
        lines += _each("specs", specs or ["none"])
    if engine.twice:
        lines += _each("twice", [", ".join(map(shown, engine.twice))])
    devices = engine.ways.devices
    names = "not known from here" if devices is None else ", ".join(map(shown, devices))
    return [*lines, ("devices", names or "none")]


def _each(name: str, values: Sequence[str]) -> list[tuple[str, str]]:
    """A line for each value; the first one has the name."""
    return [(name if not at else "", value) for at, value in enumerate(values)]
