"""Images paired with their locks, and with the context that they are built from.

An image starts as a `LockedImage`: its inputs may still change, if a mirror has dropped a package.
Once they are ready, it is rendered once and becomes an `ImagePlan`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_images.build.own import parts
from torch_images.build.render import Context, render
from torch_images.config.image import ImageSpec, version_text
from torch_images.config.lock_requests import image_inputs
from torch_images.config.matrix import matrix
from torch_images.config.types import Config
from torch_images.errors import LockError
from torch_images.locks.image_lock import (
    ImageLock,
    image_lock,
    with_locked_extras,
    with_locked_trees,
)
from torch_images.locks.own import read_lock, require_parts

CANDIDATE = "torch-images-candidate"


@dataclass(frozen=True, kw_only=True)
class LockedImage:
    """An image with the lock that it is built from; `spec` has the trees of the lock.

    `small`: whether its layers of wheels are packed with `Effort.SMALL`.
    """

    spec: ImageSpec
    lock: ImageLock
    small: bool = False

    @property
    def target(self) -> str:
        """Its name in the bake file, where a dot would separate attributes."""
        return self.spec.id.replace(".", "_")

    @property
    def candidate(self) -> str:
        """Its tag until it is verified."""
        return f"{CANDIDATE}:{self.spec.id}"


@dataclass(frozen=True, kw_only=True)
class ImagePlan(LockedImage):
    """An image with its lock and with its build context."""

    context: Context

    @property
    def identity(self) -> str:
        """SHA-256 in hexadecimal over all inputs: equal identities mean equal content.

        It is the digest of the context, which includes the locks and the hash of each layer.
        """
        return self.context.digest


def lock_image(config: Config, spec: ImageSpec, locks: Path) -> LockedImage:
    """An image with its lock from the folder `locks`.

    That of a user's own image is in the project's folder. Raises LockError for a lock that is
    missing, or does not match images.yaml or the project.
    """
    lock = read_lock(spec) if spec.own else image_lock(config, spec, locks)
    return locked(config, spec, lock)


def lock_images(config: Config, specs: Sequence[ImageSpec], locks: Path) -> tuple[LockedImage, ...]:
    """Images with their locks, in the same order. Raises LockError as `lock_image` does."""
    return tuple(lock_image(config, spec, locks) for spec in specs)


def locked(config: Config, spec: ImageSpec, lock: ImageLock) -> LockedImage:
    """An image with a lock that is already read; its trees may be a user's own."""
    spec = with_locked_extras(config, with_locked_trees(spec, lock), lock)
    return LockedImage(spec=spec, lock=lock)


def plan_image(config: Config, image: LockedImage, root: Path) -> ImagePlan:
    """Render an image; `root` is the folder of this project, with docker/ and scripts/.

    Raises LockError for a user's own image if other files would enter it than when it was locked.
    """
    context = render(config, image.spec, image.lock, root)
    if own := image.spec.own:
        require_parts(own, parts(config, own, image.lock, root))
    return ImagePlan(spec=image.spec, lock=image.lock, small=image.small, context=context)


def plan_images(
    config: Config, specs: Sequence[ImageSpec], root: Path, locks: Path
) -> tuple[ImagePlan, ...]:
    """Images as they are built from their locks, if no mirror has dropped an input.

    Raises LockError as `lock_image` does.
    """
    return tuple(plan_image(config, image, root) for image in lock_images(config, specs, locks))


def identities(config: Config, root: Path, locks: Path) -> dict[str, str]:
    """The identity of each image of the catalogue by its identifier.

    It is "" where a lock does not match images.yaml. An image that lacks a lock is left out.
    """
    images = {}
    for spec in matrix(config):
        if all(item.path(locks).exists() for item in image_inputs(config, spec)):
            images[spec.id] = ""
            with contextlib.suppress(LockError):
                images[spec.id] = plan_image(config, lock_image(config, spec, locks), root).identity
    return images


def version(config: Config, image: ImagePlan) -> str:
    """The version of an image, also its immutable tag: "2.11.0-sm120-runtime-<inputs>".

    It ends in "-arm64" for an image for linux/arm64, then in "-unlocked" if it has a tree of
    --torch-source, then in "-small" if its layers are packed small.
    """
    spec, ends = image.spec, ["unlocked"] if image.lock.unlocked else []
    ends += ["small"] if image.small else []
    return version_text(config, spec, image.identity[:12] + spec.platform.suffix, *ends)
