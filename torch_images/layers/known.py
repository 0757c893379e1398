"""Parent images whose digests are known before anything is made, from the record of layers. Pure.

The base's layer and those of the wheels are recorded in locks/layers.txt, and nothing else decides
about the bytes of a parent image's configuration and manifest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_images.config.types import Base
from torch_images.fetch import bootstrap
from torch_images.layers.plan import LayerPlan
from torch_images.locks.debs import DebLock
from torch_images.locks.layers import Record, RecordedLayer
from torch_images.oci.layout import Image, Layer, image

# A layer's blob is about as large as its wheels: 2.37 GB of 2.74 for CUDA 13.0. So on a slow link
# a layer takes no longer to come than its wheels do, if it is hardly larger than they are.
_AS_LARGE = 1.1
_SMALL = 1 << 20  # bytes that matter on no link


@dataclass(frozen=True, kw_only=True)
class KnownBase:
    """A bootstrapped base that is recorded: its layer, and the image that it is."""

    layer: RecordedLayer
    image: Image


@dataclass(frozen=True, kw_only=True)
class KnownParent:
    """A parent image that is recorded: the context of a Dockerfile that it stands for, its layers.

    `image` has its manifest and configuration, `layers` all of its layers, the base's first.
    """

    context: str
    image: Image
    layers: tuple[RecordedLayer, ...]


def layer_of(held: RecordedLayer) -> Layer:
    """A recorded layer as images name it."""
    return Layer(digest=held.digest, diff_id=held.diff_id, size=held.size)


def known_base(record: Record, base: Base, lock: DebLock, root: Path) -> KnownBase | None:
    """A bootstrapped base as it is recorded; None if it is not.

    `root` is the project's folder. One that a build resolved for itself is not recorded.
    """
    held = record.get(bootstrap.key(lock, bootstrap.dpkg_options(root)))
    if held is None or lock.unlocked:
        return None
    return KnownBase(layer=held, image=bootstrap.image_of(base, lock, layer_of(held)))


def known_parents(
    record: Record,
    groups: Mapping[str, Sequence[LayerPlan]],
    base: KnownBase,
    *,
    compiles: bool,
) -> tuple[KnownParent, ...]:
    """What an image starts from, as `ParentImages` makes it for an engine; () if not all is known.

    An image that is not on a bootstrapped base has copies of its wheels' files, in other layers.
    """
    if not all(plan.key in record for plans in groups.values() for plan in plans):
        return ()
    parent = _known("parent", record, [p for plans in groups.values() for p in plans], base)
    if not compiles:
        return (parent,)
    return (_known("libraries", record, groups.get("cuda", ()), base), parent)


def worth_pulling(parents: Sequence[KnownParent], in_engine: Collection[str], instead: int) -> bool:
    """Whether to pull parent images: not where that needs more bytes than making them does.

    `in_engine` has the diff ids of layers that the engine need not pull. `instead` is how many
    bytes of wheels and packages would be fetched.
    """
    layers = {layer.digest: layer for parent in parents for layer in parent.layers}
    pulled = sum(layer.size for layer in layers.values() if layer.diff_id not in in_engine)
    return instead > 0 and _hardly_more(pulled, instead)


def worth_fetching(held: RecordedLayer, plan: LayerPlan) -> bool:
    """Whether to fetch a layer: not where its wheels are fewer bytes."""
    return _hardly_more(held.size, plan.size)


def _hardly_more(size: int, instead: int) -> bool:
    return size <= instead * _AS_LARGE + _SMALL


def _known(
    context: str, record: Record, plans: Sequence[LayerPlan], base: KnownBase
) -> KnownParent:
    held = [record[plan.key] for plan in plans]
    titled = [(plan.title, layer_of(h)) for plan, h in zip(plans, held, strict=True)]
    return KnownParent(
        context=context,
        image=image(base.image, titled),
        layers=(base.layer, *held),
    )
