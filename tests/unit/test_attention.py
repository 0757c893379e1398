"""FlashAttention-4 behind torch's attention: the setting, and rules that follow from measurements."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.attention.thresholds import PAIRS, table
from tests.scripts import load
from torch_images.locks.wheels import read_wheels

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "docs" / "benchmarks" / "attention"
REPORTS = [*sorted(MEASURED.glob("grid/*.json")), MEASURED / "h200-torch2.14.1.json"]


@pytest.fixture(scope="module")
def package() -> ModuleType:
    """It imports no torch until it is told to put itself behind it."""
    return load("scripts/image/attention/__init__.py")


@pytest.fixture(scope="module")
def rules() -> ModuleType:
    return load("scripts/image/attention/rules.py")


def on(report: dict[str, Any]) -> tuple[tuple[int, int], str]:
    """The compute capability and cuDNN's version of a report; all are of Hopper GPUs."""
    return (9, 0), f"{report['cudnn'] // 10000}.{report['cudnn'] // 100 % 100}"


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
def test_read_mode(
    package: ModuleType, environ: dict[str, str], mode: str, complains: bool
) -> None:
    setting, complaint = package.read_mode(environ)
    assert (setting, bool(complaint)) == (mode, complains)
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
    stderr = capsys.readouterr().err
    assert stderr.startswith(
        "torch-images: attention is torch's own, because FlashAttention-4 cannot"
    )
    assert stderr.count("\n") == 1
    monkeypatch.setenv("TORCH_IMAGE_QUIET", "1")
    package.activate()
    monkeypatch.setenv("TORCH_IMAGE_ATTENTION", "stock")
    monkeypatch.delenv("TORCH_IMAGE_QUIET")
    package.activate()
    assert capsys.readouterr().err == ""


def measured_rows() -> Iterator[tuple[tuple[tuple[int, int], str], dict[str, Any]]]:
    """Each point that rules follow from, with where it was measured."""
    for path in REPORTS:
        report = json.loads(path.read_text())
        assert not report["failed"]
        for row in report["rows"]:
            yield on(report), row


def taken(
    rules: ModuleType, place: tuple[tuple[int, int], str], row: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    """The steps and modes in which the rules take a point of a grid."""
    _, _, _, *lengths, width = row["shape"]
    shape = rules.Shape(width, row["causal"], min(lengths), row["operations"])
    for step, mode in PAIRS:
        deterministic = mode == "deterministic"
        if deterministic == row.get("deterministic", False) and rules.faster(
            step, mode, place, shape
        ):
            yield step, mode


def test_faster_takes_nothing_that_was_measured_to_be_slower(rules: ModuleType) -> None:
    """By its median, or where its turns spread widely, by its lower quartile."""
    count = 0
    for place, row in measured_rows():
        for kind in taken(rules, place, row):
            for pair in (row["pairs"][name] for name in PAIRS[kind] if name in row["pairs"]):
                count += 1
                assert pair["ratio"] <= 1.0 or pair["low"] < 0.92, (place, kind, row)
    assert count >= 900


@pytest.mark.parametrize(
    ("step", "mode", "cudnn", "width", "causal", "shortest", "operations", "taken"),
    [
        ("forward", "usual", "9.19", 128, True, 4096, 5e11, True),
        ("forward", "usual", "9.19", 128, True, 4095, 5e11, False),
        ("forward", "usual", "9.19", 128, True, 4096, 4.99e11, False),
        ("forward", "usual", "9.19", 72, False, 4096, 1e12, False),
        ("forward", "usual", "0.0", 128, False, 4096, 1e12, False),
        ("backward", "usual", "9.19", 64, False, 1024, 2.7e11, True),
        ("backward", "usual", "9.19", 96, False, 1023, 1e12, False),
        ("forward", "captured", "9.19", 128, True, 4096, 5e11, True),
        ("forward", "captured", "9.24", 128, True, 4096, 1e11, True),
        ("forward", "usual", "9.24", 128, False, 4096, 1e11, False),
    ],
)
def test_faster_at_the_limits_of_the_rules(
    rules: ModuleType, step: str, mode: str, cudnn: str, width: int, causal: bool,
    shortest: int, operations: float, taken: bool,
) -> None:  # fmt: skip
    shape = rules.Shape(width, causal, shortest, operations)
    assert rules.faster(step, mode, ((9, 0), cudnn), shape) is taken
    assert not rules.faster(step, mode, ((10, 0), cudnn), shape)


def test_the_rules_of_the_newest_release_are_those_of_its_grids(rules: ModuleType) -> None:
    rows = [row for place, row in measured_rows() if place[1] == "9.24"]
    printed = "\n".join(table(rows))
    names = {name: getattr(rules, name) for name in dir(rules) if name.isupper()}
    assert eval(f"{{{printed}}}", names) == rules.CUDNN_9_24  # noqa: S307  what we printed


def test_the_release_that_is_called_is_the_one_that_is_locked(rules: ModuleType) -> None:
    """Its inner functions are called, so another release goes with a run on a GPU."""
    locks = [
        *(ROOT / "locks").glob("wheel-*-attention.json"),
        *(ROOT / "locks").glob("wheel-*-pod.json"),
    ]
    assert len(locks) >= 3
    for path in locks:
        if "cu128" in path.name:  # it has none for CUDA 12
            continue
        version = read_wheels(path).versions()["flash-attn-4"]
        assert f"FlashAttention-4 {version} " in " ".join((rules.__doc__ or "").split())
