"""The ledger: its file, which lines prove an image, and what `verify --record` adds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.conftest import LOCKS, ROOT, T128, T130
from tests.unit.fakes import workspace_of
from torch_images.build.plan import ImagePlan, lock_image, plan_image
from torch_images.cli import program, verb, verify_tasks
from torch_images.config.choose import choose, choose_id
from torch_images.config.image import ImageSpec
from torch_images.config.types import Config
from torch_images.errors import VerifyError
from torch_images.jobs import Builder
from torch_images.locks.sources import SourceLock
from torch_images.project import LEDGER
from torch_images.verify import ledger
from torch_images.verify.ledger import Line, State
from torch_images.verify.suites import Check
from torch_images.verify.verify import VerifyReport, line_of

MACHINE = Builder(cores=2, memory=25_000_000_000)
RUNTIME = f"cu130-sm120-torch{T130}-trixie-runtime"
OLDER = f"cu128-sm120-torch{T128}-bookworm-runtime"
LINE = Line(
    image=RUNTIME,
    inputs="a" * 64,
    digest="sha256:" + "c" * 64,
    commit="e" * 40,
    date="2026-11-23",
    checks=205,
    skipped=3,
    machine="2 processors, 25 GB",
)
ON_H100 = replace(
    LINE,
    date="2026-11-27",
    checks=560,
    on_gpu=200,
    gpus="2 x NVIDIA H100 80GB HBM3",
    driver="580.159.04",
)
ON_T4 = {"gpus": "1 x NVIDIA T4", "driver": "570.1"}


def spec(config: Config, name: str = RUNTIME) -> ImageSpec:
    return choose_id(config, name)


def planned(config: Config, root: Path, name: str = RUNTIME) -> ImagePlan:
    return plan_image(config, lock_image(config, spec(config, name), root / "locks"), root)


def report(*more: Check, **observed: str) -> VerifyReport:
    """A report of three checks, passed, passed and skipped, and more."""
    outcomes = ("passed", "passed", "skipped")
    checks = tuple(Check(name=f"c{i}", outcome=o, seconds=0) for i, o in enumerate(outcomes))
    return VerifyReport(
        digest="sha256:" + "d" * 64,
        id="x",
        suite="e" * 64,
        checks=(*checks, *more),
        observed=observed,
        seconds=0,
        programs="7" * 16,
    )


def on_gpu(outcome: str = "passed") -> Check:
    return Check(name="container/test_gpu_arch/test_x", outcome=outcome, seconds=0)


def passed(plan: ImagePlan, done: VerifyReport) -> Line | None:
    return line_of(plan, done, commit="f" * 40, date="2026-11-23", machine=MACHINE)


def state(config: Config, root: Path, *lines: Line, name: str = RUNTIME) -> State:
    one = spec(config, name)
    return ledger.reader(config, lines, root, root / "locks")(one)


texts = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=300)


@given(machine=texts, missing=texts)
def test_write_and_read(tmp_path_factory: Any, machine: str, missing: str) -> None:
    root = tmp_path_factory.mktemp("ledger")
    older = Line(image=OLDER, date="2026-11-23", machine=machine, missing=missing)
    ledger.write(root, [ON_H100, LINE, older])
    assert ledger.read(root) == (older, LINE, ON_H100)  # sorted
    assert [path.name for path in (root / LEDGER).parent.iterdir()] == ["ledger.csv"]


def test_add_replaces_the_line_of_the_same_image_and_gpus(tmp_path: Path) -> None:
    assert ledger.read(tmp_path) == ()
    again = replace(ON_H100, date="2026-11-28")
    one = replace(ON_H100, gpus="1 x NVIDIA H100 80GB HBM3")
    for line in (LINE, ON_H100, one, again):
        ledger.add(tmp_path, line)
    assert ledger.read(tmp_path) == (LINE, one, again)


OTHER = "sha256:" + "b" * 64


@pytest.mark.parametrize("old", [LINE, ON_H100])
def test_a_second_digest_of_equal_inputs_is_refused(tmp_path: Path, old: Line) -> None:
    """In place of the old line, or beside it."""
    ledger.write(tmp_path, [old])
    with pytest.raises(VerifyError, match=f"it is {OTHER}, but .*{LINE.digest}"):
        ledger.add(tmp_path, replace(LINE, digest=OTHER))
    assert ledger.read(tmp_path) == (old,)


def test_other_inputs_and_missing_images_have_other_digests(tmp_path: Path) -> None:
    missing = replace(LINE, digest="", missing="no wheel")
    changed = replace(ON_H100, inputs="b" * 64, digest=OTHER)
    for line in (missing, LINE, changed, missing):
        ledger.add(tmp_path, line)
    assert ledger.read(tmp_path) == (missing, changed)


def test_equal_inputs_have_one_digest_in_the_projects_ledger(root: Path) -> None:
    digests: dict[str, set[str]] = {}
    for line in ledger.read(root):
        digests.setdefault(line.inputs, set()).add(line.digest or line.missing)
    assert {inputs: found for inputs, found in digests.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        (("", "a" * 40), "a" * 40),
        ((f"{'a' * 40}-dirty", "b" * 40), "b" * 40),
        ((f"{'a' * 40}-dirty", ""), f"{'a' * 40}-dirty"),
        (("", ""), ""),
    ],
)
def test_commit_of_inputs(tmp_path: Path, commits: tuple[str, str], expected: str) -> None:
    """The first line is of another image, and has another commit."""
    other = replace(LINE, image=OLDER, inputs="b" * 64, commit="c" * 40)
    lines = [replace(one, commit=c) for one, c in zip((LINE, ON_H100), commits, strict=True)]
    ledger.write(tmp_path, [other, *lines])
    assert ledger.commit_of(tmp_path, f"sha256:{LINE.inputs}") == expected


def test_passed_without_gpus(config: Config, root: Path) -> None:
    plan = planned(config, root)
    line = passed(plan, report())
    assert line == Line(
        image=RUNTIME,
        inputs=plan.identity,
        digest="sha256:" + "d" * 64,
        commit="f" * 40,
        date="2026-11-23",
        checks=2,
        skipped=1,
        machine="2 processors, 25 GB",
        programs="7" * 16,
    )
    emulated = passed(plan, replace(report(), emulated=True))
    assert emulated == replace(line, machine=f"{line.machine}{ledger.EMULATED}")


def test_passed_with_gpus(config: Config, root: Path) -> None:
    line = passed(planned(config, root), report(on_gpu(), **ON_T4))
    assert line
    assert (line.checks, line.on_gpu, line.skipped) == (3, 1, 1)
    assert (line.gpus, line.driver) == ("1 x NVIDIA T4", "570.1")


def test_passed_is_none_for_reports_that_prove_nothing(config: Config, root: Path) -> None:
    """A failure, no check on the GPU, a tree of a user, or layers that inputs do not tell."""
    plan = planned(config, root)
    own_tree = SourceLock(name="source-x", date=plan.lock.date, request=(), unlocked=True)
    unlocked = replace(plan, lock=replace(plan.lock, sources=own_tree))
    assert unlocked.lock.unlocked
    assert passed(plan, report(on_gpu("failed"))) is None
    assert passed(plan, report(**ON_T4)) is None
    assert passed(unlocked, report()) is None
    assert passed(replace(plan, small=True), report()) is None


def test_state_is_tested_for_equal_inputs_only(config: Config, root: Path) -> None:
    inputs = planned(config, root).identity
    line, run = replace(LINE, inputs=inputs), replace(ON_H100, inputs=inputs)
    words = "tested on 2026-11-23 without a GPU"
    assert state(config, root, line) == State(tested=True, words=words, built=True, inputs=inputs)
    assert state(config, root, line, ON_H100).words == words
    both = state(config, root, run, line)
    assert (both.tested, both.gpus) == (True, ("2 x NVIDIA H100 80GB HBM3",))
    alone = state(config, root, run, LINE)
    assert (alone.tested, alone.words) == (
        True,
        "tested on 2 x NVIDIA H100 80GB HBM3, driver 580.159.04",
    )
    old = state(config, root, LINE, ON_H100)
    assert (old.tested, old.built, old.inputs) == (False, True, inputs)
    assert not state(config, root, replace(line, missing="no answer")).tested
    emulated = replace(line, machine=f"x{ledger.EMULATED}")
    assert state(config, root, emulated).words == f"{words}, in an emulator"


def test_state_says_why_an_image_is_not_tested(config: Config, root: Path, tmp_path: Path) -> None:
    plan = planned(config, root)
    line = Line(image=RUNTIME, inputs=plan.identity, date="2026-11-23", missing="no answer")
    assert state(config, root).words == "not tested: never built"
    problem = "not tested: could not be built on 2026-11-23: no answer"
    assert state(config, root, line).words == problem
    other = choose(config, arch="9.0,12.0")
    unlisted = ledger.reader(config, [LINE], root, root / "locks")(other)
    assert unlisted.words == "not tested: not one of the project's images"
    # Without locks its inputs are not known: a line without inputs proves nothing.
    blank = ledger.reader(config, [replace(LINE, inputs="")], root, tmp_path)(plan.spec)
    assert (blank.tested, blank.inputs) == (False, "")


def test_states_are_kept_for_the_same_files(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_IMAGES_CACHE", str(tmp_path / "cache"))
    for name in ("docker", "scripts/image"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copytree(LOCKS, tmp_path / "locks")
    inputs = state(config, tmp_path).inputs
    [kept] = (tmp_path / "cache" / "inputs").iterdir()
    known = json.loads(kept.read_text())
    assert known == {RUNTIME: [inputs, ""]}
    kept.write_text(json.dumps({RUNTIME: ["kept", ""]}))
    assert state(config, tmp_path).inputs == "kept"
    assert state(config, tmp_path, name=OLDER).inputs not in ("", "kept")
    kept.write_text("{")  # as a full disk leaves it
    assert state(config, tmp_path).inputs == inputs
    template = tmp_path / "docker" / "Dockerfile.j2"
    template.write_text(template.read_text() + "LABEL x=y\n")
    assert state(config, tmp_path).inputs not in (inputs, "kept")
    kept.parent.chmod(0o500)  # root may write all the same
    shutil.rmtree(tmp_path / "locks")
    assert not state(config, tmp_path).inputs


@pytest.mark.parametrize("gpus", [(), ("--gpus", "all")])
@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_verify_records_what_passed(
    config: Config,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    outcome: str,
    gpus: tuple[str, ...],
) -> None:
    identified: Any = ("an id", planned(config, root))
    proof = report(on_gpu(outcome), **(ON_T4 if gpus else {}))
    monkeypatch.setattr(verify_tasks, "identify", lambda *_: identified)
    monkeypatch.setattr(verify_tasks, "check", lambda *_, **__: proof)
    monkeypatch.setattr(verb, "engine", lambda: None)
    monkeypatch.setattr(verify_tasks, "revision", lambda *_: "f" * 40)
    space = workspace_of(tmp_path, tmp_path, locks=root / "locks")
    monkeypatch.setattr(verb, "workspace", lambda: space)
    code = program.run(["verify", "x", *gpus, "--record"])
    assert (code == 0) == (outcome == "passed")
    lines = ledger.read(tmp_path)
    recorded = [("1 x NVIDIA T4" if gpus else "", "f" * 40)] if outcome == "passed" else []
    assert [(line.gpus, line.commit) for line in lines] == recorded
    assert ("recorded in docs/ledger.csv" in capsys.readouterr().err) == (outcome == "passed")


def test_reading_the_ledger_imports_nothing_that_builds(root: Path) -> None:
    """`matrix` and `pick` read it each time; docker-py and requests take a third of a second."""
    code = "import sys, torch_images.verify.ledger; print({'docker', 'requests'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
