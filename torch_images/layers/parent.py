"""Layers of wheels on top of a base, or alone: what a Dockerfile starts from.

BuildKit takes them as a named context. They are unpacked once, into the engine, where both the
build's own steps and containers use them; nothing packs them again.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    InvalidStateError,
    as_completed,
    wait,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_images.host import tars
from torch_images.host.cache import Part, filling, used
from torch_images.host.engine import Engine
from torch_images.host.workers import workers
from torch_images.layers.make import ReadyLayer
from torch_images.oci import layout

# What images start from, in the image store of an engine that builds itself.
PARENT_IMAGES = "torch-images-parent"

Layers = Sequence[Future[ReadyLayer]]
# The layout of the base that layers lie on.
Layout = Future[Path]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What an image starts from: layers by group, on a base or none; and whether it compiles."""

    groups: Mapping[str, Layers]
    base: Layout | None
    compiles: bool


class ParentImages:
    """Makes parent images, those with the same content once.

    For an `engine` that builds itself they are images of it: layers are handed over as they get
    ready, and CUDA's libraries are unpacked while the rest is still packed. For a builder elsewhere
    they are OCI layouts in the cache, which buildx sends to it.
    """

    def __init__(self, cache: Path, engine: Engine | None = None) -> None:
        self._cache, self._engine = cache, engine
        self._there: set[str] = set()  # digests of layers that the engine has for sure
        self._stop: Future[None] = Future()  # ends what is on its way to the engine

    def contexts(self, wanted: Mapping[str, Wanted]) -> dict[str, dict[str, str]]:
        """The named contexts of each image, by group, for its Dockerfile.

        An engine unpacks the layers of an image one after the other, so images that share no
        libraries are handed over side by side.

        Raises what stands in the way of a layer or the base, and EngineError or DiskError.
        """
        self._stop = Future()
        chains: dict[Layers, list[str]] = {}
        for name, image in wanted.items():
            chains.setdefault(tuple(image.groups.get("cuda", ())), []).append(name)

        def make(names: Sequence[str]) -> dict[str, dict[str, str]]:
            return {name: self._of_image(wanted[name]) for name in names}

        with workers(len(chains) if self._engine else 1) as pool:
            try:
                made = as_completed([pool.submit(make, names) for names in chains.values()])
                return {name: value for done in made for name, value in done.result().items()}
            except BaseException as error:
                self._break_off(error)
                raise

    def _of_image(self, wanted: Wanted) -> dict[str, str]:
        """The contexts of one image.

        On a base its layers are one image, and what compiles starts from CUDA's libraries alone.
        Without, each group is for itself, to be copied onto an image.
        """
        groups, base, compiles = wanted.groups, wanted.base, wanted.compiles
        if not base:
            return {f"wheels-{name}": self._contexts(None, ls)[-1] for name, ls in groups.items()}
        layers = [x for ls in groups.values() for x in ls]
        if not compiles and not self._engine:  # an engine keeps the libraries for other images
            return {"parent": self._contexts(base, layers)[-1]}
        libraries, parent = self._contexts(base, layers, len(groups.get("cuda", ())))
        return {"libraries": libraries, "parent": parent} if compiles else {"parent": parent}

    def _contexts(self, base: Layout | None, layers: Layers, *counts: int) -> list[str]:
        """The contexts with the first layers on a base: one per count, and one with all.

        Each is written as a bake file takes it.
        """
        bounds = (*counts, len(layers))
        if self._engine:
            return [f"docker-image://{n}" for n in self._images(self._engine, base, layers, bounds)]
        folders = [self._layout(base, layers[:count]) for count in bounds]
        return [f"oci-layout://{folder}@{layout.layout_digest(folder)}" for folder in folders]

    def _layout(self, base: Layout | None, layers: Layers) -> Path:
        """The OCI layout of a parent image, once all its layers are ready."""
        for part in as_completed(_parts(base, layers)):
            part.result()  # what fails first is told first
        ready = [layer.result() for layer in layers]
        folder = self._cache / Part.PARENTS / _key(_stacked(base, layers).digest)
        if not folder.exists():
            with filling(folder) as made:
                start = base.result() if base else None
                layout.extend_layout(start, ((r.title, r.layer, r.path) for r in ready), made)
        return used(folder)

    def _images(
        self, engine: Engine, base: Layout | None, layers: Layers, bounds: Sequence[int]
    ) -> list[str]:
        """Hand the engine the images that it lacks, and return their names.

        There is one image for each of `bounds`, with so many layers.
        """
        if base and all(layer.done() for layer in layers):
            wait([base])  # all may be there; what is still packed is handed over meanwhile
        missing = {end for end in bounds if not self._found(engine, base, layers[:end])}
        self._take(engine, base, layers, sorted(missing))
        self._note(base, layers)
        return [parent_name(_stacked(base, layers[:end]).digest) for end in bounds]

    def _found(self, engine: Engine, base: Layout | None, layers: Layers) -> bool:
        """Whether the engine has the image with these layers. If so, notes that it has each."""
        if not all(part.done() for part in _parts(base, layers)):
            return False
        made = _stacked(base, layers)
        if engine.digest(parent_name(made.digest)) != made.digest:
            return False
        self._note(base, layers)
        return True

    def _take(
        self, engine: Engine, base: Layout | None, layers: Layers, ends: Sequence[int]
    ) -> None:
        """Load an image with the layers up to each of `ends`; each adds to the one before."""
        with workers(2) as pool:
            try:
                loads: list[Future[str]] = []
                for start, end in itertools.pairwise([0, *ends]):
                    load = _Load(
                        base=base,
                        layers=layers[:end],
                        new=[
                            x
                            for x in layers[start:end]
                            if not (x.done() and _digest(x) in self._there)
                        ],
                        before=loads[-1] if loads else None,
                        there=frozenset(self._there),
                        stop=self._stop,
                    )
                    loads.append(pool.submit(load.into, engine))
                for result in loads:
                    result.result()
            except BaseException as error:
                self._break_off(error)
                raise

    def _break_off(self, error: BaseException) -> None:
        """Let everything on its way end with an error, unless it does already."""
        with contextlib.suppress(InvalidStateError):
            self._stop.set_exception(error)

    def _note(self, base: Layout | None, layers: Layers) -> None:
        """Remember that the engine has a parent image now."""
        self._there |= {_digest(layer) for layer in layers}
        if base:
            self._there |= {path.name for path in layout.layout_layers(base.result())}


@dataclass(frozen=True, kw_only=True)
class _Load:
    """An image with some more layers than the one before, on its way to the engine.

    The first one has the base. `there` are digests of layers that the engine has already.
    """

    base: Layout | None
    layers: Layers
    new: Layers
    before: Future[str] | None
    there: frozenset[str]
    stop: Future[None]

    def into(self, engine: Engine) -> str:
        """Load the image into the engine. Returns its name."""
        engine.load(self._archive())
        return parent_name(_stacked(self.base, self.layers).digest)

    def _blobs(self, part: Future[Any]) -> list[tuple[Path, str]]:
        """The files, each with its digest, of the base or of a layer that is ready."""
        ready = part.result()
        if part is self.before:
            return []
        if part is self.base:
            paths = layout.layout_layers(ready)
            return [(path, path.name) for path in paths if path.name not in self.there]
        return [(ready.path, _digest(part))]

    def _archive(self) -> Iterator[bytes]:
        """Yield an OCI-layout tar: each blob when ready, then index and manifest."""
        start = self.before or self.base
        left: set[Future[Any]] = {*self.new, *([start] if start else [])}
        while left:
            done, _ = wait({*left, self.stop}, return_when=FIRST_COMPLETED)
            for path, digest in itertools.chain.from_iterable(map(self._blobs, done)):
                yield from tars.blob(path, digest)
            left -= done
        made = _stacked(self.base, self.layers)
        name = {"io.containerd.image.name": f"docker.io/library/{parent_name(made.digest)}"}
        for file, data in layout.layout_files(made, name).items():
            yield from tars.packed(file, io.BytesIO(data), len(data))
        yield tars.END


def _parts(base: Layout | None, layers: Layers) -> list[Future[Any]]:
    """All that a parent image waits for."""
    return [*layers, *([base] if base else [])]


def _stacked(base: Layout | None, layers: Layers) -> layout.Image:
    """The documents of a parent image whose base and layers are ready."""
    ready = [layer.result() for layer in layers]
    return layout.image(
        base.result() if base else None, [(each.title, each.layer) for each in ready]
    )


def _key(digest: str) -> str:
    return digest.removeprefix("sha256:")[:16]


def parent_name(digest: str) -> str:
    """What the engine has a parent image as, by the digest of its manifest."""
    return f"{PARENT_IMAGES}:{_key(digest)}"


def _digest(layer: Future[ReadyLayer]) -> str:
    return layer.result().layer.digest.removeprefix("sha256:")
