"""Reports and comparisons of what torch-bench measured."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from bench_compare import compare, compared
from bench_plots import plots
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
    found = result(GEMM, BRAIN, COPY, attention, brain, norm, transfer)
    assert found.ceilings == {"fp16": 5e14, "bf16": 6e14, "bytes": 4e12}
    assert found.share(attention) == pytest.approx(0.6)
    assert found.share(brain) == pytest.approx(0.5)
    assert found.share(norm) == pytest.approx(0.5)
    assert found.share(transfer) is None
    assert result(attention).share(attention) is None
    assert result(GEMM, brain).share(brain) is None


def test_a_case_may_name_the_ceiling_of_another_precision() -> None:
    """As models of float32 do, whose convolutions use TF32."""
    single = figure("precision/8192x8192/fp32", 1e-2, flops=5e11)
    tf32 = figure("precision/8192x8192/tf32", 1e-3, flops=4e11)
    model = figure("resnet-50/B=1/fp32", 1e-3, flops=1e11, items=1, unit="img", ceiling="tf32")
    found = result(single, tf32, model)
    assert found.share(model) == pytest.approx(0.25)
    assert found.share(single) == pytest.approx(1)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, ""),
        ({"sets": 38, "input_bytes": 4}, "38 sets"),
        ({"sets": 38, "input_bytes": 4, "same": "weights"}, "38 sets, same weights"),
        ({"sets": 2, "input_bytes": 4}, "2 sets, which fit L2"),
        ({"sets": 1, "input_bytes": 101}, "larger than L2"),
        ({"sets": 1, "input_bytes": 100}, "same input"),
        ({"sets": 1}, "same input"),
    ],
)
def test_each_row_says_where_its_inputs_come_from(facts: dict[str, Any], words: str) -> None:
    case = figure("sdpa/B=1/fp16", 1e-3, **facts)
    found = dataclasses.replace(result(GEMM, case), machine={**MACHINE, "l2_bytes": 100})
    assert found.inputs(case) == words
    assert ("| Inputs |" in markdown(found)) == bool(words)


def test_a_row_is_host_bound_where_enqueueing_takes_longer() -> None:
    rows = [
        figure("linear/small/fp16", 5e-5, host=4.5e-5, device=1.2e-5),
        figure("linear/large/fp16", 9e-4, host=4.5e-5, device=9e-4),
        figure("linear/unknown/fp16", 1e-3),
    ]
    assert [row.host_bound for row in rows] == [True, False, False]
    text = markdown(result(*rows))
    lines = text.splitlines()
    head = "| Case | Precision | Median, ms | Spread | Rate | Share | Host / device, ms |"
    assert head in lines
    assert "| small | fp16 | 0.05 | 2.0% |  |  | 0.045 / 0.012, host-bound |" in lines
    assert "| large | fp16 | 0.9 | 2.0% |  |  | 0.045 / 0.9 |" in lines
    assert "| unknown | fp16 | 1 | 2.0% |  |  |  |" in lines
    assert "A row is host-bound where" in text
    assert "host-bound" not in markdown(result(GEMM))


def test_a_speed_up_is_over_the_baseline() -> None:
    """By items per second where there are any: two GPUs do twice the work in equal time."""
    eager = figure("cuda graphs/net, eager/bf16", 3e-3)
    graph = figure("cuda graphs/net, graph/bf16", 1e-3, baseline=eager.key)
    one = figure("gpus/1 GPU/bf16", 1e-2, items=8, unit="seq")
    two = figure("gpus/2 GPUs/bf16", 1e-2, items=16, unit="seq", baseline=one.key)
    lost = figure("gpus/3 GPUs/bf16", 1e-2, items=16, unit="seq", baseline="gpus/absent/bf16")
    found = result(eager, graph, one, two, lost)
    assert [found.speedup(f) for f in found.figures] == [
        None, pytest.approx(3), None, pytest.approx(2), None,
    ]  # fmt: skip
    lines = markdown(found).splitlines()
    assert "| net, eager | bf16 | 3 | 2.0% |  |  |  |" in lines
    assert "| net, graph | bf16 | 1 | 2.0% |  |  | 3.00 |" in lines


def sampled(factor: float) -> Result:
    samples = tuple(factor * (1 + 0.001 * (i % 7)) for i in range(50))
    return result(figure("a/b/c", samples[25], samples=samples))


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, "equal"), (1.01, "equal"), (1.1, "slower"), (0.9, "faster")]
)
def test_a_difference_is_certain_and_notable_or_none(factor: float, verdict: str) -> None:
    [found] = compare(sampled(1.0), sampled(factor))
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(factor)


def test_a_notable_difference_that_may_be_chance_is_none() -> None:
    few = [result(figure("a/b/c", m, samples=(m, m * 1.4, m * 0.7))) for m in (1.0, 1.2)]
    [found] = compare(*few)
    assert found.chance is not None
    assert found.chance > 0.01
    assert found.verdict == "equal"


def test_figures_of_documents_have_no_samples_to_judge_by() -> None:
    found = compare(result(GEMM), result(figure(GEMM.key, 2e-3), name="doc"))
    assert [d.verdict for d in found] == ["no samples"]
    text = compared(result(GEMM), result(GEMM, name="doc"), found)
    assert "| gemm/8192x8192/fp16 | 1 | 2 | 2.000 | no samples |  |" in text
    assert "B has no samples: a document gives one figure for each case." in text
    assert "Whether a difference is more than chance cannot be told" in text
    assert text.endswith("Geometric mean of B / A over 1 cases: 2.000.")


def test_nothing_in_common() -> None:
    with pytest.raises(UsageError, match="x and y have no case in common"):
        compare(result(GEMM), result(COPY, name="y"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 3}', '{"schema": 1, "cases": [1]}'])
def test_another_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert "x.json" in str(caught.value)


def test_the_first_format_is_read(tmp_path: Path) -> None:
    """It has no ceilings, and does not say whether a single set of inputs fits the cache."""
    path = tmp_path / "x.json"
    case = {"median": 1e-3, "samples": [1e-3], "quartiles": [1e-3, 1e-3], "flops": 1, "items": 1}
    cases = [
        {**case, "key": "resnet-50/B=1/fp32", "sets": 1},
        {**case, "key": "resnet-50/B=1/fp16", "sets": 1},
        {**case, "key": "gemm/1x1/fp32", "sets": 38, "items": 0},
    ]
    machine = {**MACHINE, "l2_bytes": 100}
    path.write_text(json.dumps({"schema": 1, "machine": machine, "cases": cases}))
    found = read(path)
    assert [f.ceiling for f in found.figures] == ["tf32", "", ""]
    assert [found.inputs(f) for f in found.figures] == ["", "", "38 sets"]
    assert "This result has format 1." in markdown(found)
    path.write_text(json.dumps({"schema": 2, "machine": machine, "cases": cases}))
    assert [f.ceiling for f in read(path).figures] == ["", "", ""]
    assert "has format 1" not in markdown(read(path))


def test_the_committed_report_is_of_the_committed_result(root: Path, tmp_path: Path) -> None:
    folder = root / "docs/benchmarks/h200"
    found = read(folder / "result.json")
    references = [read(p) for p in sorted((root / "benchmarks/reference").glob("*.json"))]
    assert markdown(found, references, plots(found, tmp_path)) == (folder / "README.md").read_text()
    for plot in tmp_path.iterdir():
        assert (folder / plot.name).is_file()
