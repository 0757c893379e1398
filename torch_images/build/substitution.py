"""What the images of one build take from registries, by the record in locks/layers.txt."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torch_images.build.plan import LockedImage
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.fetch.bootstrap import ReadyBase, layout_folder
from torch_images.host.cache import Part
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace
from torch_images.layers.known import (
    KnownBase,
    KnownParent,
    known_base,
    known_parents,
    worth_pulling,
)
from torch_images.layers.parent import PARENT_IMAGES, parent_name
from torch_images.layers.plan import LayerPlan, layer_plans
from torch_images.layers.substitutes import Substitutes
from torch_images.locks.layers import Record, read_record
from torch_images.oci.layout import Layer
from torch_images.platforms import AMD64

_SIDE_BY_SIDE = 4  # images that are pulled at the same time


@dataclass(frozen=True, kw_only=True)
class LayerCount:
    """Where the layers of an image's wheels came from; `repository` is "" if none was asked."""

    taken: int
    here: int
    packed: int
    repository: str = ""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What an image starts from that is in the engine already, whole: contexts, and the base."""

    contexts: dict[str, str]
    base: ReadyBase


@dataclass(frozen=True, kw_only=True)
class Known:
    """An image whose base and parent images are recorded."""

    image: LockedImage
    base: KnownBase
    parents: tuple[KnownParent, ...]


def known(config: Config, record: Record, image: LockedImage, root: Path) -> Known | None:
    """An image with its parent images as they are recorded; None if the record lacks a part.

    `root` is the project's folder.
    """
    spec, lock = image.spec, image.lock
    base = None if lock.base.image else known_base(record, spec.base, lock.base, root)
    if base is None:
        return None
    plans = layer_plans(config, spec, lock)
    parents = known_parents(record, plans, base, compiles=bool(lock.sources))
    return Known(image=image, base=base, parents=parents) if parents else None


class Substitution:
    """Layers for the images of one build. `namespace`: registry and owner; "" takes none anywhere.

    Raises LockError where the record is damaged.
    """

    def __init__(
        self, config: Config, images: Sequence[LockedImage], workspace: Workspace, namespace: str
    ) -> None:
        self._config, self._images, self._workspace = config, images, workspace
        self._record = read_record(workspace.locks) if namespace else {}
        self._plans = {
            i.target: [p for ps in layer_plans(config, i.spec, i.lock).values() for p in ps]
            for i in images
        }
        folder = workspace.cache / Part.LAYERS
        every = {plan for plans in self._plans.values() for plan in plans}
        self._cached = {plan for plan in every if (folder / plan.key).exists()}
        self._here: set[str] = set()  # targets of images whose parent the engine had
        names = {i.spec.repository for i in images if self._record}
        self._from = {
            name: Substitutes(f"{namespace}/{name}", self._record, workspace.network)
            for name in names
        }
        self._giver = {
            plan: self._from[i.spec.repository]
            for i in reversed(images)
            for plan in self._plans[i.target]
            if self._from
        }

    def starts(self, engine: Engine) -> dict[str, Start]:
        """What images start from, by target: of those whose parent images the engine has, or pulls.

        An engine of another processor is left out: it would not unpack what it pulls.
        """
        found = [
            one
            for image in self._images
            if self._record
            and image.spec.platform == AMD64
            and (one := known(self._config, self._record, image, self._workspace.root))
        ]
        if not found or engine.platform() != AMD64:
            return {}
        there = [one for one in found if _is_in(engine, one)]
        self._here = {one.image.target for one in there}
        if rest := [one for one in found if one not in there]:
            held = _layers_in(engine)
            with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
                got = list(pool.map(lambda one: self._pull(one, engine, held), rest))
            there += [one for one, is_there in zip(rest, got, strict=True) if is_there]
        return {one.image.target: _start(one) for one in there}

    def layer(self, plan: LayerPlan, target: Path) -> Layer | None:
        """Fetch a layer's blob to `target`; None where it is to be packed. Raises DiskError."""
        giver = self._giver.get(plan)
        return giver.fetch(plan, target) if giver else None

    def count(self, image: LockedImage) -> LayerCount:
        """Where the layers of an image came from, once all are there."""
        plans = self._plans[image.target]
        if image.target in self._here:
            return LayerCount(taken=0, here=len(plans), packed=0)
        taken = [p for p in plans if p in self._giver and p.key in self._giver[p].taken]
        here = [p for p in plans if p in self._cached and p not in taken]
        asked = self._from.get(image.spec.repository)
        return LayerCount(
            taken=len(taken),
            here=len(here),
            packed=len(plans) - len(taken) - len(here),
            repository=asked.repository if asked and len(here) < len(plans) else "",
        )

    def _pull(self, one: Known, engine: Engine, held: set[str]) -> bool:
        """Whether the engine has pulled an image's parent images; `held` as in `worth_pulling`."""
        image, lock = one.image, one.image.lock.base
        missing = [p for p in self._plans[image.target] if p not in self._cached]
        instead = sum(plan.size for plan in missing)
        cache, root = self._workspace.cache, self._workspace.root
        if missing and not layout_folder(image.spec.base, lock, cache, root).exists():
            instead += sum(deb.size for deb in lock.debs)
        if not worth_pulling(one.parents, held, instead):
            return False
        return self._from[image.spec.repository].pull(one.parents, engine)


def _is_in(engine: Engine, one: Known) -> bool:
    """Whether an engine has all parent images of an image."""
    return all(engine.digest(parent_name(p.image)) == p.image.digest for p in one.parents)


def _start(one: Known) -> Start:
    base = ReadyBase(lock=one.image.lock.base, contexts={}, digest=one.base.image.digest)
    contexts = {p.context: f"docker-image://{parent_name(p.image)}" for p in one.parents}
    return Start(contexts=contexts, base=base)


def _layers_in(engine: Engine) -> set[str]:
    """The diff ids of the layers of all parent images of an engine."""
    found: set[str] = set()
    for name in engine.tags(f"{PARENT_IMAGES}:"):
        with contextlib.suppress(UsageError):  # gone since it was listed
            found |= set(engine.inspect(name).layers)
    return found
