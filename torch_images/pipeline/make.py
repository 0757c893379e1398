"""Locked images -> built, verified and tagged images, each with its SBOM: the verb `build`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from torch_images.build.build import BuildResult, build
from torch_images.build.job import Job
from torch_images.build.plan import LockedImage
from torch_images.host.workspace import alone
from torch_images.publish.tag import tag
from torch_images.verify import sbom
from torch_images.verify.verify import VerifyReport, verify


@dataclass(frozen=True, kw_only=True)
class Made:
    """A built image, the report of its checks, and its tags in the engine.

    An unverified image has no report, and only its candidate tag.
    """

    result: BuildResult
    report: VerifyReport | None
    tags: tuple[str, ...]


def make(job: Job, images: Sequence[LockedImage], *, unverified: bool = False) -> tuple[Made, ...]:
    """Build images in parallel; then verify, tag and describe them one by one.

    With `unverified`, the images only get their candidate tags.
    Raises as `build` does, and VerifyError for an image that fails its checks. The images before
    it then have their tags.
    """
    with undisturbed(job, images):
        results = build(job, images)
        if unverified:
            return tuple(Made(result=r, report=None, tags=(r.plan.candidate,)) for r in results)
        return tuple(check(job, result) for result in results)


@contextmanager
def undisturbed(job: Job, images: Sequence[LockedImage]) -> Iterator[None]:
    """Wait for other builds of these images in this workspace, and let none begin meanwhile.

    Both would move the candidate tag.
    """
    with ExitStack() as locks:
        output = job.workspace.output
        output.mkdir(parents=True, exist_ok=True)
        for name in sorted({image.spec.id for image in images}):
            text = f"another build of {name} is running here: waiting for it"
            waits = partial(job.shown.say, text)
            locks.enter_context(alone(output / f".{name}.lock", waits))
        yield


def check(job: Job, result: BuildResult) -> Made:
    """Verify, tag and describe a built image.

    Reuses a report of the same digest and checks, except for a build without cache. Raises
    VerifyError for an image that fails its checks.
    """
    plan = result.plan
    report = verify(job, result.digest, plan, reuse=True)
    tags = tag(job, plan, report)
    sbom.save(result.digest, plan.spec.id, job.workspace, job.engine)
    return Made(result=result, report=report, tags=tags)
