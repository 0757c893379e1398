"""Images paired with their locks, as the later stages take them. Reads locks and templates only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_images.build.render import with_recipe
from torch_images.config.matrix import ImageSpec
from torch_images.config.types import Config
from torch_images.locks.image_lock import ImageLock, image_lock, with_locked_trees

CANDIDATE = "torch-images-candidate"


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """An image together with the lock that it is built from."""

    spec: ImageSpec
    lock: ImageLock

    @property
    def target(self) -> str:
        """Its name in the bake file, where a dot would mean an attribute."""
        return self.spec.id.replace(".", "_")

    @property
    def candidate(self) -> str:
        """The tag it has until it is verified."""
        return f"{CANDIDATE}:{self.spec.id}"


def plan(
    config: Config, specs: Sequence[ImageSpec], root: Path, locks: Path
) -> tuple[ImagePlan, ...]:
    """Pair each image with its lock; `root` is the project's folder.

    Raises LockError for a lock that is missing or out of step.
    """
    return tuple(pair(config, spec, image_lock(config, spec, locks), root) for spec in specs)


def pair(config: Config, spec: ImageSpec, lock: ImageLock, root: Path) -> ImagePlan:
    """An image with what it is built from, and what the build does with that."""
    spec = with_locked_trees(spec, lock)
    return ImagePlan(spec=spec, lock=with_recipe(config, spec, lock, root))
