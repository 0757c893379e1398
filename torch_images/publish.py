"""Verified images -> tags; and the way back, from a tag to the image of the matrix.

A tag says only what was proved: nothing here tags without a passing report of the same digest.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace

from torch_images.bake import CANDIDATE, Planned
from torch_images.build import plan
from torch_images.config import Config
from torch_images.engine import Engine
from torch_images.errors import LockError, UsageError, VerifyError
from torch_images.lock import ImageLock, parse_image_lock, settled
from torch_images.matrix import ImageSpec, choose, matrix
from torch_images.render import FOLDER, LABEL_PREFIX, version
from torch_images.runner import Runner
from torch_images.verify import VerifyReport, require
from torch_images.workplace import Workplace

ORIGINAL = "torch-images-original"  # keeps an image while it is built again, see reproduce.py


def tags(config: Config, planned: Planned) -> tuple[str, ...]:
    """The local tags of an image: the one that names its lock, then the short one to type.

    Only the default source, base and variant have the short one, such as "torch-cu130:sm120".
    """
    spec, defaults = planned.spec, config.defaults
    found = [f"{spec.repository}:{version(config, spec, planned.lock)}"]
    chosen = (spec.source.name, spec.base.name, spec.variant.name)
    if chosen == (defaults.source, defaults.base, defaults.variant):
        found.append(f"{spec.repository}:{spec.arch_name}")
    return tuple(found)


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
        lock = carried_lock(reference, engine)
        return reference, Planned(spec=settled(spec, lock), lock=lock)
    [planned] = plan(config, [spec], place.locks)
    if labels.get(f"{LABEL_PREFIX}.compat") == "none":
        planned = replace(planned, lock=replace(planned.lock, compat=None))
    return reference, planned


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
    for spec in matrix(config):
        if spec.id == identifier:
            return spec
    found = {
        axis: labels.get(f"{LABEL_PREFIX}.{axis}", "") for axis in ("cuda", "source", "variant")
    }
    arches = labels.get(f"{LABEL_PREFIX}.arches", "").replace(" ", ",")
    for base in config.bases:
        spec = choose(config, **found, arch=arches, base=base.name)
        if spec.id == identifier:
            return spec
    raise UsageError(f"image {identifier} is not in images.yaml", "see `invoke matrix`")


def clean(
    config: Config,
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
        shutil.rmtree(folder)
        lines.append(f"removed {folder.relative_to(place.root)}")
    prefixes = [f"{CANDIDATE}:", f"{ORIGINAL}:"]
    if images:
        prefixes += sorted({f"{spec.repository}:" for spec in matrix(config)})
    for prefix in prefixes:
        for name in engine.tags(prefix):
            engine.untag(name)
            lines.append(f"removed image {name}")
    for name in engine.untagged(f"{LABEL_PREFIX}.id") if images else ():
        engine.untag(name)
        lines.append(f"removed image {name}, which had no tag any more")
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
            for name in names:
                if engine.inspect(name).labels.get(f"{LABEL_PREFIX}.id") == image:
                    return name
            raise UsageError(f"{image} is not built", "build it first: invoke build")
    return image
