"""The GPU ledger: which images passed on which GPUs, as `verify --record` writes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invoke.program import Program

import tasks
from tests.unit.test_ledger import LINE, MACHINE, RUNTIME, made, spec
from torch_images.cli import verb
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import ConfigError
from torch_images.host.network import Network
from torch_images.host.workspace import Workspace
from torch_images.project import GPU_LEDGER
from torch_images.publish import gpu_ledger, ledger
from torch_images.publish.gpu_ledger import GpuRun
from torch_images.verify import identify, verify
from torch_images.verify.suites import Check

RUN = GpuRun(
    image=RUNTIME,
    inputs="a" * 64,
    digest="sha256:" + "b" * 64,
    date="2026-11-27",
    gpus="2 x NVIDIA H100 80GB HBM3",
    driver="580.159.04",
    passed="560",
    on_gpu="200",
    skipped="12",
)
names = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=90)


@given(name=names, other=names)
def test_what_is_added_is_read(
    tmp_path_factory: pytest.TempPathFactory, name: str, other: str
) -> None:
    """A second run on the same GPUs replaces the first, one on others is a line of its own."""
    root = tmp_path_factory.mktemp("ledger")
    first = replace(RUN, gpus=f"1 x {name}", date="2026-11-26")
    again = replace(first, date="2026-11-27", digest="sha256:" + "c" * 64)
    elsewhere = replace(first, gpus=f"2 x {other}", date="2026-11-28")
    for run in (first, again, elsewhere):
        gpu_ledger.add(root, run)
    assert gpu_ledger.read(root) == {RUNTIME: [elsewhere, again]}
    assert [path.name for path in (root / GPU_LEDGER).parent.iterdir()] == ["gpu-ledger.csv"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("image,inputs", "inputs,image"),
        (RUNTIME, "../../etc"),
        ("a" * 64, ""),
        ("2 x NVIDIA", "NVIDIA"),
        ("580.159.04", "$(id)"),
        (",560,", ",0,"),
        (",200,12", ",200"),
    ],
)
def test_a_line_that_nobody_wrote_is_refused(tmp_path: Path, old: str, new: str) -> None:
    gpu_ledger.add(tmp_path, RUN)
    path = tmp_path / GPU_LEDGER
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match=r"^docs/gpu-ledger\.csv:[12]: .*restore it from git$"):
        gpu_ledger.read(tmp_path)


def test_two_lines_of_an_image_on_the_same_gpus_are_refused(tmp_path: Path) -> None:
    gpu_ledger.add(tmp_path, RUN)
    path = tmp_path / GPU_LEDGER
    path.write_text(path.read_text() + path.read_text().splitlines()[1] + "\n")
    with pytest.raises(ConfigError, match=r"gpu-ledger\.csv:3: "):
        gpu_ledger.read(tmp_path)


def test_the_run_of_a_report(config: Config, root: Path) -> None:
    """It counts the checks that need a GPU; a report without GPUs or with a failure has no run."""
    image = made(config, root)
    assert image.report
    plan = image.result.plan
    on_gpu = Check(name="container/test_gpu_arch/test_x", outcome="passed", seconds=0)
    observed = {"gpus": "1 x NVIDIA T4", "driver": "570.1", "torch": "2.14.1"}
    report = replace(image.report, checks=(*image.report.checks, on_gpu), observed=observed)
    run = gpu_ledger.run_of(plan, report, "2026-11-27")
    assert run is not None
    assert (run.passed, run.on_gpu, run.skipped) == ("3", "1", "1")
    assert (run.gpus, run.driver, run.inputs) == ("1 x NVIDIA T4", "570.1", plan.identity)
    failed = replace(on_gpu, outcome="failed")
    unlocked = replace(plan, lock=replace(plan.lock, base=replace(plan.lock.base, unlocked=True)))
    assert gpu_ledger.run_of(plan, image.report, "2026-11-27") is None
    no_check = replace(image.report, observed=observed)
    assert gpu_ledger.run_of(plan, no_check, "2026-11-27") is None
    assert gpu_ledger.run_of(plan, replace(report, checks=(failed,)), "2026-11-27") is None
    assert gpu_ledger.run_of(unlocked, report, "2026-11-27") is None


def test_an_image_that_passed_on_a_gpu_is_tested(config: Config, root: Path) -> None:
    """Its state names the GPUs, as long as its inputs are the same."""
    image = made(config, root)
    line = ledger.proof(image, "2026-11-23", MACHINE)
    assert line is not None
    run = replace(RUN, inputs=line.inputs, gpus="1 x NVIDIA T4")
    other = replace(run, gpus="2 x NVIDIA L4", date="2026-11-28")

    def state(proofs: dict[str, ledger.Proof], *runs: GpuRun) -> tuple[bool, str]:
        one = spec(config)
        locks = root / "locks"
        found = ledger.states(config, [one], proofs, root, locks, runs={RUNTIME: runs})[one]
        assert found.built
        return found.tested, found.words

    both = "tested on 2026-11-23, and on NVIDIA T4 on 2026-11-27, 2 x NVIDIA L4 on 2026-11-28"
    assert state({RUNTIME: line}, run, other) == (True, both)
    stale = replace(line, inputs="0" * 64)
    alone = (True, "tested on NVIDIA T4 on 2026-11-27")
    assert state({}, run) == state({RUNTIME: stale}, run) == alone
    without = made(config, root, compat=False).result.plan.identity
    lacks = (True, f"{alone[1]}; forward compatibility untested")
    assert state({}, replace(run, inputs=without)) == lacks
    old = replace(run, inputs="0" * 64)
    assert state({}, old) == (False, "last tested on 2026-11-27; its inputs have changed since")
    assert state({RUNTIME: line}, old)[1] == "tested on 2026-11-23 without a GPU"


def test_an_image_of_ones_own_has_a_state_by_its_run(config: Config, root: Path) -> None:
    """It is in no catalogue and so never in the ledger, but a GPU may have run it."""
    own = choose(config, arch="9.0,12.0")
    assert LINE.image != own.id
    run = replace(RUN, image=own.id)
    found = ledger.states(config, [own], {}, root, root / "locks", runs={own.id: [run]})[own]
    assert found.words == "last tested on 2026-11-27; its inputs have changed since"


@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_the_verb_records_what_passed(
    config: Config,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    outcome: str,
) -> None:
    image = made(config, root)
    assert image.report
    checks = (
        *image.report.checks,
        Check(name="container/test_gpu_x/y", outcome=outcome, seconds=0),
    )
    observed = {"gpus": "1 x NVIDIA T4", "driver": "570.1"}
    report = replace(image.report, checks=checks, observed=observed)
    found: Any = ("an id", image.result.plan)
    monkeypatch.setattr(identify, "identify", lambda *_: found)
    monkeypatch.setattr(verify, "verify", lambda *_, **__: report)
    monkeypatch.setattr(verb, "engine", lambda: None)
    space = Workspace(root=tmp_path, cache=tmp_path, network=Network(), locks=root / "locks")
    monkeypatch.setattr(verb, "workspace", lambda: space)
    Program(namespace=tasks.namespace).run(
        ["inv", "verify", "x", "--gpus", "all", "--record"], exit=False
    )
    runs = gpu_ledger.read(tmp_path).get(RUNTIME, [])
    assert [run.gpus for run in runs] == ["1 x NVIDIA T4"] * (outcome == "passed")
    said = "recorded in docs/gpu-ledger.csv: 1 x NVIDIA T4, driver 570.1"
    assert (said in capsys.readouterr().err) == (outcome == "passed")


def test_there_is_nothing_to_record_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    Program(namespace=tasks.namespace).run(["inv", "verify", "x", "--record"], exit=False)
    assert "--record has an effect only with --gpus" in capsys.readouterr().err
