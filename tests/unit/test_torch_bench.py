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


@pytest.mark.parametrize("gpu", ["h100", "h200", "h200-image"])
def test_the_committed_results_have_the_cases_of_the_list(
    bench: Bench, root: Path, gpu: str
) -> None:
    """What was renamed or dropped cannot be compared with them any more."""
    kept = read(root / "docs/benchmarks" / gpu / "result.json")
    known = {figure.key for figure in kept.figures} | {key for key, _ in kept.skipped}
    listed = set(bench("--list").stdout.splitlines())
    assert known <= listed
    for path in (root / "benchmarks/reference").glob("*.json"):
        assert {figure.key for figure in read(path).figures} <= listed


def test_each_baseline_is_a_case_of_the_same_table(root: Path, tmp_path: Path) -> None:
    """A report finds no speed-up over what is not there."""
    code = "import cases; [print(c.key, c.baseline, sep='|') for c in cases.cases() if c.baseline]"
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    env |= {"PYTHONPATH": f"{root / 'tests/fixtures/bench'}:{root / 'scripts/bench'}"}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*(c.key for c in cases.cases()), sep='\\n')"],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    keys = [line for line in lines if "|" not in line]
    pairs = [line.split("|") for line in lines if "|" in line]
    assert pairs
    for key, baseline in pairs:
        assert baseline in keys
        assert key.split("/")[0] == baseline.split("/")[0]


def test_select_may_be_repeated(bench: Bench) -> None:
    chosen = bench("--list", "--select", "gemm/1024*", "--select", "attention memory/*")
    assert chosen.stdout.splitlines() == [
        "gemm/1024x1024/fp16",
        "attention memory/B=16, H=96, S=4096, D=128, causal/fp16",
    ]


def test_a_glob_that_matches_nothing(bench: Bench) -> None:
    done = bench("--select", "gem", gpu=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "torch-bench: no case matches 'gem'; --list names them\n"


def test_without_a_gpu(bench: Bench) -> None:
    done = bench()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "torch-bench: torch sees no CUDA device; cuda-doctor says why\n"


def test_a_result_is_what_its_reader_expects(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    done = bench("--select", "gemm/1*", "--output", str(path), gpu=True)
    assert (done.returncode, done.stdout) == (0, "")
    found = read(path)
    assert found.machine["gpu"] == "Stand-in"
    assert (found.machine["torch"], found.machine["capability"]) == ("2.11.0+cu130", "8.0")
    assert [figure.key for figure in found.figures] == [
        "gemm/1024x1024/fp16",
        "gemm/16384x16384/fp16",
    ]
    first, last = found.figures
    assert (first.flops, last.flops) == (2 * 1024**3, 2 * 16384**3)
    assert first.median == first.low == first.high == pytest.approx(1e-3)
    assert len(first.samples) == 200
    assert first.rate == "2.1 TFLOPS"
    # Inputs rotate through three times the cache of 50 MiB, each set has two times two MiB.
    kept = json.loads(path.read_text())
    assert [case["sets"] for case in kept["cases"]] == [38, 1]
    assert [found.inputs(figure) for figure in found.figures] == ["38 sets", "larger than L2"]
    # A product takes the GPU a millisecond; what the host takes is real time, of a stand-in.
    assert first.device == pytest.approx(1e-3)
    assert 0 < first.host < 1e-3
    assert not first.host_bound
    assert f"| 0.0% | 2.1 TFLOPS | 0% | {first.host * 1e3:.4g} / 1 | 38 sets |" in markdown(found)
    assert kept["schema"] == 2
    assert found.settings["TORCH_IMAGE_ATTENTION"] == "not set"
    assert found.settings["flash attention"] == "torch's own"
    assert not path.with_name("x.json.part").exists()


def test_what_cannot_run_here_is_skipped_with_its_reason(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    globs = {
        "precision/*/fp8": "needs compute capability 8.9",
        "gpu to gpu/0 to 1, 1 MiB/*": "needs 2 GPUs",
    }
    for glob, reason in globs.items():
        assert bench("--select", glob, "--output", str(path), gpu=True).returncode == 0
        found = read(path)
        assert (found.figures, found.failed) == ((), ())
        assert [why for _, why in found.skipped] == [reason]


def test_a_case_that_fails_does_not_stop_the_others(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    done = bench("--select", "*gemm/*1024*/fp16", "--output", str(path), gpu=True)
    assert done.returncode == 0
    found = read(path)
    assert [figure.key for figure in found.figures] == ["gemm/1024x1024/fp16"]
    assert found.failed == (("batched gemm/32x1024x1024/fp16", "CUDA out of memory."),)


def test_a_result_does_not_replace_a_link(bench: Bench, tmp_path: Path) -> None:
    """As /dev/stdout is one."""
    real, link = tmp_path / "x.json", tmp_path / "link"
    link.symlink_to(real)
    assert bench("--select", "gemm/1024*", "--output", str(link), gpu=True).returncode == 0
    assert link.is_symlink()
    assert [figure.key for figure in read(real).figures] == ["gemm/1024x1024/fp16"]


IN_CHILD = """
import json
from case import Ready, Skipped
from child import in_child, packed, unpacked
from measure import Timing

def said(*words, **more):
    try:
        return in_child(*words, **more)
    except (Skipped, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"

ready = Ready(
    timing=Timing((1.0, 2.0), host=0.5, device=0.25), figures={"a, s": 1.5}, notes={"b": "c"}
)
assert unpacked(json.loads(json.dumps(packed(ready)))) == ready
assert said("probe:ready", {}) == ready
print(said("probe:skip", {"A": "1", "B": None}, word="said"))
print(said("probe:absent", {}))
"""
PROBE = """
import os
from case import Ready, Skipped
from measure import Timing

def ready():
    return Ready(
        timing=Timing((1.0, 2.0), host=0.5, device=0.25), figures={"a, s": 1.5}, notes={"b": "c"}
    )

def skip(word):
    raise Skipped(f"{word} {os.environ.get('A')} {os.environ.get('B')}")
"""


def test_a_child_gives_back_what_it_found(root: Path, tmp_path: Path) -> None:
    """Also why it skips, in its own environment, and how it failed."""
    (tmp_path / "probe.py").write_text(PROBE)
    places = (root / "scripts/bench", root / "tests/fixtures/bench", tmp_path)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places)), "B": "parent"}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-c", IN_CHILD]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    skipped, failed = done.stdout.splitlines()
    assert skipped == "Skipped: said 1 None"
    assert failed.startswith("RuntimeError: in a child: AttributeError: ")
    assert failed.endswith("no attribute 'absent'")
