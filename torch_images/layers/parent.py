"""Parent images of Dockerfiles: layers of wheels on top of a base.

BuildKit reads them as a named context. They are unpacked once, into the engine, where both the
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

# The repository of parent images, in the image store of an engine that is also the builder.
PARENT_IMAGES = "torch-images-parent"

Layers = Sequence[Future[ReadyLayer]]
# The layout of the base below the layers.
Layout = Future[Path]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The parents of an image: layers by group, on a base; and whether it compiles."""

    groups: Mapping[str, Layers]
    base: Layout
    compiles: bool


class ParentImages:
    """Makes parent images; equal ones only once.

    If `engine` is also the builder, they are images in it: layers are loaded as they get ready, and
    CUDA's libraries are unpacked while the rest is still being packed. For a remote builder they
    are OCI layouts in the cache, which buildx sends to it.
    """

    def __init__(self, cache: Path, engine: Engine | None = None) -> None:
        self._cache, self._engine = cache, engine
        self._there: set[str] = set()  # digests of layers that the engine certainly has
        self._stop: Future[None] = Future()  # ends loads in progress

    def contexts(self, wanted: Mapping[str, Wanted]) -> dict[str, dict[str, str]]:
        """The named contexts of each image, by group, for its Dockerfile.

        An engine unpacks the layers of an image one by one, so images that share no libraries are
        loaded in parallel.

        Raises the errors of layers and of the base, and EngineError or DiskError.
        """
        self._stop = Future()
        chains: dict[Layers, list[str]] = {}
        for name, image in wanted.items():
            chains.setdefault(tuple(image.groups.get("cuda", ())), []).append(name)

        def make(names: Sequence[str]) -> dict[str, dict[str, str]]:
            return {name: self._of_image(wanted[name]) for name in names}

        with workers(len(chains) if self._engine else 1) as pool:
            try:
                results = as_completed([pool.submit(make, names) for names in chains.values()])
                return {name: value for done in results for name, value in done.result().items()}
            except BaseException as error:
                self._break_off(error)
                raise

    def _of_image(self, wanted: Wanted) -> dict[str, str]:
        """The contexts of one image; compile stages start from CUDA's libraries only."""
        groups, base, compiles = wanted.groups, wanted.base, wanted.compiles
        layers = [x for ls in groups.values() for x in ls]
        if not compiles and not self._engine:  # an engine keeps the libraries for other images
            return {"parent": self._contexts(base, layers)[-1]}
        libraries, parent = self._contexts(base, layers, len(groups.get("cuda", ())))
        return {"libraries": libraries, "parent": parent} if compiles else {"parent": parent}

    def _contexts(self, base: Layout, layers: Layers, *counts: int) -> list[str]:
        """The contexts with the first layers on a base: one per count, and one with all.

        Each is in the form of a bake file.
        """
        bounds = (*counts, len(layers))
        if self._engine:
            return [f"docker-image://{n}" for n in self._images(self._engine, base, layers, bounds)]
        folders = [self._layout(base, layers[:count]) for count in bounds]
        return [f"oci-layout://{folder}@{layout.layout_digest(folder)}" for folder in folders]

    def _layout(self, base: Layout, layers: Layers) -> Path:
        """The OCI layout of a parent image, once all its layers are ready."""
        for part in as_completed(_parts(base, layers)):
            part.result()  # raises the first failure first
        ready = [layer.result() for layer in layers]
        folder = self._cache / Part.PARENTS / _key(_stacked(base, layers).digest)
        if not folder.exists():
            with filling(folder) as new:
                each = ((r.title, r.layer, r.path) for r in ready)
                layout.extend_layout(base.result(), each, new)
        return used(folder)

    def _images(
        self, engine: Engine, base: Layout, layers: Layers, bounds: Sequence[int]
    ) -> list[str]:
        """Load the images that the engine lacks. Returns the names of all.

        There is one image for each of `bounds`, with that number of layers.
        """
        if all(layer.done() for layer in layers):
            wait([base])  # the engine may have all images; if not, loading starts with the layers
        missing = {end for end in bounds if not self._found(engine, base, layers[:end])}
        self._take(engine, base, layers, sorted(missing))
        self._note(base, layers)
        return [parent_name(_stacked(base, layers[:end]).digest) for end in bounds]

    def _found(self, engine: Engine, base: Layout, layers: Layers) -> bool:
        """Whether the engine has the image with these layers. If so, records its layers."""
        if not all(part.done() for part in _parts(base, layers)):
            return False
        parent = _stacked(base, layers)
        if engine.digest(parent_name(parent.digest)) != parent.digest:
            return False
        self._note(base, layers)
        return True

    def _take(self, engine: Engine, base: Layout, layers: Layers, ends: Sequence[int]) -> None:
        """Load an image with the layers up to each of `ends`; each extends the previous one."""
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
        """End all loads in progress with an error, unless that has happened already."""
        with contextlib.suppress(InvalidStateError):
            self._stop.set_exception(error)

    def _note(self, base: Layout, layers: Layers) -> None:
        """Record that the engine has a parent image now."""
        self._there |= {_digest(layer) for layer in layers}
        self._there |= {path.name for path in layout.layout_layers(base.result())}


@dataclass(frozen=True, kw_only=True)
class _Load:
    """A load in progress of an image with more layers than the previous one.

    The first one has the base. `there` are digests of layers that the engine already has.
    """

    base: Layout
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
        """The files, with their digests, of the base or of a layer that is ready."""
        ready = part.result()
        if part is self.before:
            return []
        if part is self.base:
            paths = layout.layout_layers(ready)
            return [(path, path.name) for path in paths if path.name not in self.there]
        return [(ready.path, _digest(part))]

    def _archive(self) -> Iterator[bytes]:
        """Yield the tar of an OCI layout: each blob when it is ready, then index and manifest."""
        left: set[Future[Any]] = {*self.new, self.before or self.base}
        while left:
            done, _ = wait({*left, self.stop}, return_when=FIRST_COMPLETED)
            for path, digest in itertools.chain.from_iterable(map(self._blobs, done)):
                yield from tars.blob(path, digest)
            left -= done
        parent = _stacked(self.base, self.layers)
        name = {"io.containerd.image.name": f"docker.io/library/{parent_name(parent.digest)}"}
        for file, data in layout.layout_files(parent, name).items():
            yield from tars.packed(file, io.BytesIO(data), len(data))
        yield tars.END


def _parts(base: Layout, layers: Layers) -> list[Future[Any]]:
    """All parts that a parent image waits for."""
    return [*layers, base]


def _stacked(base: Layout, layers: Layers) -> layout.Image:
    """The documents of a parent image whose base and layers are ready."""
    ready = [layer.result() for layer in layers]
    return layout.image(base.result(), [(each.title, each.layer) for each in ready])


def _key(digest: str) -> str:
    return digest.removeprefix("sha256:")[:16]


def parent_name(digest: str) -> str:
    """The name of a parent image in the engine, by the digest of its manifest."""
    return f"{PARENT_IMAGES}:{_key(digest)}"


def _digest(layer: Future[ReadyLayer]) -> str:
    return layer.result().layer.digest.removeprefix("sha256:")
