from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_images.jobs import (
    GB,
    HEAVY,
    ORDINARY,
    Builder,
    Jobs,
    choose,
    measure,
)

MEMINFO = "MemTotal: 25165824 kB\nMemFree: 1 kB\nMemAvailable: 16777216 kB\n"


def machine(root: Path, **files: str) -> Path:
    """A root folder with /proc/meminfo and other files; "__" stands for "/", "_dot_" for "."."""
    for name, text in {"proc__meminfo": MEMINFO, **files}.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@given(
    st.integers(1, 512),
    st.integers(1, 4096),
    st.integers(1, 8),
    st.one_of(st.just(0), st.integers(1, 99)),
)
def test_choose_fits_the_memory(cores: int, gigabytes: int, arches: int, jobs: int) -> None:
    chosen = choose(Builder(cores=cores, memory=gigabytes * GB), arches, jobs=jobs)
    assert 1 <= chosen.heavy <= chosen.jobs
    assert 1 <= chosen.threads <= arches
    if jobs:
        assert chosen.jobs == jobs
        return
    assert chosen.jobs <= cores
    peak = chosen.heavy * chosen.threads * HEAVY + (chosen.jobs - chosen.heavy) * ORDINARY
    assert chosen.jobs == 1 or peak <= (gigabytes - 1) * GB  # what is no compiler needs some, too


@pytest.mark.parametrize(
    ("cores", "gigabytes", "arches", "expected"),
    [
        (8, 32, 1, Jobs(jobs=8, heavy=3, threads=1)),
        (16, 64, 6, Jobs(jobs=14, heavy=1, threads=6)),
        (4, 2, 6, Jobs(jobs=1, heavy=1, threads=1)),
        # One GB is kept for what is no compiler: 5 + 2.5 would fit into all of it.
        (4, 8, 1, Jobs(jobs=1, heavy=1, threads=1)),
        (4, 8.5, 1, Jobs(jobs=2, heavy=1, threads=1)),
        (4, 20, 2, Jobs(jobs=4, heavy=1, threads=1)),
        (4, 21, 2, Jobs(jobs=4, heavy=1, threads=2)),
    ],
)
def test_examples(cores: int, gigabytes: float, arches: int, expected: Jobs) -> None:
    assert choose(Builder(cores=cores, memory=int(gigabytes * GB)), arches) == expected


def test_version_2(tmp_path: Path) -> None:
    """The limit of a group above counts; a quota of 250% makes three jobs of use."""
    root = machine(
        tmp_path,
        proc__self__cgroup="0::/builds/one\n",
        sys__fs__cgroup__builds__memory_dot_max="8000000000\n",
        sys__fs__cgroup__builds__one__memory_dot_max="max\n",
        sys__fs__cgroup__builds__one__cpu_dot_max="250000 100000\n",
    )
    assert measure(root, cores=12) == Builder(cores=3, memory=8_000_000_000)


def test_version_1(tmp_path: Path) -> None:
    """Inside a container the path is the host's, and the mount is the group itself."""
    root = machine(
        tmp_path,
        proc__self__cgroup="4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n",
        sys__fs__cgroup__memory__memory_dot_limit_in_bytes="2000000000\n",
        sys__fs__cgroup__cpu__cpu_dot_cfs_quota_us="400000\n",
        sys__fs__cgroup__cpu__cpu_dot_cfs_period_us="100000\n",
    )
    assert measure(root, cores=12) == Builder(cores=4, memory=2_000_000_000)
