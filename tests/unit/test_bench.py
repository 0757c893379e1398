"""Reports and comparisons of what torch-bench measured."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_images.bench.plots import plots
from torch_images.bench.results import Figure, Result, compare, compared, markdown, read
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
    """Half precisions share the better of both; what moves bytes is held against the copy."""
    attention = figure("sdpa/B=1/fp16", 1e-3, flops=3e11, ran="cudnn")
    norm = figure("layernorm/[1]/fp16", 1e-3, moved=2e9)
    transfer = figure("gpu to gpu/0 to 1, 1 MiB/bytes", 1e-3, moved=1e6)
    found = result(GEMM, BRAIN, COPY, attention, norm, transfer)
    assert found.ceilings == {"fp16": 6e14, "bf16": 6e14, "bytes": 4e12}
    assert found.share(attention) == pytest.approx(0.5)
    assert found.share(norm) == pytest.approx(0.5)
    assert found.share(transfer) is None
    assert result(attention).share(attention) is None


@pytest.mark.parametrize(
    ("case", "rate"),
    [
        (GEMM, "500.0 TFLOPS"),
        (COPY, "4,000 GB/s"),
        (figure("resnet-50/B=32/fp16", 1e-2, items=32, unit="img", flops=1), "3,200 img/s"),
        (figure("a/b/c", 1), ""),
    ],
)
def test_rates(case: Figure, rate: str) -> None:
    assert case.rate == rate


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


@given(st.floats(0.5, 2), st.integers(8, 60))
def test_comparing_the_other_way_round_turns_the_verdict(factor: float, count: int) -> None:
    a, b = (
        result(figure("a/b/c", f, samples=tuple(f * (1 + i / 500) for i in range(count))))
        for f in (1.0, factor)
    )
    [there], [back] = compare(a, b), compare(b, a)
    turned = {"slower": "faster", "faster": "slower", "equal": "equal"}
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.chance == pytest.approx(back.chance)
    if abs(abs(factor - 1) - 0.02) > 0.001:  # 2 % more is not 2 % less
        assert back.verdict == turned[there.verdict]


def test_figures_of_documents_have_no_samples_to_judge_by() -> None:
    found = compare(result(GEMM), result(figure(GEMM.key, 2e-3), name="doc"))
    assert [d.verdict for d in found] == ["no samples"]
    text = compared(result(GEMM), result(GEMM, name="doc"), found)
    assert "| gemm/8192x8192/fp16 | 1 | 2 | 2.000 | no samples |  |" in text
    assert text.endswith("Geometric mean of B / A over 1 cases: 2.000.")


def test_nothing_in_common() -> None:
    with pytest.raises(UsageError, match="x and y have no case in common"):
        compare(result(GEMM), result(COPY, name="y"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2}', '{"schema": 1, "cases": [1]}'])
def test_another_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert "x.json" in str(caught.value)


def test_a_missing_file_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "h200.json").write_text("")
    with pytest.raises(UsageError, match=r"h20.json does not exist; did you mean 'h200.json'"):
        read(tmp_path / "h20.json")


def test_a_report_sets_documents_beside_its_figures(tmp_path: Path) -> None:
    """In a column where they have the case, with what is wrong in them and why."""
    path = tmp_path / "doc.json"
    row = {"what": "peak", "stated": "660", "corrected": "537.7", "why": "the mask leaves half"}
    document = {
        "schema": 1,
        "source": "a talk",
        "machine": {"gpu": "NVIDIA Y", "driver": "550.1"},
        "cases": [
            {"key": GEMM.key, "median": 2.5e-3},
            {"key": "sdpa/of no result/fp16", "median": 1},
        ],
        "corrections": [row],
    }
    path.write_text(json.dumps(document))
    text = markdown(result(GEMM, BRAIN, figure("gemm/1x1/fp16", 5e-3)), [read(path)])
    lines = text.splitlines()
    assert "| Case | Precision | Median, ms | Spread | Rate | Share | Y, ms |" in lines
    assert "| 8192x8192 | fp16 | 1 | 2.0% | 500.0 TFLOPS | 83% | 2.5 |" in lines
    assert "| 1x1 | fp16 | 5 | 2.0% |  |  |  |" in lines
    # No column where the document has no case of the table.
    assert "| 8192x8192 | bf16 | 1 | 2.0% | 600.0 TFLOPS | 100% |" in lines
    assert "of no result" not in text
    assert "## What is wrong in the figures for NVIDIA Y" in lines
    assert "Source: a talk; driver 550.1." in lines
    assert "| peak | 660 | 537.7 | the mask leaves half |" in lines


def test_the_committed_report_is_of_the_committed_result(root: Path, tmp_path: Path) -> None:
    folder = root / "docs/benchmarks/h200"
    found = read(folder / "result.json")
    references = [read(p) for p in sorted((root / "benchmarks/reference").glob("*.json"))]
    assert markdown(found, references, plots(found, tmp_path)) == (folder / "README.md").read_text()
    for plot in tmp_path.iterdir():
        assert (folder / plot.name).is_file()


def test_a_report_says_which_kernel_ran() -> None:
    """In the tables of attention alone; a row that says nothing has an empty cell."""
    rows = [
        figure("sdpa/S=1, default/fp16", 2e-3, flops=5e11, ran="cudnn"),
        figure("sdpa/S=1, flash/fp16", 1e-3, flops=5e11),
    ]
    lines = markdown(result(GEMM, *rows)).splitlines()
    assert "| Case | Precision | Median, ms | Spread | Rate | Share | Ran |" in lines
    assert "| S=1, default | fp16 | 2 | 2.0% | 250.0 TFLOPS | 50% | cudnn |" in lines
    assert "| S=1, flash | fp16 | 1 | 2.0% | 500.0 TFLOPS | 100% |  |" in lines
    assert "| 8192x8192 | fp16 | 1 | 2.0% | 500.0 TFLOPS | 100% |" in lines


def test_a_report_says_what_was_not_measured() -> None:
    found = dataclasses.replace(result(GEMM), skipped=(("gpu to gpu/a/bytes", "needs 2 GPUs"),))
    assert "| gpu to gpu/a/bytes | needs 2 GPUs |" in markdown(found).splitlines()
    assert "Not measured" not in markdown(result(GEMM))


def test_plots_are_reproducible(root: Path, tmp_path: Path) -> None:
    found = read(root / "docs/benchmarks/h200/result.json")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        assert plots(found, tmp_path / name) == (
            "gemm.svg",
            "sdpa.svg",
            "compile.svg",
            "shares.svg",
        )
    for plot in (tmp_path / "one").iterdir():
        assert plot.read_bytes() == (tmp_path / "two" / plot.name).read_bytes()


def test_a_report_without_figures_for_plots(tmp_path: Path) -> None:
    found = result(figure("a/b/c", 1))
    assert plots(found, tmp_path) == ()
    assert list(tmp_path.iterdir()) == []
    text = markdown(found)
    assert "![" not in text
    assert "| b | c | 1000 | 2.0% |  |  |" in text.splitlines()
