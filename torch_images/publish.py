"""Verified images -> tags; and the way back, from a tag to the image of the matrix.

A tag says only what was proved: nothing here tags without a passing report of the same digest.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch_images.config import Config
from torch_images.engine import Engine, ImageInfo
from torch_images.errors import LockError, UsageError, VerifyError
from torch_images.lock import ImageLock, image_lock, parse_image_lock
from torch_images.matrix import ImageSpec, choose, matrix
from torch_images.planned import CANDIDATE, FOUNDATION, Planned, pair
from torch_images.render import FOLDER, LABEL_PREFIX, PRUNED_LABEL, version
from torch_images.runner import Runner
from torch_images.tagging import short
from torch_images.verify import (
    VerifyReport,
    claim_of,
    read_report,
    report_path,
    require,
    suite_hash,
)
from torch_images.workplace import Workplace

ORIGINAL = "torch-images-original"  # keeps an image while it is built again, see reproduce.py


@dataclass(frozen=True, kw_only=True)
class Proved:
    """An image of the engine with what it should be and the passing report that says that it is."""

    planned: Planned
    info: ImageInfo
    report: VerifyReport


def tags(config: Config, planned: Planned) -> tuple[str, ...]:
    """The local tags of an image: the one that names its inputs, then the short one to type.

    They are this machine's own and follow its last build; see tagging.py for those of a registry.
    """
    spec = planned.spec
    names = version(config, spec, planned.lock), short(config, spec)
    return tuple(f"{spec.repository}:{name}" for name in names)


def tag(config: Config, planned: Planned, report: VerifyReport, engine: Engine) -> tuple[str, ...]:
    """Give an image its tags and drop its candidate tag.

    Raises VerifyError, and tags nothing, unless the report is a pass of exactly this image.
    """
    require(report)
    if engine.inspect(planned.candidate).id != report.digest:
        raise VerifyError(f"the report is of {report.digest}, not of {planned.candidate}")
    found = tags(config, planned)
    for name in found:
        repository, _, label = name.rpartition(":")
        engine.tag(report.digest, repository, label)
    engine.untag(planned.candidate)
    return found


def identify(config: Config, image: str, place: Workplace, engine: Engine) -> tuple[str, Planned]:
    """A built image by tag, id or identifier of the matrix: its reference and what it should be.

    An image that a build resolved a lock for is held to the lock that it carries, any other to the
    one in locks/.
    Raises UsageError for an image that the engine does not have or that is not one of ours.
    """
    reference = _find(config, image, engine)
    labels = engine.inspect(reference).labels
    spec = spec_of(config, reference, labels)
    if labels.get(f"{LABEL_PREFIX}.unlocked"):
        return reference, pair(config, spec, carried_lock(reference, engine), place.root)
    lock = image_lock(config, spec, place.locks)
    if labels.get(f"{LABEL_PREFIX}.compat") == "none":
        lock = replace(lock, compat=None)
    return reference, pair(config, spec, lock, place.root)


def proved(config: Config, image: str, place: Workplace, engine: Engine) -> Proved:
    """A verified image, by tag, id or identifier.

    Raises VerifyError unless there is a passing report of exactly this digest, by the checks that
    this checkout has; UsageError as `publish.identify` does.
    """
    reference, planned = identify(config, image, place, engine)
    info = engine.inspect(reference)
    report = read_report(report_path(place, info.id))
    advice = f"run `invoke verify {image}`"
    if report is None:
        raise VerifyError(f"{image} ({info.id}) was never verified here", advice)
    require(report)
    if report.suite != suite_hash(place.root, claim_of(config, planned, info)):
        raise VerifyError(f"{image} ({info.id}) was verified by other checks than these", advice)
    return Proved(planned=planned, info=info, report=report)


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


def clean(
    place: Workplace,
    engine: Engine,
    run: Runner,
    *,
    images: bool = False,
    cache: bool = False,
) -> tuple[str, ...]:
    """Remove what builds leave: contexts and candidates, and on request images and build cache.

    The cached bases and tools stay, and so do reports. Returns a line for each thing removed.
    """
    lines = []
    for folder in sorted(place.output.glob("cu*")):
        if folder.is_symlink() or not (folder / "layers.json").is_file():
            continue  # no context of ours
        shutil.rmtree(folder)
        lines.append(f"removed {folder.relative_to(place.root)}")
    for prefix in (f"{CANDIDATE}:", f"{ORIGINAL}:"):
        for name in engine.tags(prefix):
            engine.untag(name)
            lines.append(f"removed image {name}")
    for image in engine.ours(f"{LABEL_PREFIX}.id", FOUNDATION) if images else ():
        name = ", ".join(image.tags) or f"{image.id}, which had no tag any more"
        if image.in_use:
            lines.append(f"left image {name}: a container uses it")
        else:
            engine.untag(image.id)
            lines.append(f"removed image {name}")
    if not cache:
        return tuple(lines)
    pruned = run.run(["docker", "buildx", "prune", "--force", "--all"]).output.splitlines()
    lines.append(f"build cache: {pruned[-1].lower() if pruned else 'nothing to remove'}")
    return tuple(lines)


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
