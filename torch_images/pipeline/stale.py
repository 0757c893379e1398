"""Build the images that are not tested, within the disk's space: the verb `build --stale`.

Each line of the ledger is written as soon as its image is verified, so an interrupted run continues
where it stopped. While images are verified, the next one is built, and the parent image of the one
after it is loaded: each waits for something else, the disk or one processor. Images are removed
once they are tested; layers that the next images share stay until the disk is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from torch_images.build.build import BuildResult, build, revision
from torch_images.build.job import Job
from torch_images.build.plan import LockedImage, lock_image, plan_image
from torch_images.build.prepare import Preparer
from torch_images.config.image import ImageSpec
from torch_images.errors import (
    DiskError,
    LockError,
    NetworkError,
    TorchImagesError,
    VerifyError,
    shown,
)
from torch_images.host.workers import workers
from torch_images.jobs import Builder
from torch_images.pipeline.make import check, undisturbed
from torch_images.pipeline.room import make_room
from torch_images.verify import ledger
from torch_images.verify.ledger import Line, State
from torch_images.verify.verify import line_of

_AT_ONCE = 2  # images that are verified


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result for one image: its new line of the ledger, or the error, or both."""

    spec: ImageSpec
    line: Line | None = None
    error: TorchImagesError | None = None


def to_build(
    states: Mapping[ImageSpec, State], lines: Sequence[Line], today: str
) -> tuple[ImageSpec, ...]:
    """The images that are not tested, except those that could not be built today.

    Images with the same libraries follow each other.
    """
    tried = {(line.image, line.inputs) for line in lines if line.missing and line.date == today}
    left = [s for s, at in states.items() if not at.tested and (s.id, at.inputs) not in tried]
    return tuple(sorted(left, key=lambda s: (s.cuda.version, s.base.name, s.torch, s.source.name)))


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """An image that can be built next: its parent image is there. `inputs` stand for it."""

    image: LockedImage
    inputs: str


@dataclass(frozen=True, kw_only=True)
class _Built:
    """An image that waits for its checks. `lock` keeps other builds of it away."""

    result: BuildResult
    commit: str
    lock: ExitStack


@dataclass(frozen=True, kw_only=True)
class StaleRun:
    """A run over images that are not tested.

    `before` are the engine's tags before it, which stay. `today` is the day (UTC), as in the
    ledger, which one thread at a time writes.
    """

    job: Job
    before: frozenset[str]
    machine: Builder
    today: str
    writing: Lock = field(default_factory=Lock)

    def outcomes(self, specs: Sequence[ImageSpec]) -> Iterator[Outcome]:
        """Build and verify images; yield the outcome of each, in this order, once it is recorded.

        An image whose inputs are not available gets a line that says so. One whose build or checks
        fail gets none. A disk without space for an image ends the run, because all others would
        fail for the same reason.
        """
        checks, work = deque[Future[Outcome]](), list[Future[Any]]()
        with workers(1) as preparer, workers(_AT_ONCE) as verifier:
            following = preparer.submit(self._prepare, specs, work)
            for number, spec in enumerate(specs, 1):
                self.job.shown.say(f"{spec.id}: {number} of {len(specs)}")
                ready, building = following.result(), Future[None]()
                work.append(building)
                if number < len(specs):
                    following = preparer.submit(self._prepare, specs[number:], work, ready)
                try:
                    built = self._build(ready) if isinstance(ready, _Ready) else ready
                    while len(_running(checks)) == _AT_ONCE:
                        _wait_for_one(checks)
                    while checks and checks[0].done():
                        yield checks.popleft().result()
                    checks.append(verifier.submit(self._finish, built))
                    work.append(checks[-1])
                finally:
                    building.set_result(None)
                if isinstance(built, Outcome) and isinstance(built.error, DiskError):
                    left = len(specs) - number
                    self.job.shown.say(f"{left} more not tried; the next run goes on there")
                    break
            for one in checks:
                yield one.result()

    def _prepare(
        self,
        specs: Sequence[ImageSpec],
        work: Collection[Future[Any]],
        before: _Ready | Outcome | None = None,
    ) -> _Ready | Outcome:
        """Load the parent image of the first of `specs`, if the disk has room for it and `work`.

        `work` are the builds and checks of the images before it, `before` is the last one of them.
        """
        job, (spec, *later), inputs = self.job, specs, ""
        building = before.image if isinstance(before, _Ready) else None
        try:
            image = lock_image(job.config, spec, job.workspace.locks)
            inputs = plan_image(job.config, image, job.workspace.root).identity
            preparer = Preparer(job)
            preparer.first([image])  # if it fails, nothing need go from the disk
            make_room(job, image, later, lambda: _wait_for_one(work), building)
            if not job.options.no_cache:  # which packs the layers again, so the build does
                preparer.stack([image])
        except TorchImagesError as error:
            return self._failed(spec, error, inputs)
        return _Ready(image=image, inputs=inputs)

    def _build(self, ready: _Ready) -> _Built | Outcome:
        """Build an image while checks of others run, and the next one's parent image is loaded."""
        job, image = self.job, ready.image
        commit = self._commit()
        with ExitStack() as lock:
            try:
                lock.enter_context(undisturbed(job, [image]))
                [result] = build(job, [image])
            except TorchImagesError as error:
                return self._failed(image.spec, error, ready.inputs)
            return _Built(result=result, commit=commit, lock=lock.pop_all())

    def _commit(self) -> str:
        return revision(self.job.workspace, self.job.run) or ""

    def _failed(self, spec: ImageSpec, error: TorchImagesError, inputs: str) -> Outcome:
        """The outcome for an image that is not built, with a line if its inputs are unavailable."""
        if not isinstance(error, (LockError, NetworkError)):
            return Outcome(spec=spec, error=error)
        line = Line(
            image=spec.id,
            inputs=inputs,
            commit=self._commit(),
            date=self.today,
            machine=ledger.described(self.machine),
            missing=shown(error.message),
        )
        return Outcome(spec=spec, line=line, error=error)

    def _finish(self, built: _Built | Outcome) -> Outcome:
        """Verify an image, unless its build failed, and record it."""
        outcome = self._check(built) if isinstance(built, _Built) else built
        if outcome.line:
            try:
                with self.writing:
                    ledger.add(self.job.workspace.root, outcome.line)
            except VerifyError as error:
                return Outcome(spec=outcome.spec, error=error)
        return outcome

    def _check(self, built: _Built) -> Outcome:
        plan = built.result.plan
        try:
            with built.lock:
                finished = check(self.job, built.result)
                self._remove([*finished.tags, plan.candidate])
        except TorchImagesError as error:
            return Outcome(spec=plan.spec, error=error)
        assert finished.report
        line = line_of(
            plan, finished.report, commit=built.commit, date=self.today, machine=self.machine
        )
        return Outcome(spec=plan.spec, line=line)

    def _remove(self, tags: Sequence[str]) -> None:
        """Remove tags that did not exist before the run."""
        for tag in dict.fromkeys(tags):
            if tag not in self.before and self.job.engine.digest(tag):
                self.job.engine.untag(tag)


def _running(work: Collection[Future[Any]]) -> list[Future[Any]]:
    return [each for each in [*work] if not each.done()]  # another thread may add some meanwhile


def _wait_for_one(work: Collection[Future[Any]]) -> bool:
    """Wait until one of the running builds and checks ends; False if none runs."""
    running = _running(work)
    if running:
        wait(running, return_when=FIRST_COMPLETED)
    return bool(running)
