"""scripts/bench without a GPU: its list, and what it writes, as `invoke` reads it.

A stand-in for torch counts time. That operations are counted right is checked inside images, where
the real torch counts them (tests/programs/test_bench.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bench_report import markdown
from bench_results import read

Bench = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def bench(root: Path) -> Bench:
    """Run the program, with a GPU or without one."""

    def run(*words: str, gpu: bool = False) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if name != "STAND_IN_GPU"}
        env |= {"PYTHONPATH": str(root / "tests/fixtures/bench"), "PYTHONDONTWRITEBYTECODE": "1"}
        env |= {"STAND_IN_GPU": "1"} if gpu else {}
        command = [sys.executable, str(root / "scripts/bench"), *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    return run


def test_bench_result_is_readable(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    done = bench("--select", "gemm/1*", "--output", str(path), gpu=True)
    assert (done.returncode, done.stdout) == (0, "")
    report = read(path)
    assert report.machine["gpu"] == "Stand-in"
    assert (report.machine["torch"], report.machine["capability"]) == ("2.11.0+cu130", "8.0")
    assert [figure.key for figure in report.figures] == [
        "gemm/1024x1024/fp16",
        "gemm/16384x16384/fp16",
    ]
    first, last = report.figures
    assert (first.flops, last.flops) == (2 * 1024**3, 2 * 16384**3)
    assert first.median == first.low == first.high == pytest.approx(1e-3)
    assert len(first.samples) == 200
    assert first.rate == "2.1 TFLOPS"
    # Inputs rotate through three times the cache of 50 MiB, each set has two times two MiB.
    kept = json.loads(path.read_text())
    assert [case["sets"] for case in kept["cases"]] == [38, 1]
    assert [report.inputs(figure) for figure in report.figures] == ["38 sets", "larger than L2"]
    # A product takes the GPU a millisecond; what the host takes is real time, of a stand-in.
    assert first.device == pytest.approx(1e-3)
    assert 0 < first.host < 1e-3
    assert not first.host_bound
    assert f"| 0.0% | 2.1 TFLOPS | 0% | {first.host * 1e3:.4g} / 1 | 38 sets |" in markdown(report)
    assert kept["schema"] == 2
    assert report.settings["TORCH_IMAGE_ATTENTION"] == "not set"
    assert report.settings["flash attention"] == "torch's own"
    assert not path.with_name("x.json.part").exists()


def test_bench_skips_with_a_reason(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    globs = {
        "precision/*/fp8": "needs compute capability 8.9",
        "gpu to gpu/0 to 1, 1 MiB/*": "needs 2 GPUs",
    }
    for glob, reason in globs.items():
        assert bench("--select", glob, "--output", str(path), gpu=True).returncode == 0
        report = read(path)
        assert (report.figures, report.failed) == ((), ())
        assert [why for _, why in report.skipped] == [reason]
