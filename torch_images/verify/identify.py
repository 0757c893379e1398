"""A tag, id or identifier -> the image of the matrix that it is, and its proof if there is one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from packaging.version import Version

from torch_images.build import labels
from torch_images.build.plan import CANDIDATE, ImagePlan, locked, plan_image
from torch_images.build.render import FOLDER
from torch_images.config.image import ImageSpec, short
from torch_images.config.matrix import matrix
from torch_images.config.selection import find_image
from torch_images.config.types import Config
from torch_images.errors import LockError, UsageError, VerifyError
from torch_images.host.engine import Engine
from torch_images.host.image_info import ImageInfo
from torch_images.host.workspace import Workspace
from torch_images.locks.image_lock import ImageLock, image_lock, parse_image_lock
from torch_images.verify.suites import suite_hash
from torch_images.verify.verify import VerifyReport, claim_of, read_report, report_path, require


@dataclass(frozen=True, kw_only=True)
class VerifiedImage:
    """An image of the engine with what it should be and the passing report that says that it is."""

    plan: ImagePlan
    info: ImageInfo
    report: VerifyReport


def identify(
    config: Config, image: str, workspace: Workspace, engine: Engine
) -> tuple[str, ImagePlan]:
    """A built image by tag, id or identifier of the matrix: its reference and what it should be.

    An image that a build resolved a lock for is held to the lock that it carries, any other to the
    one in locks/.
    Raises UsageError for an image that the engine does not have or that is not one of ours.
    """
    reference = _find(config, image, engine)
    said = labels.read(engine.inspect(reference).labels)
    spec = spec_of(config, reference, said)
    if said.unlocked:
        lock = carried_lock(reference, engine)
    else:
        lock = image_lock(config, spec, workspace.locks)
        lock = lock if said.compat else replace(lock, compat=None)
    return reference, plan_image(config, locked(spec, lock), workspace.root)


def verified_image(
    config: Config, image: str, workspace: Workspace, engine: Engine
) -> VerifiedImage:
    """A verified image, by tag, id or identifier.

    Raises VerifyError unless there is a passing report of exactly this digest, by the checks that
    this checkout has; UsageError as `publish.identify` does.
    """
    reference, plan = identify(config, image, workspace, engine)
    info = engine.inspect(reference)
    report = read_report(report_path(workspace, info.id))
    advice = f"run `invoke verify {image}`"
    if report is None:
        raise VerifyError(f"{image} ({info.id}) was never verified here", advice)
    require(report)
    if report.suite != suite_hash(workspace.root, claim_of(config, plan, info)):
        raise VerifyError(f"{image} ({info.id}) was verified by other checks than these", advice)
    return VerifiedImage(plan=plan, info=info, report=report)


def carried_lock(image: str, engine: Engine) -> ImageLock:
    """The lock inside an image. Raises LockError unless it is the one that its label names."""
    lock = parse_image_lock(engine.read_files(image, f"{FOLDER}/lock"))
    named = labels.read(engine.inspect(image).labels).lock
    if named != f"sha256:{lock.digest}":
        raise LockError(f"{image} carries lock sha256:{lock.digest}, its label names {named}")
    return lock


def spec_of(config: Config, image: str, said: labels.ImageLabels) -> ImageSpec:
    """The image of the matrix that labels name.

    Raises UsageError for an image that is not one of ours, or that images.yaml has no more.
    """
    if not said.id:
        raise UsageError(f"'{image}' was not built by torch-images", f"it has no label {labels.ID}")
    try:
        return find_image(config, said.id)
    except UsageError as error:
        raise UsageError(
            f"'{image}' cannot be built any more: {error.message}", error.hint
        ) from None


def _find(config: Config, image: str, engine: Engine) -> str:
    """A reference that the engine knows, for a tag, id or identifier of the matrix."""
    try:
        spec = find_image(config, image)
    except UsageError:
        tagged = [s for s in matrix(config) if image == f"{s.repository}:{short(config, s)}"]
        if not tagged or image in engine.tags(image):
            return image
        spec = max(tagged, key=lambda s: Version(s.torch))
    names = engine.tags(f"{CANDIDATE}:{spec.id}") or engine.tags(f"{spec.repository}:")
    # The floating tag is the shortest one, and names the latest of several builds.
    for name in sorted(names, key=len):
        if labels.read(engine.inspect(name).labels).id == image:
            return name
    words = " ".join(spec.arguments)
    raise UsageError(f"{image} is not built", f"build it first: `invoke build {words}`")
