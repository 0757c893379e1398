"""What a builder has: odd control groups, other systems, and few processors."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_images.jobs import Builder, measure

MEMINFO = "MemTotal: 25165824 kB\nOdd: 1: 2\nMemAvailable: 16777216 kB\n"


def machine(root: Path, **files: str) -> Path:
    """A root folder with files below control group "/kube:pod" and /proc/meminfo."""
    cgroup = "7:memory:/kube:pod\n3:cpu,cpuacct:/kube:pod\n"
    places = {"proc/meminfo": MEMINFO, "proc/self/cgroup": cgroup}
    for name, text in files.items():
        controller = "memory" if name.startswith("memory") else "cpu"
        places[f"sys/fs/cgroup/{controller}/kube:pod/{name.replace('__', '.')}"] = text
    for path, text in places.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_a_control_group_with_a_colon_in_its_name(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        memory__limit_in_bytes="3000000000\n",
        cpu__cfs_quota_us="150000\n",
        cpu__cfs_period_us="100000\n",
    )
    assert measure(root, cores=8) == Builder(cores=2, memory=3_000_000_000)


@pytest.mark.parametrize("name", ["Xen", "xX/XX"])
def test_a_control_group_of_any_name(tmp_path: Path, name: str) -> None:
    root = machine(tmp_path)
    (root / "proc/self/cgroup").write_text(f"0::/{name}\n")
    folder = root / "sys/fs/cgroup" / name
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text("5000000000\n")
    assert measure(root, cores=8).memory == 5_000_000_000


@pytest.mark.parametrize(
    ("quota", "cores"), [("-1", 8), ("0", 8), ("1", 1), ("100000", 1), ("100001", 2)]
)
def test_a_quota_of_processor_time(tmp_path: Path, quota: str, cores: int) -> None:
    """A part of a processor counts as one; what is not above 0 is no limit."""
    root = machine(tmp_path, cpu__cfs_quota_us=f"{quota}\n", cpu__cfs_period_us="100000\n")
    assert measure(root, cores=8).cores == cores
