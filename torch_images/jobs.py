"""How many compilers may run at once: from the builder's cores and memory, and what a file costs.

Pure but for `measure`, and free of imports outside the standard library: the plan on the host and
the build step inside the builder use this same file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

GB = 1_000_000_000

# Peak memory of one compiler in bytes. Heavy files are told by a glob on their path: a flash
# attention backward kernel takes about 4.5 GB, FBGEMM's own build budgets 5 GB for a job; 2 GB for
# any file, as often advised, is too low (pytorch/pytorch#124018).
ORDINARY = 2.5 * GB
HEAVY = 5 * GB
HEAVY_FILES = ("*/flash_attn/*", "*/flash-attention/*", "*/fbgemm/*", "*/mslk/*")
_RESERVE = 1 * GB  # what is no compiler: ninja, the compile cache, the linker's beginning


@dataclass(frozen=True, kw_only=True)
class Builder:
    """What compilers may use: processors, and memory in bytes."""

    cores: int
    memory: int


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """How to compile: `jobs` files at once, at most `heavy` heavy ones among them.

    Each heavy one compiles for `threads` architectures at once.
    """

    jobs: int
    heavy: int
    threads: int

    def fewer(self) -> Jobs:
        """What to go on with after running out of memory."""
        return Jobs(jobs=max(1, self.jobs // 2), heavy=1, threads=1)


def choose(builder: Builder, arches: int, *, jobs: int = 0) -> Jobs:
    """The jobs that a builder has memory for; `jobs`, if not 0, is what the user asks for."""
    usable = builder.memory - _RESERVE
    at_once = max(1, min(builder.cores, int(usable / 2 / HEAVY)))
    threads = min(arches, at_once)
    heavy = at_once // threads
    left = usable - heavy * threads * HEAVY
    most = max(1, min(builder.cores, int(left / ORDINARY) + heavy))
    chosen = jobs or most
    return Jobs(jobs=chosen, heavy=min(heavy, chosen), threads=threads)


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):  # on Linux only
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def measure(root: Path = Path("/"), cores: float | None = None) -> Builder:
    """What this process may use: the smallest of machine, affinity and every control group.

    Reads control groups of version 1 and 2, and MemAvailable; `root` is where /proc and /sys are.
    """
    cores = float(cores or processors())
    memory = _available(root / "proc/meminfo")
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            memory = min([memory, *_numbers(folder / name)])
    for folder in _groups(root, "cpu"):
        limit = _numbers(folder / "cpu.max")
        limit = limit or [
            *_numbers(folder / "cpu.cfs_quota_us"),
            *_numbers(folder / "cpu.cfs_period_us"),
        ]
        if len(limit) == 2 and limit[0] > 0:  # noqa: PLR2004  a quota and its period
            cores = min(cores, limit[0] / limit[1])
    return Builder(cores=max(1, math.ceil(cores)), memory=memory)


def _groups(root: Path, controller: str) -> Iterable[Path]:
    """The folders of this process's control group and of all above it that can be seen."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    below: Mapping[str, str] = {
        part: path
        for _, names, path in (line.split(":", 2) for line in lines)
        for part in names.split(",")
    }
    top = root / "sys/fs/cgroup"
    for mount, path in ((top, below.get("")), (top / controller, below.get(controller))):
        if path is None:
            continue
        # In a container of version 1 the path is the host's, and the mount is the group itself.
        folder = mount / path.lstrip("/")
        yield from [f for f in (folder, *folder.parents) if f.is_relative_to(mount)]


def _numbers(path: Path) -> list[int]:
    """The numbers in a file; none where it is missing or says "max"."""
    try:
        words = path.read_text().split()
    except OSError:
        return []
    return [int(word) for word in words if word.lstrip("-").isdigit()]


def _available(meminfo: Path) -> int:
    """MemAvailable in bytes."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024
