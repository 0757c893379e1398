"""A tag, id or identifier -> the image of the matrix that it is, and its proof if there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch_images.build.plan import CANDIDATE, ImagePlan, pair
from torch_images.build.render import FOLDER, LABEL_PREFIX, PRUNED_LABEL
from torch_images.config.matrix import ImageSpec, choose, matrix
from torch_images.config.types import Config
from torch_images.errors import LockError, UsageError, VerifyError
from torch_images.host.engine import Engine, ImageInfo
from torch_images.host.workspace import Workspace
from torch_images.locks.image_lock import ImageLock, image_lock, parse_image_lock
from torch_images.verify.verify import (
    VerifyReport,
    claim_of,
    read_report,
    report_path,
    require,
    suite_hash,
)


@dataclass(frozen=True, kw_only=True)
class VerifiedImage:
    """An image of the engine with what it should be and the passing report that says that it is."""

    planned: ImagePlan
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
    labels = engine.inspect(reference).labels
    spec = spec_of(config, reference, labels)
    if labels.get(f"{LABEL_PREFIX}.unlocked"):
        return reference, pair(config, spec, carried_lock(reference, engine), workspace.root)
    lock = image_lock(config, spec, workspace.locks)
    if labels.get(f"{LABEL_PREFIX}.compat") == "none":
        lock = replace(lock, compat=None)
    return reference, pair(config, spec, lock, workspace.root)


def verified_image(
    config: Config, image: str, workspace: Workspace, engine: Engine
) -> VerifiedImage:
    """A verified image, by tag, id or identifier.

    Raises VerifyError unless there is a passing report of exactly this digest, by the checks that
    this checkout has; UsageError as `publish.identify` does.
    """
    reference, planned = identify(config, image, workspace, engine)
    info = engine.inspect(reference)
    report = read_report(report_path(workspace, info.id))
    advice = f"run `invoke verify {image}`"
    if report is None:
        raise VerifyError(f"{image} ({info.id}) was never verified here", advice)
    require(report)
    if report.suite != suite_hash(workspace.root, claim_of(config, planned, info)):
        raise VerifyError(f"{image} ({info.id}) was verified by other checks than these", advice)
    return VerifiedImage(planned=planned, info=info, report=report)


def carried_lock(image: str, engine: Engine) -> ImageLock:
    """The lock inside an image. Raises LockError unless it is the one that its label names."""
    lock = parse_image_lock(engine.read_files(image, f"{FOLDER}/lock"))
    named = engine.inspect(image).labels.get(f"{LABEL_PREFIX}.lock")
    if named != f"sha256:{lock.digest}":
        raise LockError(f"{image} carries lock sha256:{lock.digest}, its label names {named}")
    return lock


def spec_of(config: Config, image: str, labels: Mapping[str, str]) -> ImageSpec:
    """The image that labels describe, also one that the matrix does not list (several arches).

    Raises UsageError for an image that is not one of ours.
    """
    identifier = labels.get(f"{LABEL_PREFIX}.id")
    if identifier is None:
        raise UsageError(f"'{image}' was not built by torch-images", f"no label {LABEL_PREFIX}.id")
    pruned = PRUNED_LABEL in labels
    for listed in matrix(config):
        spec = replace(listed, prune=pruned)
        if spec.id == identifier:
            return spec
    found = {
        axis: labels.get(f"{LABEL_PREFIX}.{axis}", "") for axis in ("cuda", "source", "variant")
    }
    arches = labels.get(f"{LABEL_PREFIX}.arches", "").replace(" ", ",")
    for base in config.bases:
        spec = choose(config, **found, arch=arches, base=base.name)
        spec = replace(spec, prune=pruned)
        if spec.id == identifier:
            return spec
    raise UsageError(f"image {identifier} is not in images.yaml", "see `invoke matrix`")


def _find(config: Config, image: str, engine: Engine) -> str:
    """A reference that the engine knows, for a tag, id or identifier of the matrix."""
    for spec in matrix(config):
        if spec.id == image:
            names = engine.tags(f"{CANDIDATE}:{spec.id}") or engine.tags(f"{spec.repository}:")
            # The floating tag is the shortest one, and names the latest of several builds.
            for name in sorted(names, key=len):
                if engine.inspect(name).labels.get(f"{LABEL_PREFIX}.id") == image:
                    return name
            raise UsageError(f"{image} is not built", "build it first: invoke build")
    return image
