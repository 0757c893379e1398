"""The record of layers: filled from what was really packed, and compared with packing again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_images.build.plan import LockedImage
from torch_images.build.prepare import Preparer
from torch_images.config.types import Base, Config
from torch_images.errors import TorchImagesError
from torch_images.fetch.bootstrap import dpkg_options, image_of, key, layout_folder
from torch_images.host.cache import Part
from torch_images.host.workspace import Workspace
from torch_images.layers.make import kept_layer, making
from torch_images.layers.plan import LayerPlan, layer_plans
from torch_images.locks.debs import DebLock
from torch_images.locks.layers import Record, RecordedLayer
from torch_images.oci.layout import Layer, first_layer, layout_digest

SAME, DIFFERS, FAILED, UNKNOWN = "same", "differs", "failed", "not recorded"


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What became of packing one layer again: one of SAME, DIFFERS, FAILED and UNKNOWN."""

    title: str
    state: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What images are made of, by key: plans of the layers of wheels, and bootstrapped bases."""

    plans: dict[str, LayerPlan]
    bases: dict[str, tuple[Base, DebLock]]

    @property
    def keys(self) -> set[str]:
        """The keys of all of them."""
        return {*self.plans, *self.bases}


def wanted(config: Config, images: Sequence[LockedImage], root: Path) -> Wanted:
    """What images are made of, each once; `root` is the project's folder."""
    plans: dict[str, LayerPlan] = {}
    bases: dict[str, tuple[Base, DebLock]] = {}
    options = dpkg_options(root)
    for image in images:
        for group in layer_plans(config, image.spec, image.lock).values():
            plans |= {plan.key: plan for plan in group}
        lock = image.lock.base
        if not lock.image and not lock.unlocked:
            bases[key(lock, options)] = image.spec.base, lock
    return Wanted(plans=plans, bases=bases)


def found(parts: Wanted, workspace: Workspace) -> dict[str, RecordedLayer]:
    """Those parts of images that this user's cache has, as they were packed, by key.

    Raises BuildError for one that is damaged.
    """
    layers: dict[str, RecordedLayer] = {}
    for name, plan in parts.plans.items():
        if layer := kept_layer(plan, workspace.cache):
            layers[name] = recorded(plan.title, name, layer)
    for name, (base, lock) in parts.bases.items():
        folder = layout_folder(base, lock, workspace.cache, workspace.root)
        if folder.exists():
            layer = first_layer(folder)
            # Only what a parent's digest can be computed from.
            if image_of(base, lock, layer).digest == layout_digest(folder):
                layers[name] = recorded(_title(base, lock), name, layer)
    return layers


def merged(old: Record, keys: set[str], new: Record) -> dict[str, RecordedLayer]:
    """The record with what was packed here. Entries that no image has any more are dropped."""
    return {name: layer for name, layer in {**old, **new}.items() if name in keys}


def recorded(title: str, name: str, layer: Layer) -> RecordedLayer:
    """A layer as the record has it; `name` is its key."""
    return RecordedLayer(
        title=title, key=name, digest=layer.digest, diff_id=layer.diff_id, size=layer.size
    )


def pack_again(
    parts: Wanted, record: Record, workspace: Workspace, preparer: Preparer
) -> Iterator[Packed]:
    """Pack all recorded layers once more, one after the other, and compare each with the record.

    The cache of `workspace` is an empty folder; a layer that was compared is removed from it.
    `preparer` works there, too, and makes bases. What cannot be fetched any more is FAILED.
    """
    cache = workspace.cache
    for name, plan in sorted(parts.plans.items(), key=lambda item: item[1].title):
        held = record.get(name)
        if held is None:
            yield Packed(title=plan.title, state=UNKNOWN)
            continue
        try:
            with making([[plan]], cache, workspace.network, fresh=True) as made:
                layer = made[plan].result().layer
            yield compared(held, layer)
        except TorchImagesError as error:
            yield Packed(title=plan.title, state=FAILED, detail=str(error))
        shutil.rmtree(cache / Part.LAYERS, ignore_errors=True)
    for name, (base, lock) in parts.bases.items():
        held = record.get(name)
        if held is None:
            yield Packed(title=_title(base, lock), state=UNKNOWN)
            continue
        try:
            yield compared(held, first_layer(preparer.layout(base, lock)))
        except TorchImagesError as error:
            yield Packed(title=held.title, state=FAILED, detail=str(error))


def compared(held: RecordedLayer, layer: Layer) -> Packed:
    """A recorded layer beside the same one packed again."""
    pairs = (
        ("blob", held.digest, layer.digest),
        ("tar", held.diff_id, layer.diff_id),
        ("size", held.size, layer.size),
    )
    wrong = [f"{what} {now}, recorded is {then}" for what, then, now in pairs if then != now]
    state = DIFFERS if wrong else SAME
    return Packed(title=held.title, state=state, detail="; ".join(wrong))


def _title(base: Base, lock: DebLock) -> str:
    return f"base {base.name}, {lock.platform}"
