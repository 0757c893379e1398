"""Locked wheels -> layers. Pure.

Each large wheel has its own layer, and the small ones of a group share one. So a new version of one
does not rebuild, push or pull the others, and all images of a CUDA version share layers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch_images.config.image import ImageSpec
from torch_images.config.types import Config, Removal
from torch_images.locks.image_lock import ImageLock
from torch_images.locks.wheels import LockedWheel
from torch_images.oci.layout import COMPRESSOR, SMALL_COMPRESSOR

# Raise this when the same wheels give another layer than before.
_RECIPE = 2

# The groups of wheels, the most stable first: name and title.
_GROUPS = (
    ("cuda", "CUDA libraries"),
    ("torch", "PyTorch"),
    ("triton", "Triton"),
    ("python", "Python packages"),
)

# Wheels of at least this many bytes have their own layers.
_LARGE = 20_000_000


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """A layer to make: its wheels, their Python, and the removals.

    `small`: compress it with `Effort.SMALL`.
    """

    title: str
    wheels: tuple[LockedWheel, ...]
    python: str
    removals: tuple[Removal, ...] = ()
    arches: tuple[int, ...] = ()
    small: bool = False

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def key(self) -> str:
        """SHA-256, in hexadecimal, over all that determines the layer's bytes."""
        facts = {
            "recipe": f"{_RECIPE}, {SMALL_COMPRESSOR if self.small else COMPRESSOR}",
            "python": self.python,
            "wheels": [wheel.line for wheel in self.wheels],
            "removals": [[r.files, r.code, r.symbols, r.lists] for r in self.removals],
            "arches": self.arches,
        }
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def wheel_groups(lock: ImageLock) -> tuple[tuple[str, str, tuple[LockedWheel, ...]], ...]:
    """The groups of wheels: name, title and wheels of each, the most stable first.

    Wheels that the build compiles are groups without wheels.
    """
    groups: dict[str, list[LockedWheel]] = {name: [] for name, _ in _GROUPS}
    for wheel in sorted(lock.wheels.wheels):
        groups[_group(wheel)].append(wheel)
    kept = [(name, title) for name, title in _GROUPS if groups[name] or name in lock.compiled]
    return tuple((name, title, tuple(groups[name])) for name, title in kept)


def removals_of(config: Config, spec: ImageSpec) -> list[Removal]:
    """The removals from wheels of an image."""
    cuda, platform = spec.cuda.version, spec.platform
    return [r for r in config.removals if r.applies(cuda, platform, narrowed=spec.narrowed)]


def layer_plans(
    config: Config, spec: ImageSpec, lock: ImageLock, *, small: bool = False
) -> dict[str, tuple[LayerPlan, ...]]:
    """The layers of an image's wheels by group, the most stable first.

    `small` ones end in a layer without files. BuildKit treats parent images with equal tars as the
    same, however they are compressed: the extra layer separates its results for them.
    """
    removals = removals_of(config, spec)
    arches = [a.capability.major * 10 + a.capability.minor for a in spec.architectures]
    plans = {
        name: plan_layers(title, wheels, spec.base.python, removals, arches)
        for name, title, wheels in wheel_groups(lock)
        if wheels
    }
    if not small:
        return plans
    last = LayerPlan(
        title="no files: the layers below are packed small", wheels=(), python=spec.base.python
    )
    groups = {**plans, "small": (last,)}
    return {name: tuple(replace(p, small=True) for p in ps) for name, ps in groups.items()}


def all_plans(
    config: Config, spec: ImageSpec, lock: ImageLock, *, small: bool = False
) -> list[LayerPlan]:
    """The plans of `layer_plans` in one list, from the base up."""
    groups = layer_plans(config, spec, lock, small=small).values()
    return [plan for group in groups for plan in group]


def plan_layers(
    title: str,
    wheels: Sequence[LockedWheel],
    python: str,
    removals: Sequence[Removal] = (),
    arches: Sequence[int] = (),
) -> tuple[LayerPlan, ...]:
    """The layers of a group of wheels, the largest first, which is the order of packing.

    A layer has only the removals of its own wheels, and depends on `arches` only if one of them
    removes code or corrects a list, so that other images can share it.
    """
    large = sorted((w for w in wheels if w.size >= _LARGE), key=lambda w: (-w.size, w.name))
    small = tuple(w for w in sorted(wheels) if w.size < _LARGE)
    titled: list[tuple[str, tuple[LockedWheel, ...]]]
    titled = [(f"{w.name} {w.version}", (w,)) for w in large]
    titled += [(f"{title}, the small ones" if large else title, small)] if small else []
    plans = []
    for name, own in titled:
        names = {wheel.name for wheel in own}
        ours = tuple(r for r in removals if names & set(r.wheels))
        cut = tuple(sorted(set(arches))) if any(r.code or r.lists for r in ours) else ()
        plans.append(LayerPlan(title=name, wheels=own, python=python, removals=ours, arches=cut))
    return tuple(plans)


def _group(wheel: LockedWheel) -> str:
    if wheel.name in ("torch", "triton"):
        return wheel.name
    return "cuda" if wheel.of_cuda else "python"
