"""Verified images -> tags.

A tag promises only what was tested: tagging requires a passing report of the same digest.
"""

from __future__ import annotations

from torch_images.build.plan import ImagePlan, version
from torch_images.config.image import short
from torch_images.config.types import Config
from torch_images.errors import VerifyError
from torch_images.host.engine import Engine
from torch_images.verify.verify import VerifyReport, require


def tags(config: Config, plan: ImagePlan) -> tuple[str, ...]:
    """The local tags of an image: the one with the hash of its inputs, then the short one to type.

    They are local to this machine and follow its last build. For tags in a registry, see
    tag_rules.py.
    """
    spec = plan.spec
    names = version(config, plan), short(config, spec)
    return tuple(f"{spec.repository}:{name}" for name in names)


def tag(config: Config, plan: ImagePlan, report: VerifyReport, engine: Engine) -> tuple[str, ...]:
    """Give an image its tags and drop its candidate tag.

    Raises VerifyError, and tags nothing, unless the report is a pass of exactly this image.
    """
    require(report)
    if engine.inspect(plan.candidate).id != report.digest:
        raise VerifyError(f"the report is of {report.digest}, not of {plan.candidate}")
    names = tags(config, plan)
    for name in names:
        repository, _, label = name.rpartition(":")
        engine.tag(report.digest, repository, label)
    engine.untag(plan.candidate)
    return names
