"""Verified images -> tags.

A tag promises only what was tested: tagging requires a passing report of the same digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packaging.version import Version

from torch_images.build import built, labels
from torch_images.build.job import Job
from torch_images.build.plan import ImagePlan, version
from torch_images.config.image import LATEST, short
from torch_images.config.types import Config
from torch_images.errors import VerifyError
from torch_images.verify.verify import VerifyReport, require


def tags(config: Config, plan: ImagePlan) -> tuple[str, ...]:
    """The local tags of an image: with the hash of its inputs, with torch, and the short one.

    They are local to this machine and follow its last build. For tags in a registry, see
    tag_rules.py.
    """
    spec = plan.spec
    name = short(config, spec)
    release = f"{spec.torch}-{name}".replace(f"-{LATEST}", "")
    names = (version(config, plan), *(() if spec.own else (release,)), name)
    return tuple(f"{spec.repository}:{each}" for each in names)


def tag(job: Job, plan: ImagePlan, report: VerifyReport) -> tuple[str, ...]:
    """Give an image its tags and drop its candidate tag.

    An image that was not built here, and has one of the tags, keeps a name.
    Raises VerifyError, and tags nothing, unless the report is a pass of exactly this image.
    """
    require(report, job.workspace)
    engine = job.engine
    if engine.inspect(plan.candidate).id != report.digest:
        raise VerifyError(f"the report is of {report.digest}, not of {plan.candidate}")
    names = tags(job.config, plan)
    for line in _losses(names, plan, report.digest, job):
        job.shown.say(line)
    for name in names:
        repository, _, label = name.rpartition(":")
        engine.tag(report.digest, repository, label)
    engine.untag(plan.candidate)
    return names


def _losses(names: Sequence[str], plan: ImagePlan, digest: str, job: Job) -> Iterator[str]:
    """A line for each tag that a user would miss, after its image has another name."""
    ours = {image.id for image in built.ours(job.workspace.cache, job.engine)}
    for old in job.engine.listed():
        for name in sorted({*names} & {*old.tags} if old.id != digest else ()):
            other = next((each for each in old.tags if each not in names), "")
            if old.id not in ours:
                if not other:
                    other = f"{name}-{old.id.removeprefix('sha256:')[:12]}"
                    job.engine.tag(old.id, *other.rsplit(":", 1))
                yield f"{name} was an image that was not built here: it is {other} now"
                continue
            torch, new = labels.read(old.labels).torch or "0", plan.spec.torch
            if Version(torch) > Version(new):
                yield f"{name} goes back from torch {torch}, {other or old.id}, to {new}"
