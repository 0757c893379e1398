"""Build the images that are not tested, within the disk's space: the verb `build --stale`.

Each line of the ledger is written as soon as its image is verified, so an interrupted run continues
where it stopped. While images are verified, the next one is built: building waits for the disk,
checks for processors. Images are removed once they are tested; layers that the next images share
stay until the disk is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Lock

from torch_images.build.build import BuildResult, build, revision
from torch_images.build.job import Job
from torch_images.build.plan import lock_image, plan_image
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
from torch_images.pipeline.room import libraries, make_room
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
    return tuple(sorted(left, key=lambda s: (*libraries(s), s.source.name)))


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
        checks = deque[Future[Outcome]]()
        with workers(_AT_ONCE) as verifier:
            for number, spec in enumerate(specs, 1):
                self.job.shown.say(f"{spec.id}: {number} of {len(specs)}")
                built = self._build(spec, specs[number:], checks)
                while len(_running(checks)) == _AT_ONCE:
                    _wait_for_one(checks)
                while checks and checks[0].done():
                    yield checks.popleft().result()
                checks.append(verifier.submit(self._finish, built))
                if isinstance(built, Outcome) and isinstance(built.error, DiskError):
                    left = len(specs) - number
                    self.job.shown.say(f"{left} more not tried; the next run goes on there")
                    break
            for one in checks:
                yield one.result()

    def _build(
        self, spec: ImageSpec, later: Sequence[ImageSpec], checks: Collection[Future[Outcome]]
    ) -> _Built | Outcome:
        """Build an image while `checks` of others run, if the disk has room for all."""
        job, root, inputs = self.job, self.job.workspace.root, ""
        commit = revision(job.workspace, job.run) or ""
        with ExitStack() as lock:
            try:
                image = lock_image(job.config, spec, job.workspace.locks)
                inputs = plan_image(job.config, image, root).identity
                Preparer(job).first([image])  # if it fails, nothing need go from the disk
                make_room(job, image, later, lambda: _wait_for_one(checks))
                lock.enter_context(undisturbed(job, [image]))
                [result] = build(job, [image])
            except (LockError, NetworkError) as error:
                line = Line(
                    image=spec.id,
                    inputs=inputs,
                    commit=commit,
                    date=self.today,
                    machine=ledger.described(self.machine),
                    missing=shown(error.message),
                )
                return Outcome(spec=spec, line=line, error=error)
            except TorchImagesError as error:
                return Outcome(spec=spec, error=error)
            return _Built(result=result, commit=commit, lock=lock.pop_all())

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


def _running(checks: Collection[Future[Outcome]]) -> list[Future[Outcome]]:
    return [check for check in checks if not check.done()]


def _wait_for_one(checks: Collection[Future[Outcome]]) -> bool:
    """Wait until one of the running checks ends; False if none runs."""
    running = _running(checks)
    if running:
        wait(running, return_when=FIRST_COMPLETED)
    return bool(running)
