"""`build --stale`: which images are built, in which order they are recorded, and what is removed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.fakes import FakeEngine, FakeRunner, stored, workspace_of
from tests.unit.test_ledger import LINE, MACHINE, OLDER, RUNTIME, planned, report, spec
from torch_images.build.build import BuildResult
from torch_images.build.job import Job, Shown
from torch_images.build.plan import LockedImage, plan_image
from torch_images.config.types import Config
from torch_images.errors import (
    BuildError,
    DiskError,
    LockError,
    NetworkError,
    TorchImagesError,
    VerifyError,
)
from torch_images.layers.parent import parent_name
from torch_images.pipeline import stale
from torch_images.pipeline.make import Made
from torch_images.pipeline.stale import Outcome, StaleRun, to_build
from torch_images.verify import ledger
from torch_images.verify.ledger import Line, State

TODAY = "2026-11-23"
PATIENCE = 20  # seconds until a test gives up; nothing here takes one
BUILT, PARENT = "sha256:" + "d" * 64, "sha256:" + "e" * 64


def test_images_without_a_line_of_today_are_built(config: Config) -> None:
    """One that could not be built is tried again tomorrow, or with other inputs."""
    older, runtime = spec(config, OLDER), spec(config)
    untested = State(tested=False, words="", inputs="b" * 64)
    tested = State(tested=True, words="", inputs="b" * 64)
    tried = Line(image=OLDER, inputs="b" * 64, date=TODAY, missing="no answer")

    def left(states: dict[Any, State], *lines: Line, today: str = TODAY) -> list[str]:
        return [one.id for one in to_build(states, lines, today)]

    assert left({runtime: untested, older: untested}) == [OLDER, RUNTIME]
    assert left({runtime: tested, older: untested}) == [OLDER]
    assert left({older: untested}, tried) == []
    assert left({older: untested}, tried, today="2026-11-24") == [OLDER]
    assert left({older: untested}, replace(tried, inputs="a" * 64)) == [OLDER]
    assert left({older: untested}, replace(tried, missing="")) == [OLDER]


class Engine(FakeEngine):
    """`root` is its disk, if it is a local one."""

    root: Path | None = None

    def local_root(self) -> Path | None:
        return self.root


class Stand:
    """A run over images whose builds and checks are stand-ins.

    Builds and checks that are in `problems` raise these; each notes its begin in `log`. A built
    image gets a parent image, and a checked one its tag.
    """

    def __init__(
        self, config: Config, root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.config, self.root = config, root
        self.engine = Engine()
        self.run = FakeRunner()
        self.log: list[str] = []
        self.problems: dict[str, BaseException] = {}
        locks = root / "locks"
        self.workspace = workspace_of(folder, folder / "cache", locks=locks)
        self.workspace.cache.mkdir()
        for name in ("docker", "scripts"):
            (folder / name).symlink_to(root / name)
        monkeypatch.setattr(stale, "build", self.build)
        monkeypatch.setattr(stale, "check", self.check)
        monkeypatch.setattr(stale, "revision", lambda *_: "f" * 40)

    def build(self, job: Job, images: Sequence[LockedImage]) -> tuple[BuildResult, ...]:
        [image] = images
        self.step("build", image.spec.id)
        self.engine.images += [stored("d"), stored("e", parent_name(PARENT))]
        self.engine.tag(BUILT, *image.candidate.split(":"))
        plan = plan_image(job.config, image, self.root)
        return (BuildResult(plan=plan, digest=BUILT, size=0, seconds=0),)

    def check(self, _: Job, result: BuildResult) -> Made:
        self.step("check", result.plan.spec.id)
        self.engine.tag(BUILT, "x", "1")
        return Made(result=result, report=report(), tags=("x:1",))

    def step(self, word: str, image: str) -> None:
        step = f"{word} {image}"
        self.log.append(step)
        if problem := self.problems.get(step):
            raise problem

    def outcomes(self, *names: str) -> list[Outcome]:
        job = Job(
            config=self.config,
            workspace=self.workspace,
            engine=self.engine,
            run=self.run,
            shown=Shown(say=self.log.append),
        )
        before = frozenset(self.engine.tags())
        stale_run = StaleRun(job=job, before=before, machine=MACHINE, today=TODAY)
        return list(stale_run.outcomes([spec(self.config, name) for name in names]))

    def lines(self) -> tuple[Line, ...]:
        return ledger.read(self.workspace.root)


@pytest.fixture
def stand(config: Config, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return Stand(config, root, tmp_path, monkeypatch)


def test_images_are_built_checked_recorded_and_removed(stand: Stand, root: Path) -> None:
    done = stand.outcomes(OLDER, RUNTIME)
    assert [one.line for one in done] == list(stand.lines())
    assert [(one.spec.id, one.error) for one in done] == [(OLDER, None), (RUNTIME, None)]
    line = stand.lines()[1]
    assert (line.inputs, line.commit) == (planned(stand.config, root).identity, "f" * 40)
    assert (line.checks, line.date, line.missing) == (2, TODAY, "")
    assert stand.engine.tags() == (parent_name(PARENT),)


def test_an_image_is_built_while_the_one_before_is_checked(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check waits for the next build, and its line is there before that build ends."""
    builds, recorded = threading.Event(), threading.Event()
    check, build, add = stand.check, stand.build, ledger.add

    def slow_check(*arguments: Any, **options: Any) -> Made:
        assert builds.wait(PATIENCE)
        return check(*arguments, **options)

    def slow_build(job: Job, images: Sequence[LockedImage]) -> Any:
        if images[0].spec.id == RUNTIME:
            builds.set()
            assert recorded.wait(PATIENCE)
        return build(job, images)

    def slow_add(root: Path, line: Line) -> None:
        add(root, line)
        recorded.set()

    monkeypatch.setattr(stale, "check", slow_check)
    monkeypatch.setattr(stale, "build", slow_build)
    monkeypatch.setattr(ledger, "add", slow_add)
    assert [one.spec.id for one in stand.outcomes(OLDER, RUNTIME)] == [OLDER, RUNTIME]


def test_a_long_check_does_not_hold_up_others(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in an emulator takes minutes. Outcomes stay in order."""
    last, check = threading.Event(), stand.check
    begun: list[str] = []

    def slow(job: Job, result: BuildResult) -> Made:
        begun.append(result.plan.spec.id)
        if begun == [OLDER]:
            assert last.wait(PATIENCE)
        elif len(begun) == 4:
            last.set()
        return check(job, result)

    monkeypatch.setattr(stale, "check", slow)
    names = [OLDER, RUNTIME, RUNTIME, RUNTIME]
    assert [one.spec.id for one in stand.outcomes(*names)] == names


@pytest.mark.parametrize(
    ("error", "old"), [(LockError("no wheel"), None), (NetworkError("no answer"), LINE)]
)
def test_build_stale_records_an_unavailable_image(
    stand: Stand, error: TorchImagesError, old: Line | None
) -> None:
    """Also in place of a line whose inputs have changed. The next image is built all the same."""
    if old:
        ledger.add(stand.workspace.root, replace(old, image=OLDER))
    stand.problems[f"build {OLDER}"] = error
    done = stand.outcomes(OLDER, RUNTIME)
    assert [one.error for one in done] == [error, None]
    assert [one.line for one in done] == list(stand.lines())
    first, second = stand.lines()
    assert (first.missing, first.checks, second.missing) == (error.message, None, "")
    assert (first.inputs, first.commit) == (
        planned(stand.config, stand.root, OLDER).identity,
        "f" * 40,
    )


def test_nothing_goes_from_the_disk_for_an_unavailable_image(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run waited a minute for room for each image whose compat package no mirror had."""
    error = NetworkError("no mirror could be reached")

    class Inputs:
        def __init__(self, _: Job) -> None: ...

        def first(self, images: Sequence[LockedImage]) -> None:
            if images[0].spec.id == OLDER:
                raise error

    def make_room(_: Job, image: LockedImage, *__: object) -> None:
        stand.log.append(f"room {image.spec.id}")

    monkeypatch.setattr(stale, "Preparer", Inputs)
    monkeypatch.setattr(stale, "make_room", make_room)
    assert [one.error for one in stand.outcomes(OLDER, RUNTIME)] == [error, None]
    assert f"room {RUNTIME}" in stand.log
    assert f"room {OLDER}" not in stand.log


@pytest.mark.parametrize("step", ["build", "check"])
def test_build_stale_records_no_failed_image(stand: Stand, step: str) -> None:
    error = {"build": BuildError("gcc ended"), "check": VerifyError("3 checks failed")}[step]
    stand.problems[f"{step} {OLDER}"] = error
    done = stand.outcomes(OLDER, RUNTIME)
    assert [(one.spec.id, one.error) for one in done] == [(OLDER, error), (RUNTIME, None)]
    assert [line.image for line in stand.lines()] == [RUNTIME]


def test_build_stale_records_no_second_digest(stand: Stand) -> None:
    old = replace(LINE, image=OLDER, inputs=planned(stand.config, stand.root, OLDER).identity)
    ledger.write(stand.workspace.root, [old])
    first, second = stand.outcomes(OLDER, RUNTIME)
    assert (type(first.error), second.error) == (VerifyError, None)
    assert stand.lines() == (old, second.line)


def test_build_stale_ends_on_a_full_disk(stand: Stand) -> None:
    error = DiskError("the disk is full")
    stand.problems[f"build {RUNTIME}"] = error
    done = stand.outcomes(OLDER, RUNTIME, RUNTIME)
    assert [(one.spec.id, one.error) for one in done] == [(OLDER, None), (RUNTIME, error)]
    assert [line.image for line in stand.lines()] == [OLDER]
    assert stand.log.count(f"build {RUNTIME}") == 1
    assert "1 more not tried; the next run goes on there" in stand.log


def test_interrupted_stale_build_ends(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """No further image is begun."""
    interrupted, checked = threading.Event(), threading.Event()
    stand.problems[f"build {RUNTIME}"] = KeyboardInterrupt()

    def check(*_: Any, **__: Any) -> Made:
        assert interrupted.wait(PATIENCE)
        checked.set()
        raise VerifyError("too late")

    monkeypatch.setattr(stale, "check", check)
    with pytest.raises(KeyboardInterrupt):
        stand.outcomes(OLDER, RUNTIME, RUNTIME)
    interrupted.set()
    assert checked.wait(PATIENCE)
    assert [line for line in stand.log if line.startswith("build")] == [
        f"build {OLDER}",
        f"build {RUNTIME}",
    ]


def test_build_stale_keeps_existing_tags(stand: Stand) -> None:
    """It may be the only one of an image of the user's, which would go with it."""
    mine = stored("a", "x:1", "mine:1")
    stand.engine.images.append(mine)
    stand.outcomes(RUNTIME)
    assert {"x:1", "mine:1"} <= set(stand.engine.tags())
    assert stand.engine.digest(mine.id)


@pytest.mark.parametrize(("enough", "expected"), [(True, []), (False, [OLDER])])
def test_build_stale_on_a_full_disk_waits_for_the_check(
    stand: Stand,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    enough: bool,
    expected: list[str],
) -> None:
    """Only then: a check takes a minute."""
    waits: list[str] = []
    waited, check, room = threading.Event(), stand.check, tmp_path / "room"
    stand.engine.root = tmp_path
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: usage._replace(free=10**15 if room.exists() else 0)
    )

    def wait(futures: Iterable[Future[Outcome]], **_: object) -> None:
        waited.set()
        waits.extend(future.result().spec.id for future in futures)
        room.touch()

    def slow_check(job: Job, result: BuildResult) -> Made:
        assert not expected or waited.wait(PATIENCE)
        return check(job, result)

    monkeypatch.setattr(stale, "check", slow_check)
    monkeypatch.setattr(stale, "wait", wait)
    if enough:
        room.touch()
    stand.outcomes(OLDER, RUNTIME)
    assert waits == expected
    steps = [line for line in stand.log if line.startswith(("build", "check"))]
    assert steps == [f"{word} {name}" for name in (OLDER, RUNTIME) for word in ("build", "check")]
