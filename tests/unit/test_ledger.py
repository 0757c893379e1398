"""The ledger: what its file may hold, when a line proves an image, and building what has none."""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.releases import T128, T130
from tests.unit.fakes import FakeEngine, FakeRunner, stored
from torch_images.build.bake import BuildOptions
from torch_images.build.build import BuildResult
from torch_images.build.plan import LockedImage, lock_image, plan_image
from torch_images.config.choose import choose
from torch_images.config.image import ImageSpec
from torch_images.config.matrix import matrix
from torch_images.config.selection import find_image
from torch_images.config.types import Config
from torch_images.errors import (
    ConfigError,
    DiskError,
    LockError,
    NetworkError,
    TorchImagesError,
    VerifyError,
)
from torch_images.host.network import Network
from torch_images.host.workspace import Workspace
from torch_images.jobs import Builder
from torch_images.layers.parent import parent_name
from torch_images.project import LEDGER
from torch_images.publish import ledger, stale
from torch_images.publish.ledger import Proof
from torch_images.publish.pipeline import QUIET, Made, Shown
from torch_images.verify.suites import Check
from torch_images.verify.verify import VerifyReport

TODAY = dt.date(2026, 11, 23)
MACHINE = Builder(cores=2, memory=25_000_000_000)
RUNTIME = f"cu130-sm120-torch{T130}-trixie-runtime"
OLDER = f"cu128-sm120-torch{T128}-bookworm-runtime"
LINE = Proof(
    image=RUNTIME,
    inputs="a" * 64,
    compat="580.95.05-1",
    lock="b" * 64,
    digest="sha256:" + "c" * 64,
    date="2026-11-23",
    checks="205",
    machine="2 processors, 25 GB",
)


def spec(config: Config, name: str = RUNTIME) -> ImageSpec:
    return find_image(config, name)


def made(config: Config, root: Path, name: str = RUNTIME) -> Made:
    """An image as the pipeline returns it, with three checks: passed, passed, skipped."""
    image = lock_image(config, spec(config, name), root / "locks")
    plan = plan_image(config, image, root)
    outcomes = ("passed", "passed", "skipped")
    checks = tuple(Check(name=f"c{i}", outcome=o, seconds=0) for i, o in enumerate(outcomes))
    digest = "sha256:" + "d" * 64
    report = VerifyReport(
        digest=digest, id=digest, suite="e" * 64, checks=checks, observed={}, seconds=0
    )
    result = BuildResult(plan=plan, digest=digest, size=0, seconds=0)
    return Made(result=result, report=report, tags=("x:1",))


def state(config: Config, root: Path, line: Proof) -> ledger.State:
    one = spec(config, line.image)
    return ledger.states(config, [one], {line.image: line}, root, root / "locks")[one]


texts = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=300)


@given(words=st.lists(texts, min_size=2, max_size=2))
def test_what_is_written_is_read(tmp_path_factory: Any, words: list[str]) -> None:
    root = tmp_path_factory.mktemp("ledger")
    lines = {
        RUNTIME: LINE,
        OLDER: replace(LINE, image=OLDER, machine=words[0], missing=words[1]),
    }
    ledger.write(root, lines)
    assert ledger.read(root) == lines
    assert (root / LEDGER).read_text().splitlines()[1].startswith(OLDER)  # in order
    assert [path.name for path in (root / LEDGER).parent.iterdir()] == ["ledger.csv"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("image,inputs", "inputs,image"),
        (RUNTIME, "../../etc"),
        ("a" * 64, "A" * 64),
        ("580.95.05-1", "$(id)"),
        (",205,", ",205,,"),
        (",205,", ",٢,"),
        ("2 processors", "2\x07processors"),
        ("2 processors", "x" * 301),
        ('"2 processors, 25 GB"', '"2 processors'),
    ],
)
def test_a_ledger_that_nobody_wrote_is_refused(tmp_path: Path, old: str, new: str) -> None:
    ledger.write(tmp_path, {RUNTIME: LINE})
    path = tmp_path / LEDGER
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        ledger.read(tmp_path)
    assert str(caught.value).startswith(f"{LEDGER}:")
    assert str(caught.value).endswith("restore it from git")
    assert str(caught.value).isprintable()


def test_two_lines_for_one_image_are_refused(tmp_path: Path) -> None:
    ledger.write(tmp_path, {RUNTIME: LINE})
    path = tmp_path / LEDGER
    path.write_text(path.read_text() + path.read_text().splitlines()[1] + "\n")
    with pytest.raises(ConfigError, match=r"ledger\.csv:3: not a line"):
        ledger.read(tmp_path)


def test_the_line_of_a_verified_image_proves_it(config: Config, root: Path) -> None:
    image = made(config, root)
    assert image.report
    line = ledger.proof(image, "2026-11-23", MACHINE)
    assert line is not None
    assert (line.image, line.checks, line.machine) == (RUNTIME, "2", "2 processors, 25 GB")
    assert line.digest == "sha256:" + "d" * 64
    assert state(config, root, line) == ledger.State(
        tested=True, words="tested on 2026-11-23 without a GPU", built=True
    )
    other = state(config, root, replace(line, inputs="0" * 64))
    words = "last tested on 2026-11-23; its inputs have changed since"
    assert other == ledger.State(tested=False, words=words, built=True)
    emulated = replace(image, report=replace(image.report, emulated=True))
    found = ledger.proof(emulated, "2026-11-23", MACHINE)
    assert found is not None
    assert found.machine == f"{line.machine}{ledger.EMULATED}"
    words = "tested on 2026-11-23 without a GPU, in an emulator"
    assert state(config, root, found) == ledger.State(tested=True, words=words, built=True)


def test_what_could_not_be_had_is_no_proof(config: Config, root: Path) -> None:
    error = "no answer\n from\x1b host\x7f " + "x" * 400
    line = ledger.impossible(spec(config), error, "2026-11-23", MACHINE)
    assert line.missing.startswith("no answer from host xx")
    assert len(line.missing) == 300
    found = state(config, root, line)
    assert not found.tested
    assert found.words.startswith("not tested yet, tried on 2026-11-23: no answer from host")
    never = ledger.states(config, [spec(config)], {}, root, root)[spec(config)]
    assert never == ledger.State(tested=False, words="not tested: never built")
    foreign = choose(config, arch="9.0,12.0")
    words = ledger.states(config, [foreign], {}, root, root)[foreign].words
    assert words == "not tested: not one of the project's images"


def test_what_was_not_verified_or_not_locked_gets_no_line(config: Config, root: Path) -> None:
    whole = made(config, root)
    assert whole.report is not None
    failed = Check(name="x", outcome="failed", seconds=0)
    bad = replace(whole.report, checks=(*whole.report.checks, failed))
    plan = whole.result.plan
    unlocked = replace(plan, lock=replace(plan.lock, base=replace(plan.lock.base, unlocked=True)))
    assert unlocked.lock.unlocked
    for other in (
        replace(whole, report=None),
        replace(whole, report=bad),
        replace(whole, result=replace(whole.result, plan=unlocked)),
    ):
        assert ledger.proof(other, "2026-11-23", MACHINE) is None


class Engine(FakeEngine):
    """Its disk is full, if it has one."""

    root: Path | None = None

    def local_root(self) -> Path | None:
        return self.root


def run_stale(
    config: Config,
    root: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    problems: dict[str, TorchImagesError],
    engine: Engine | None = None,
    run: FakeRunner | None = None,
    shown: Shown = QUIET,
) -> tuple[list[stale.Outcome], Engine]:
    """Build two images, of which some end in an error; the ledger is below `folder`.

    An image of two names and its parent get into the engine.
    """
    engine = engine or Engine()

    def make(_: Config, images: Sequence[LockedImage], *__: Any, **___: Any) -> tuple[Made, ...]:
        [image] = images
        if image.spec.id in problems:
            raise problems[image.spec.id]
        engine.images += [stored("d"), stored("e", parent_name("sha256:" + "e" * 64))]
        for name in ("x:1", image.candidate):
            engine.tag("sha256:" + "d" * 64, *name.split(":"))
        return (made(config, root, image.spec.id),)

    monkeypatch.setattr(stale, "make", make)
    workspace = Workspace(root=folder, cache=folder, network=Network(), locks=root / "locks")
    done = stale.build_stale(
        config,
        [spec(config, OLDER), spec(config)],
        workspace,
        BuildOptions(),
        engine=engine,
        run=run or FakeRunner(),
        machine=MACHINE,
        today=TODAY,
        shown=shown,
    )
    return list(done), engine


@pytest.mark.parametrize(
    "error", [LockError("no wheel"), NetworkError("no answer"), VerifyError("3 checks failed")]
)
def test_one_that_cannot_be_had_gets_a_line_and_the_next_is_built(
    config: Config,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: TorchImagesError,
) -> None:
    """One that is built and fails gets none, and no error replaces a proof."""
    done, engine = run_stale(config, root, tmp_path, monkeypatch, {OLDER: error})
    lines = ledger.read(tmp_path)
    assert [one.line for one in done] == [lines.get(OLDER), lines[RUNTIME]]
    assert [one.error for one in done] == [error, None]
    assert (OLDER in lines) != isinstance(error, VerifyError)
    assert OLDER not in lines or lines[OLDER].missing == error.message
    assert lines[RUNTIME].missing == ""
    assert engine.tags() == (parent_name("sha256:" + "e" * 64),)
    old = replace(LINE, image=OLDER)
    ledger.write(tmp_path, {OLDER: old})
    done, _ = run_stale(config, root, tmp_path, monkeypatch, {OLDER: error})
    assert (done[0].error, done[0].line, ledger.read(tmp_path)[OLDER]) == (error, None, old)


def test_a_full_disk_ends_the_run(
    config: Config, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, lines = DiskError("the disk is full"), list[str]()
    shown = Shown(say=lines.append)
    done, engine = run_stale(config, root, tmp_path, monkeypatch, {OLDER: error}, shown=shown)
    assert [(one.line, one.error) for one in done] == [(None, error)]
    assert ledger.read(tmp_path) == {}
    assert engine.images == []
    assert lines[-1] == "1 more not tried; the next run goes on there"


def test_a_name_that_was_there_before_stays(
    config: Config, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the only one of an image of the user's, which would go with it."""
    mine = stored("a", "x:1", "mine:1")
    _, engine = run_stale(config, root, tmp_path, monkeypatch, {}, Engine(mine))
    assert {"x:1", "mine:1"} <= set(engine.tags())
    assert engine.digest(mine.id)


def test_room_is_made_only_of_what_this_run_made(
    config: Config, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other parent images, and what a user derived from one, stay; so does everybody's cache."""
    before = stored("b", parent_name("sha256:" + "b" * 64))
    derived = stored("c", "torch-images-parent:mine", **{"io.github.torch-images.id": "x"})
    engine, run = Engine(before, derived), FakeRunner()
    lines: list[str] = []
    engine.root = tmp_path
    full = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    shown = Shown(say=lines.append)
    run_stale(config, root, tmp_path, monkeypatch, {}, engine, run, shown)
    assert [line for line in lines if line.startswith("freed disk: 1 parent images, 0 layers; ")]
    assert all(image in engine.images for image in (before, derived))
    assert not [command for command in run.commands if "prune" in command]


def test_only_what_has_no_fresh_line_is_built(config: Config, root: Path, tmp_path: Path) -> None:
    """What could not be had today is not tried again today, but is tomorrow."""
    (tmp_path / "docker").symlink_to(root / "docker")
    (tmp_path / "scripts").symlink_to(root / "scripts")
    specs = [s for s in matrix(config) if s.id in (RUNTIME, OLDER)]
    workspace = Workspace(root=tmp_path, cache=tmp_path, network=Network(), locks=root / "locks")

    def left(day: dt.date) -> list[str]:
        return [one.id for one in stale.to_build(config, specs, workspace, day)]

    assert left(TODAY) == [OLDER, RUNTIME]
    tested = ledger.proof(made(config, root), "2026-11-23", MACHINE)
    assert tested is not None
    tried = ledger.impossible(spec(config, OLDER), "no answer", "2026-11-23", MACHINE)
    ledger.write(tmp_path, {RUNTIME: tested, OLDER: tried})
    assert left(TODAY) == []
    assert left(TODAY + dt.timedelta(days=1)) == [OLDER]
    ledger.write(tmp_path, {RUNTIME: replace(tested, inputs="0" * 64), OLDER: tried})
    assert left(TODAY) == [RUNTIME]


def test_the_ledger_of_the_project_names_its_images(config: Config, root: Path) -> None:
    """A line of an image that the catalogue has dropped is of no use to anybody."""
    assert set(ledger.read(root)) <= {listed.id for listed in matrix(config)}


def test_reading_the_ledger_imports_nothing_that_builds() -> None:
    """`matrix` and `pick` read it each time; docker-py and requests take a third of a second."""
    code = "import sys, torch_images.publish.ledger; print({'docker', 'requests'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
