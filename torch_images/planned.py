"""Images paired with their locks, as the later stages take them. Reads locks and templates only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_images.config import Config
from torch_images.lock import ImageLock, image_lock, settled
from torch_images.matrix import ImageSpec
from torch_images.render import with_recipe

CANDIDATE = "torch-images-candidate"
# What images start from, in the image store of an engine that builds itself; see foundation.py.
FOUNDATION = "torch-images-foundation"


@dataclass(frozen=True, kw_only=True)
class Planned:
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
) -> tuple[Planned, ...]:
    """Pair each image with its lock; `root` is the project's folder.

    Raises LockError for a lock that is missing or out of step.
    """
    return tuple(pair(config, spec, image_lock(config, spec, locks), root) for spec in specs)


def pair(config: Config, spec: ImageSpec, lock: ImageLock, root: Path) -> Planned:
    """An image with what it is built from, and what the build does with that."""
    spec = settled(spec, lock)
    return Planned(spec=spec, lock=with_recipe(config, spec, lock, root))
