"""Room on the engine's disk for the next of some images, from what can be made again.

What later images start from goes last: the engine takes half a minute to unpack it again.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from torch_images.build.built import ours
from torch_images.build.diskspace import disk_needed
from torch_images.build.job import Job
from torch_images.build.plan import LockedImage, lock_image
from torch_images.config.image import ImageSpec
from torch_images.errors import LockError, UsageError
from torch_images.host.buildx import cache_records, forget
from torch_images.host.cache import Part
from torch_images.layers.make import cached
from torch_images.layers.parent import parent_name
from torch_images.layers.plan import LayerPlan, all_plans
from torch_images.maintain import gc

_NEVER = 1_000_000  # the turn of a parent image that no image starts from
_CHECKS = 2_000_000_000  # bytes for the containers of checks that run meanwhile


@dataclass(frozen=True, kw_only=True)
class _Parent:
    """A parent image that no container uses.

    `layers` are its diff ids. `turn` counts the images before the first one that starts from it.
    """

    item: gc.Item
    layers: tuple[str, ...]
    turn: int


def make_room(
    job: Job, image: LockedImage, later: Sequence[ImageSpec], wait: Callable[[], bool]
) -> None:
    """If the disk is too small for an image, remove what can be made again; no more than needed.

    In this order: parent images that neither it nor `later` ones start from; what BuildKit keeps
    of this project; parent images of `later`, the last one's first; images whose checks run, for
    which `wait` waits while it returns True; layers in the cache that are not the image's, those
    of `later` images last. BuildKit's cache of other projects stays.
    """
    engine, cache = job.engine, job.workspace.cache
    root = engine.local_root()
    if root is None or shutil.disk_usage(root).free >= disk_needed(job.config, [image]) + _CHECKS:
        return
    stacks = [all_plans(job.config, image.spec, image.lock), *(_plans(job, s) for s in later)]
    parents = sorted(_parents(job, stacks), key=lambda parent: (-parent.turn, parent.item.used))
    # Layers in the cache are in the engine only as long as a parent image there has them.
    own = {layer for parent in parents if not parent.turn for layer in parent.layers}
    there = {key for key, layer in cached(stacks[0], cache).items() if layer in own}
    needed = disk_needed(job.config, [image], there) + _CHECKS

    def short() -> bool:
        return shutil.disk_usage(root).free < needed

    def remove(items: Iterable[gc.Item]) -> int:
        return sum(len([*gc.remove([item], engine)]) for item in items if short())

    if not short():
        return
    parents_gone = remove(parent.item for parent in parents if parent.turn == _NEVER)
    steps = gc.own_steps(cache_records(job.run)) if short() else ()
    if steps:
        forget(steps, job.run)
    parents_gone += remove(parent.item for parent in parents if 0 < parent.turn < _NEVER)
    while short() and wait():
        pass
    # On another disk, files of the cache do not fill this one.
    same_disk = cache.stat().st_dev == root.stat().st_dev
    layers_gone = remove(_layers(job, stacks) if same_disk and short() else ())
    job.shown.say(
        f"freed disk: {parents_gone} parent images, {len(steps)} entries of BuildKit's cache, "
        f"{layers_gone} layers; `invoke gc --cache` also removes the rest of that cache, "
        "even of other projects"
    )


def _plans(job: Job, spec: ImageSpec) -> Sequence[LayerPlan]:
    try:
        return all_plans(job.config, spec, lock_image(job.config, spec, job.workspace.locks).lock)
    except LockError:  # it will not be built
        return ()


def _parents(job: Job, stacks: Sequence[Sequence[LayerPlan]]) -> list[_Parent]:
    """The parent images that no container uses, and which of the images start from them.

    `stacks` are the layers of the images, the next one's first.
    """
    engine, cache = job.engine, job.workspace.cache
    layers = cached({plan for stack in stacks for plan in stack}, cache)
    chains = [[layers.get(plan.key) for plan in stack] for stack in stacks]
    parents = []
    for image in engine.details(ours(cache, engine)):
        name = parent_name(image.id)
        if image.in_use or name not in image.tags:
            continue
        own: tuple[str, ...] = ()
        with contextlib.suppress(UsageError):  # it is gone
            own = engine.inspect(name).layers
        above = [*own[1:]]  # the first is the base's
        turns = (
            turn for turn, chain in enumerate(chains) if above and chain[: len(above)] == above
        )
        parents.append(
            _Parent(
                item=gc.of_image(image, lambda now: not now.in_use, name),
                layers=own,
                turn=next(turns, _NEVER),
            )
        )
    return parents


def _layers(job: Job, stacks: Sequence[Sequence[LayerPlan]]) -> list[gc.Item]:
    """The layers of the cache that the next image lacks, those of later ones last."""
    own, *others = ({f"{Part.LAYERS}/{plan.key}" for plan in stack} for stack in stacks)
    later: Collection[str] = set().union(*others)
    items = [
        item for item in gc.cache(job.workspace.cache) if item.name.startswith(f"{Part.LAYERS}/")
    ]
    return sorted(
        (item for item in items if item.name not in own),
        key=lambda item: (item.name in later, item.used),
    )
