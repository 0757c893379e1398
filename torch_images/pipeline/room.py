"""Room on the engine's disk for the next of some images, and the order that needs the least of it.

Room comes from what can be made again. What later images start from goes last: the engine takes
half a minute to unpack it again.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch_images.build.built import ours
from torch_images.build.diskspace import disk_needed
from torch_images.build.job import Job
from torch_images.build.plan import LockedImage, lock_image
from torch_images.build.prepare import base_maker
from torch_images.config.image import ImageSpec
from torch_images.errors import LockError, UsageError
from torch_images.host.buildx import cache_records, forget
from torch_images.host.cache import Part
from torch_images.layers.make import cached
from torch_images.layers.parent import parent_name
from torch_images.layers.plan import LayerPlan, all_plans
from torch_images.maintain import gc
from torch_images.oci.layout import Layer

_NEVER = 1_000_000  # the turn of a parent image that no image starts from
_CHECKS = 2_000_000_000  # bytes for the containers of checks that run meanwhile


@dataclass(frozen=True, kw_only=True)
class _Stack:
    """What an image starts from: the diff id of its base, and the plans of its layers of wheels.

    `ready` are the layers that the cache has, by the key of their plan. `base` is None for one that
    it lacks.
    """

    base: str | None
    plans: Sequence[LayerPlan]
    ready: Mapping[str, Layer]

    def begins(self, diff_ids: Sequence[str]) -> bool:
        """Whether these are the lowest ones, from the base up."""
        return bool(diff_ids) and self.layers()[: len(diff_ids)] == (*diff_ids,)

    def layers(self) -> tuple[str | None, ...]:
        """Their diff ids, from the base up; None for one that the cache lacks."""
        layers = (self.ready.get(plan.key) for plan in self.plans)
        return (self.base, *(layer.diff_id if layer else None for layer in layers))

    def names(self) -> set[str]:
        """The names of its layers in the cache."""
        return {f"{Part.LAYERS}/{plan.key}" for plan in self.plans}


@dataclass(frozen=True, kw_only=True)
class _Parent:
    """A parent image that no container uses.

    `layers` are its diff ids. `turn` counts the images before the first one that starts from it.
    """

    item: gc.Item
    layers: tuple[str, ...]
    turn: int


def libraries(spec: ImageSpec) -> tuple[str, str, str]:
    """What stands for the libraries below an image. Images with equal ones share layers."""
    return spec.cuda.version, spec.base.name, spec.torch


def loaded_first(job: Job, specs: Sequence[ImageSpec]) -> list[ImageSpec]:
    """Images in another order: those first whose parent images the engine already has.

    Images with the same libraries still follow each other. The largest such group comes last, and
    ends with its plain images for one architecture: nothing runs beside the last check of all, so
    it should be a short one.
    """
    there = {parent.layers for parent in _parents(job, ())}
    loaded = {s for s in specs for stack in _stacks(job, [s]) if stack.layers() in there}
    near, counts = set(map(libraries, loaded)), Counter(map(libraries, specs))

    def turn(spec: ImageSpec) -> tuple[object, ...]:
        own, plain = libraries(spec), spec.narrowed and not spec.variant.extras
        return own not in near, counts[own], own, spec not in loaded, plain

    return sorted(specs, key=turn)


def make_room(
    job: Job, image: LockedImage, later: Sequence[ImageSpec], wait: Callable[[], bool]
) -> None:
    """If the disk is too small for an image, remove what can be made again; no more than needed.

    In this order: parent images that neither it nor `later` ones start from; what BuildKit keeps
    of this project; parent images of `later`, the last one's first; images whose checks run, for
    which `wait` waits while it returns True; layers in the cache that are not the image's, those
    that are used soonest last. BuildKit's cache of other projects stays.
    """
    engine, cache = job.engine, job.workspace.cache
    root = engine.local_root()
    if root is None or shutil.disk_usage(root).free >= disk_needed(job.config, [image]) + _CHECKS:
        return
    stacks = [_stack(job, image), *_stacks(job, later)]
    parents = sorted(_parents(job, stacks), key=lambda parent: (-parent.turn, parent.item.used))
    # Layers in the cache are in the engine only as long as a parent image there has them.
    own = {layer for parent in parents if not parent.turn for layer in parent.layers}
    ready = stacks[0].ready
    there = {key for key, layer in ready.items() if layer.diff_id in own}
    needed = disk_needed(job.config, [image], there) + _CHECKS
    # On another disk, files of the cache do not fill this one.
    same_disk = cache.stat().st_dev == root.stat().st_dev
    if same_disk:  # the estimate counts a copy in the cache of each layer that is not in the engine
        needed -= sum(layer.size for key, layer in ready.items() if key not in there)

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
    layers_gone = remove(_layers(job, stacks) if same_disk and short() else ())
    job.shown.say(
        f"freed disk: {parents_gone} parent images, {len(steps)} entries of BuildKit's cache, "
        f"{layers_gone} layers; `invoke gc --cache` also removes the rest of that cache, "
        "even of other projects"
    )


def _stack(job: Job, image: LockedImage) -> _Stack:
    plans = all_plans(job.config, image.spec, image.lock)
    bases = base_maker(job.workspace, job.run, job.options)
    return _Stack(
        base=bases.layer(image.spec.base, image.lock.base),
        plans=plans,
        ready=cached(plans, job.workspace.cache),
    )


def _stacks(job: Job, specs: Sequence[ImageSpec]) -> Iterator[_Stack]:
    """The stacks of images, without those that lack a lock: they will not be built."""
    for spec in specs:
        with contextlib.suppress(LockError):
            yield _stack(job, lock_image(job.config, spec, job.workspace.locks))


def _parents(job: Job, stacks: Sequence[_Stack]) -> Iterator[_Parent]:
    """The parent images that no container uses, and which of the images start from them.

    `stacks` are those of the images, the next one's first.
    """
    engine = job.engine
    for image in engine.details(ours(job.workspace.cache, engine)):
        name = parent_name(image.id)
        if image.in_use or name not in image.tags:
            continue
        layers: tuple[str, ...] = ()
        with contextlib.suppress(UsageError):  # it is gone
            layers = engine.inspect(name).layers
        turns = (turn for turn, stack in enumerate(stacks) if stack.begins(layers))
        yield _Parent(
            item=gc.of_image(image, lambda now: not now.in_use, name),
            layers=layers,
            turn=next(turns, _NEVER),
        )


def _layers(job: Job, stacks: Sequence[_Stack]) -> list[gc.Item]:
    """The layers of the cache that the next image lacks, those that are used soonest last."""
    turns: dict[str, int] = {}
    for turn, stack in enumerate(stacks):
        for name in stack.names():
            turns.setdefault(name, turn)
    items = [i for i in gc.cache(job.workspace.cache) if i.name.startswith(f"{Part.LAYERS}/")]
    return sorted(
        (item for item in items if turns.get(item.name, _NEVER)),
        key=lambda item: (-turns.get(item.name, _NEVER), item.used),
    )
