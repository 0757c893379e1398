"""scripts/image/build/list-overlaps: the wheels whose files stay where several have one path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.unit.conftest import ROOT

Files = dict[str, str]  # digests by path


def overlaps(folder: Path, new: dict[str, Files], old: dict[str, Files] | None = None) -> list[str]:
    """What the program prints, of wheels installed after the marker and before it."""
    marker, site = folder / "step", folder / "site"
    marker.touch()
    since = marker.stat().st_mtime_ns
    for seconds, wheels in ((-60, old or {}), (1, new)):
        for name, files in wheels.items():
            record = site / f"{name}.dist-info" / "RECORD"
            record.parent.mkdir(parents=True)
            rows = [f"{path},sha256={digest},1\n" for path, digest in files.items()]
            record.write_text("".join([*rows, f"{name}.dist-info/RECORD,,\n"]))
            os.utime(record, ns=(since, since + seconds * 10**9))
    program = ROOT / "scripts/image/build/list-overlaps"
    command = [sys.executable, str(program), str(marker), str(site)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()


def test_the_last_by_name_of_those_with_other_bytes(tmp_path: Path) -> None:
    wheels = {
        "torch_ext-1.0": {"build_backend.py": "b", "torch_ext.py": "c"},
        "flash-2": {"build_backend.py": "a", "../../bin/run": "d", "nvidia/__init__.py": "e"},
        "alone-1": {"alone.py": "a"},
        "graph-1": {"./x/../../../bin/run": "f"},
        "nvidia_x-1": {"nvidia/__init__.py": "e"},
    }
    assert overlaps(tmp_path, wheels) == ["graph", "torch_ext"]


def test_in_the_order_to_install_them_again(tmp_path: Path) -> None:
    """`b` is installed before `c`, which has another path with it."""
    wheels = {"c-1": {"y": "2", "z": "1"}, "b-1": {"x": "2", "y": "1"}, "a-1": {"x": "1", "z": "2"}}
    assert overlaps(tmp_path, wheels) == ["b", "c"]


def test_wheels_of_earlier_layers_are_beneath(tmp_path: Path) -> None:
    """Their paths are overwritten in any order of installing."""
    assert overlaps(tmp_path, {"a-1": {"x": "1"}}, {"b-1": {"x": "2"}, "c-1": {"x": "3"}}) == []
