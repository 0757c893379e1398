"""Reports and comparisons of what torch-bench measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_compare import compare
from bench_report import markdown
from bench_results import Figure, Result, read

from torch_images.errors import UsageError

MACHINE = {"gpu": "NVIDIA X", "torch": "2.11.0", "driver": "580.1"}


def figure(key: str, median: float, **facts: Any) -> Figure:
    return Figure(key=key, median=median, low=median * 0.99, high=median * 1.01, **facts)


def result(*figures: Figure, name: str = "x") -> Result:
    return Result(name=name, date="2026-01-01", machine=MACHINE, figures=figures)


GEMM = figure("gemm/8192x8192/fp16", 1e-3, flops=5e11)
BRAIN = figure("precision/8192x8192/bf16", 1e-3, flops=6e11)
COPY = figure("memory bandwidth/copy, 2 GiB/bytes", 1e-3, moved=4e9)


def test_shares_are_of_the_gpus_own_ceilings() -> None:
    """Each precision has its own; what moves bytes is held against the copy."""
    attention = figure("sdpa/B=1/fp16", 1e-3, flops=3e11, ran="cudnn")
    brain = figure("sdpa/B=1/bf16", 1e-3, flops=3e11, ran="cudnn")
    norm = figure("layernorm/[1]/fp16", 1e-3, moved=2e9)
    transfer = figure("gpu to gpu/0 to 1, 1 MiB/bytes", 1e-3, moved=1e6)
    report = result(GEMM, BRAIN, COPY, attention, brain, norm, transfer)
    assert report.ceilings == {"fp16": 5e14, "bf16": 6e14, "bytes": 4e12}
    assert report.share(attention) == pytest.approx(0.6)
    assert report.share(brain) == pytest.approx(0.5)
    assert report.share(norm) == pytest.approx(0.5)
    assert report.share(transfer) is None
    assert result(attention).share(attention) is None
    assert result(GEMM, brain).share(brain) is None


def test_speedup_over_the_baseline() -> None:
    """By items per second where there are any: two GPUs do twice the work in equal time."""
    eager = figure("cuda graphs/net, eager/bf16", 3e-3)
    graph = figure("cuda graphs/net, graph/bf16", 1e-3, baseline=eager.key)
    one = figure("gpus/1 GPU/bf16", 1e-2, items=8, unit="seq")
    two = figure("gpus/2 GPUs/bf16", 1e-2, items=16, unit="seq", baseline=one.key)
    lost = figure("gpus/3 GPUs/bf16", 1e-2, items=16, unit="seq", baseline="gpus/absent/bf16")
    report = result(eager, graph, one, two, lost)
    assert [report.speedup(f) for f in report.figures] == [
        None, pytest.approx(3), None, pytest.approx(2), None,
    ]  # fmt: skip
    lines = markdown(report).splitlines()
    assert "| net, eager | bf16 | 3 | 2.0% |  |  |  |" in lines
    assert "| net, graph | bf16 | 1 | 2.0% |  |  | 3.00 |" in lines


def sampled(factor: float) -> Result:
    samples = tuple(factor * (1 + 0.001 * (i % 7)) for i in range(50))
    return result(figure("a/b/c", samples[25], samples=samples))


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, "equal"), (1.01, "equal"), (1.1, "slower"), (0.9, "faster")]
)
def test_compare_needs_a_certain_and_notable_difference(factor: float, verdict: str) -> None:
    [comparison] = compare(sampled(1.0), sampled(factor))
    assert comparison.verdict == verdict
    assert comparison.ratio == pytest.approx(factor)


CASE = {"key": "a/b/fp32", "median": 1.0, "samples": [1.0], "quartiles": [1, 1], "sets": 2}


@pytest.mark.parametrize(
    "change",
    [
        *({"machine": None}, {"machine": {"gpu": "x"}}, {"cases": ["x"]}, {"cases": 3}),
        *({"settings": None}, {"schema": []}, {"cases": [CASE | {"median": "x"}]}),
    ],
)
def test_read_refuses_a_result_of_wrong_types(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"schema": 2, "machine": MACHINE, "cases": [CASE]}))
    assert read(path).figures[0].median == 1
    path.write_text(json.dumps({"schema": 2, "machine": MACHINE, "cases": [CASE]} | change))
    with pytest.raises(UsageError) as caught:
        read(path)
    assert "schema" in str(caught.value) or "./inv bench" in str(caught.value)
