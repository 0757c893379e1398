"""FlashAttention-4 behind torch's attention: the setting, and rules that follow from measurements."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.attention.table import table
from tests.scripts import load

ROOT = Path(__file__).resolve().parents[2]
REPORTS = sorted((ROOT / "docs" / "benchmarks" / "attention").glob("*.json"))


@pytest.fixture(scope="module")
def package() -> ModuleType:
    """It imports no torch until it is told to put itself behind it."""
    return load("scripts/image/attention/__init__.py")


@pytest.fixture(scope="module")
def rules() -> ModuleType:
    return load("scripts/image/attention/rules.py")


def rows_of(gpu: str) -> list[dict[str, Any]]:
    """What was measured on a GPU, in the program's order."""
    [path] = [path for path in REPORTS if path.stem == gpu]
    found: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return found


def on(report: dict[str, Any]) -> tuple[tuple[int, int], str]:
    """The compute capability and cuDNN's version of a report; all are of Hopper GPUs."""
    return (9, 0), f"{report['cudnn'] // 10000}.{report['cudnn'] // 100 % 100}"


def rows() -> Iterator[Any]:
    for path in REPORTS:
        place = on(json.loads(path.read_text()))
        for number, row in enumerate(rows_of(path.stem)):
            yield pytest.param(place, row, id=f"{path.stem}-{number}")


@pytest.mark.parametrize(
    ("environ", "mode", "complains"),
    [
        ({}, "auto", False),
        ({"TORCH_IMAGE_ATTENTION": ""}, "auto", False),
        ({"TORCH_IMAGE_ATTENTION": "fa4"}, "fa4", False),
        ({"TORCH_IMAGE_ATTENTION": "Stock"}, "stock", False),
        ({"TORCH_IMAGE_ATTENTION": "auto"}, "auto", True),
        ({"TORCH_IMAGE_PROFILE": "off"}, "stock", False),
        ({"TORCH_IMAGE_PROFILE": "off", "TORCH_IMAGE_ATTENTION": "fa4"}, "fa4", False),
        ({"TORCH_IMAGE_PROFILE": "off", "TORCH_IMAGE_ATTENTION": "x"}, "stock", True),
        ({"TORCH_IMAGE_PROFILE": "on"}, "auto", False),
    ],
)
def test_the_setting(
    package: ModuleType, environ: dict[str, str], mode: str, complains: bool
) -> None:
    found, complaint = package.read_mode(environ)
    assert (found, bool(complaint)) == (mode, complains)
    if complains:
        assert complaint.startswith("TORCH_IMAGE_ATTENTION=")
        assert complaint.endswith(" is not fa4 or stock, and is ignored")


def test_without_torch_nothing_fails(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What torch calls at its import may not stop it."""
    monkeypatch.setitem(sys.modules, "torch_image_attention", None)
    monkeypatch.delenv("TORCH_IMAGE_ATTENTION", raising=False)
    monkeypatch.delenv("TORCH_IMAGE_PROFILE", raising=False)
    monkeypatch.delenv("TORCH_IMAGE_QUIET", raising=False)
    package.activate()
    said = capsys.readouterr().err
    assert said.startswith(
        "torch-images: attention is torch's own, because FlashAttention-4 cannot"
    )
    assert said.count("\n") == 1
    monkeypatch.setenv("TORCH_IMAGE_QUIET", "1")
    package.activate()
    monkeypatch.setenv("TORCH_IMAGE_ATTENTION", "stock")
    monkeypatch.delenv("TORCH_IMAGE_QUIET")
    package.activate()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("place", "row"), list(rows()))
def test_what_is_taken_was_measured_to_be_faster(
    rules: ModuleType, place: tuple[tuple[int, int], str], row: dict[str, Any]
) -> None:
    """Each shape that the rules give away, on each GPU that was measured."""
    asked = {
        "width": row["shape"][4], "shortest": row["shape"][3], "operations": row["operations"],
        "deterministic": False,
    }  # fmt: skip
    forward, backward = (rules.faster(step, place, **asked) for step in ("forward", "backward"))
    ratios = {name: pair["ratio"] for name, pair in row["pairs"].items()}
    if forward:
        assert ratios["call"] <= 1.0
        assert ratios["queued"] <= 1.0
    if backward:  # an older report has it together with the forward pass only
        assert ratios.get("backward", ratios["training"]) <= 1.0


def test_each_release_has_a_report_and_is_on_the_page(rules: ModuleType) -> None:
    reports = [json.loads(path.read_text()) for path in REPORTS]
    page = (ROOT / "docs" / "attention.md").read_text()
    [said] = [line for line in page.splitlines() if line.startswith("Measured releases: ")]
    for place, (_, release) in rules.MEASURED.items():
        assert (place, release) in {(on(r), r["torch"].partition("+")[0]) for r in reports}
        assert f"torch {release} (cuDNN {place[1]})" in said
    assert said.count("torch ") == len(rules.MEASURED)


def test_the_page_has_the_rules(rules: ModuleType) -> None:
    page = (ROOT / "docs" / "attention.md").read_text()
    [table] = {id(table): table for table, _ in rules.MEASURED.values()}.values()
    columns = [(s, m) for m in ("usual", "deterministic") for s in ("forward", "backward")]
    for width in (64, 96, 128):
        least = [table[column][width] for column in columns]
        cells = (f"{x.shortest}, {x.operations:.2g}".replace("e+", "e") for x in least)
        assert f"| {width} | {' | '.join(cells)} |\n" in page
    assert {w for by_width in table.values() for w in by_width} == {64, 96, 128}


# Batch, heads, queries, keys, width; whether the program is deterministic, and which passes are
# taken; the ratio measured on an H100 with torch 2.11.0. These shapes are in no report.
HELD_OUT = [
    ((1, 16, 16384, 16384, 128), True, ("forward", "backward"), 0.326),
    ((4, 32, 4096, 4096, 128), True, ("forward", "backward"), 0.580),
    ((4, 32, 2048, 2048, 64), True, ("forward", "backward"), 0.670),
    ((16, 16, 1280, 1280, 96), False, ("backward",), 0.826),
    ((1, 16, 65536, 1024, 64), False, ("backward",), 0.842),
    ((8, 32, 2048, 2048, 64), False, ("backward",), 0.873),
]


@pytest.mark.parametrize(("shape", "deterministic", "steps", "ratio"), HELD_OUT)
def test_what_pays_is_taken(
    rules: ModuleType, shape: tuple[int, ...], deterministic: bool, steps: tuple[str, ...],
    ratio: float,
) -> None:  # fmt: skip
    assert ratio < 0.9
    batch, heads, queries, keys, width = shape
    asked = {
        "width": width, "shortest": min(queries, keys), "deterministic": deterministic,
        "operations": rules.operations(batch * queries * keys, heads, width, causal=False),
    }  # fmt: skip
    taken = [s for s in ("forward", "backward") if rules.faster(s, ((9, 0), "9.19"), **asked)]
    assert tuple(taken) == steps


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_the_documents_shape_meets_its_goal(rules: ModuleType, path: Path) -> None:
    """At most 0.95 of torch's time."""
    report = json.loads(path.read_text())
    first = report["rows"][0]
    assert (first["shape"], first["causal"]) == ([16, 96, 96, 4096, 128], True)
    asked = {"width": 128, "shortest": 4096, "operations": 6.6e12, "deterministic": False}
    assert rules.faster("forward", on(report), **asked)
    assert first["pairs"]["call"]["ratio"] <= 0.95
    assert first["pairs"]["queued"]["ratio"] <= 0.95
    assert not report["failed"]


@pytest.mark.parametrize(
    ("step", "capability", "cudnn", "width", "shortest", "operations", "taken"),
    [
        ("forward", (9, 0), "9.19", 128, 4096, 1e11, True),
        ("forward", (9, 0), "9.19", 128, 4095, 1e11, False),
        ("forward", (9, 0), "9.19", 128, 4096, 0.99e11, False),
        ("forward", (9, 0), "9.19", 72, 4096, 1e12, False),
        ("forward", (9, 0), "9.19", 256, 4096, 1e12, False),
        ("forward", (10, 0), "9.19", 128, 4096, 1e12, False),
        ("forward", (9, 1), "9.19", 128, 4096, 1e12, False),
        ("forward", (9, 0), "9.99", 128, 4096, 1e12, False),
        ("forward", (9, 0), "0.0", 128, 4096, 1e12, False),
        ("backward", (9, 0), "9.19", 128, 1024, 3e11, True),
        ("backward", (9, 0), "9.19", 128, 1023, 3e11, False),
        ("backward", (9, 0), "9.19", 128, 1024, 2.99e11, False),
        ("backward", (9, 0), "9.19", 64, 1024, 1.3e11, True),
        ("backward", (9, 0), "9.19", 64, 1024, 1.29e11, False),
        ("backward", (9, 0), "9.19", 96, 1279, 1e12, False),
        ("backward", (9, 0), "9.19", 256, 4096, 1e12, False),
    ],
)
def test_where_the_rules_end(
    rules: ModuleType,
    step: str,
    capability: tuple[int, int],
    cudnn: str,
    width: int,
    shortest: int,
    operations: float,
    taken: bool,
) -> None:
    asked = {"width": width, "shortest": shortest, "operations": operations}
    assert rules.faster(step, (capability, cudnn), **asked, deterministic=False) is taken


def test_the_page_shows_the_reports() -> None:
    page = (REPORTS[0].parent / "README.md").read_text()
    for path in REPORTS:
        assert "\n".join(table(json.loads(path.read_text()))) in page


def test_the_release_that_is_called_is_the_one_that_is_locked(rules: ModuleType) -> None:
    """Its inner functions are called, so another release goes with a run on a GPU."""
    locks = [
        *(ROOT / "locks").glob("wheel-*-attention.txt"),
        *(ROOT / "locks").glob("wheel-*-pod.txt"),
    ]
    assert len(locks) >= 3
    for path in locks:
        [line] = [x for x in path.read_text().splitlines() if x.startswith("flash-attn-4==")]
        version = line.split()[0].partition("==")[2]
        assert f"FlashAttention-4 {version} " in " ".join((rules.__doc__ or "").split())
