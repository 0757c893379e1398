"""Time, processors and disk of one piece of work."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

_PAUSE = 0.25  # seconds between two looks at the disk
_ENGINE = ("containerd\n", "dockerd\n")  # names of processes in /proc
_PROC = Path("/proc")


@dataclass(kw_only=True)
class Measured:
    """Seconds: by the clock, and of all processors together.

    `processors`: in use by any program of the machine, so that no container is missed. Of these,
    `engine` is what dockerd and containerd used, with their children that have ended, and `own`
    this process with its children. `stolen`: the hypervisor gave them to other machines. `idle`:
    nobody used them. `disk`: the most bytes in use beyond those before.
    """

    seconds: float = 0.0
    processors: float = 0.0
    engine: float = 0.0
    own: float = 0.0
    stolen: float = 0.0
    idle: float = 0.0
    disk: int = 0

    def figures(self, side: str) -> dict[str, float]:
        """By name: those that are compared with another side begin with it."""
        apart = {n: getattr(self, n) for n in ("engine", "own", "stolen", "idle")}
        compared = {"seconds": self.seconds, "processor seconds": self.processors}
        return {
            **{f"{side} {name}": value for name, value in compared.items()},
            **{f"{name}, {side} seconds": value for name, value in apart.items()},
        }


@contextlib.contextmanager
def measuring(folder: Path | None = None) -> Iterator[Measured]:
    """Measure what is done meanwhile; `folder` is on the disk to watch."""
    found, done = Measured(), threading.Event()
    disk = _used(folder) if folder else 0

    def watch() -> None:
        while folder and not done.wait(_PAUSE):
            found.disk = max(found.disk, _used(folder) - disk)

    watcher = threading.Thread(target=watch)
    before = _now()
    watcher.start()
    try:
        yield found
    finally:
        after = _now()
        for name in (field.name for field in fields(Measured) if field.name != "disk"):
            setattr(found, name, getattr(after, name) - getattr(before, name))
        done.set()
        watcher.join()


def of_machine(stat: str) -> tuple[int, int, int]:
    """Ticks of all processors in a /proc/stat: in use, stolen and idle, see proc_stat(5)."""
    user, nice, system, idle, waiting, irq, softirq, stolen = map(int, stat.split()[1:9])
    return user + nice + system + irq + softirq, stolen, idle + waiting


def ticks(stat: str) -> int:
    """Ticks of the clock in a /proc/PID/stat: the process's own and of children that it waited for.

    See proc_pid_stat(5): utime, stime, cutime and cstime.
    """
    _, _, after = stat.rpartition(")")  # the name before it may have spaces
    return sum(int(field) for field in after.split()[11:15])


def _now() -> Measured:
    engine = 0
    for process in _PROC.glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if (process / "comm").read_text() in _ENGINE:
                engine += ticks((process / "stat").read_text())
    busy, stolen, idle = of_machine((_PROC / "stat").read_text())
    second = os.sysconf("SC_CLK_TCK")
    return Measured(
        seconds=time.monotonic(),
        processors=busy / second,
        engine=engine / second,
        own=sum(os.times()[:4]),
        stolen=stolen / second,
        idle=idle / second,
    )


def _used(folder: Path) -> int:
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize
