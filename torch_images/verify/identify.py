"""A tag, id or identifier -> its image of the matrix, and the report of its verification."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch_images.build import labels
from torch_images.build.plan import CANDIDATE, ImagePlan, lock_image, locked, plan_image
from torch_images.build.render import FOLDER
from torch_images.config.choose import choose_id, choose_named
from torch_images.config.image import ImageSpec
from torch_images.config.types import Config
from torch_images.errors import LockError, UsageError, VerifyError
from torch_images.host.engine import Engine
from torch_images.host.image_info import ImageInfo
from torch_images.host.workspace import Workspace
from torch_images.locks.image_lock import ImageLock, parse_image_lock
from torch_images.oci.compression import Compression
from torch_images.verify.suites import suite_hash
from torch_images.verify.verify import VerifyReport, claim, read_report, report_path, require


@dataclass(frozen=True, kw_only=True)
class VerifiedImage:
    """An image in the engine, its plan, and the passing report of its verification."""

    plan: ImagePlan
    info: ImageInfo
    report: VerifyReport


def identify(
    config: Config, image: str, workspace: Workspace, engine: Engine
) -> tuple[str, ImagePlan]:
    """A built image by tag, id or identifier of the matrix: its reference and its plan.

    The plan has the lock in locks/, or the one inside the image if a build resolved part of it.
    Raises UsageError if the engine lacks the image, or if it is not one of this project's.
    """
    reference = find(config, image, engine)
    image_labels = labels.read(engine.inspect(reference).labels)
    spec = spec_of(config, reference, image_labels)
    if image_labels.unlocked:
        locked_image = locked(config, spec, carried_lock(reference, engine))
    else:
        locked_image = lock_image(config, spec, workspace.locks)
    small = image_labels.compression == Compression.SMALL
    return reference, plan_image(config, replace(locked_image, small=small), workspace.root)


def verified_image(
    config: Config, image: str, workspace: Workspace, engine: Engine
) -> VerifiedImage:
    """A verified image, by tag, id or identifier.

    Raises VerifyError unless there is a passing report of exactly this digest, by the checks of
    this checkout; UsageError as `identify` does.
    """
    reference, plan = identify(config, image, workspace, engine)
    info = engine.inspect(reference)
    report = read_report(report_path(workspace, info.id))
    advice = f"run `invoke verify {image}`"
    if report is None:
        raise VerifyError(f"{image} ({info.id}) was never verified here", advice)
    require(report, workspace)
    if report.suite != suite_hash(workspace.root, claim(config, plan)):
        raise VerifyError(f"{image} ({info.id}) was verified by other checks than today's", advice)
    return VerifiedImage(plan=plan, info=info, report=report)


def carried_lock(image: str, engine: Engine) -> ImageLock:
    """The lock inside an image. Raises LockError unless it matches the image's label."""
    lock = parse_image_lock(engine.read_files(image, f"{FOLDER}/lock"))
    label = labels.read(engine.inspect(image).labels).lock
    if label != f"sha256:{lock.digest}":
        raise LockError(f"{image} contains lock sha256:{lock.digest}, but its label is {label}")
    return lock


def spec_of(config: Config, image: str, image_labels: labels.ImageLabels) -> ImageSpec:
    """The image of the matrix that labels name.

    Raises UsageError for an image that is not this project's, or that images.yaml no longer has.
    """
    if not image_labels.id:
        raise UsageError(f"'{image}' was not built by torch-images", f"it has no label {labels.ID}")
    try:
        return choose_id(config, image_labels.id)
    except UsageError as error:
        raise UsageError(f"'{image}' can no longer be built: {error.message}", error.hint) from None


def find(config: Config, image: str, engine: Engine) -> str:
    """A reference that the engine may know, for a tag, id or identifier of the matrix."""
    if image in engine.tags(image):
        return image
    try:
        spec = choose_named(config, image)
    except UsageError:
        return image
    # The floating tag is the shortest, and names the latest of several builds.
    for prefix in (f"{CANDIDATE}:{spec.id}", f"{spec.repository}:"):
        for name in sorted(engine.tags(prefix), key=len):
            if labels.read(engine.inspect(name).labels).id == image:
                return name
    command = " ".join(["invoke build", *spec.arguments])
    raise UsageError(f"{image} is not built", f"build it first: `{command}`")
