"""Layers of wheels on top of a base, or alone: what a Dockerfile starts from.

BuildKit takes them as a named context. They are unpacked once, into the engine, where both the
build's own steps and containers use them; nothing packs them again.
"""

from __future__ import annotations

import io
import itertools
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from torch_images import oci
from torch_images.cached import keep, used
from torch_images.engine import Engine
from torch_images.layers import ReadyLayer
from torch_images.planned import FOUNDATION

_CHUNK = 1 << 20
# Layers that an engine is handed at a time. It unpacks those while the next ones are on their way.
_STEP = 3

Layers = Sequence[Future[ReadyLayer]]


class Foundations:
    """Makes foundations, those with the same content once.

    For an `engine` that builds itself they are images of it: layers are handed over as they get
    ready, and what came first is unpacked while the rest is still packed. For a builder elsewhere
    they are OCI layouts in the cache, which buildx sends to it.
    """

    def __init__(self, cache: Path, engine: Engine | None = None) -> None:
        self._cache, self._engine = cache, engine
        self._there: set[str] = set()  # digests of layers that the engine has for sure

    def contexts(
        self, groups: Mapping[str, Layers], base: Path | None, *, compiles: bool
    ) -> dict[str, str]:
        """The named contexts with the layers of an image, by group, for its Dockerfile.

        On a base they are one image, and what `compiles` starts from CUDA's libraries alone.
        Without, each group is for itself, to be copied onto an image.

        Raises what stands in the way of a layer, and EngineError or DiskError.
        """
        if not base:
            return {f"wheels-{name}": self._context(None, ls) for name, ls in groups.items()}
        found = {}
        if compiles or self._engine:  # the engine unpacks them while torch itself is packed
            found["libraries"] = self._context(base, groups.get("cuda", ()))
        found["wheels"] = self._context(base, [x for ls in groups.values() for x in ls])
        return found if compiles else {"wheels": found["wheels"]}

    def _context(self, base: Path | None, layers: Layers) -> str:
        """The context with the layers on top of the layout of a base, as a bake file names it."""
        if self._engine:
            return f"docker-image://{self._image(self._engine, base, layers)}"
        folder = self._layout(base, layers)
        return f"oci-layout://{folder}@{oci.layout_digest(folder)}"

    def _layout(self, base: Path | None, layers: Layers) -> Path:
        """The OCI layout of a foundation, once all its layers are ready."""
        for layer in as_completed(layers):
            layer.result()  # what fails first is told first
        ready = [layer.result() for layer in layers]
        folder = self._cache / "foundations" / _key(_stacked(base, layers))
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not folder.exists():
            prefix = f".{folder.name}-"
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=prefix) as scratch:
                made = Path(scratch, "layout")
                oci.extend_layout(base, ((r.title, r.layer, r.path) for r in ready), made)
                keep(made, folder)
        return used(folder)

    def _image(self, engine: Engine, base: Path | None, layers: Layers) -> str:
        """The name of a foundation in the engine, which gets what it lacks of it.

        It gets ever longer images, of which only the last one keeps its name.
        """
        if all(layer.done() for layer in layers):
            found = _stacked(base, layers)
            if engine.digest(_name(found)) == found.digest:
                self._note(base, layers)
                return _name(found)
        first = sum(1 for _ in itertools.takewhile(self._has, layers))
        ends = [*range(first + _STEP, len(layers), _STEP), len(layers)]
        loads: list[Future[str]] = []
        try:
            self._take(engine, base, layers, [first, *ends], loads)
        finally:
            for load in loads[:-1]:
                if load.done() and not load.cancelled() and not load.exception():
                    engine.untag(load.result())
        self._note(base, layers)
        return loads[-1].result()

    def _take(
        self,
        engine: Engine,
        base: Path | None,
        layers: Layers,
        bounds: Sequence[int],
        loads: list[Future[str]],
    ) -> None:
        """Load the images up to each bound but the first; `loads` gets what comes of each."""
        stop: Future[None] = Future()
        with ThreadPoolExecutor(2) as pool:
            try:
                for start, end in itertools.pairwise(bounds):
                    step = _Step(
                        base=base,
                        layers=layers[:end],
                        new=[layer for layer in layers[start:end] if not self._has(layer)],
                        blobs=() if loads else self._base_blobs(base),
                        before=loads[-1] if loads else None,
                        stop=stop,
                    )
                    loads.append(pool.submit(step.load, engine))
                for load in loads:
                    load.result()
            except BaseException as error:
                stop.set_exception(error)
                pool.shutdown(cancel_futures=True)
                raise

    def _has(self, layer: Future[ReadyLayer]) -> bool:
        """Whether the engine has a layer for sure."""
        return layer.done() and _digest(layer) in self._there

    def _base_blobs(self, base: Path | None) -> tuple[Path, ...]:
        """The base's layers that the engine lacks."""
        blobs = oci.layout_layers(base) if base else ()
        return tuple(path for path in blobs if path.name not in self._there)

    def _note(self, base: Path | None, layers: Layers) -> None:
        """Remember that the engine has a foundation now."""
        self._there |= {_digest(layer) for layer in layers}
        self._there |= {path.name for path in self._base_blobs(base)}


@dataclass(frozen=True, kw_only=True)
class _Step:
    """An image with some more layers than the one before, on its way to the engine."""

    base: Path | None
    layers: Layers
    new: Layers
    blobs: Sequence[Path]
    before: Future[str] | None
    stop: Future[None]

    def load(self, engine: Engine) -> str:
        """Hand it over; its name."""
        engine.load(self._archive())
        return _name(_stacked(self.base, self.layers))

    def _archive(self) -> Iterator[bytes]:
        """A tar of an OCI layout: blobs as they get ready, what they are once the last image is."""
        for path in self.blobs:
            yield from _blob(path, path.name)
        left: set[Future[Any]] = {*self.new, *([self.before] if self.before else [])}
        while left:
            done, _ = wait({*left, self.stop}, return_when=FIRST_COMPLETED)
            for each in done:
                found = each.result()
                if each is not self.before:
                    yield from _blob(found.path, _digest(each))
            left -= done
        made = _stacked(self.base, self.layers)
        name = {"io.containerd.image.name": f"docker.io/library/{_name(made)}"}
        for file, data in oci.layout_files(made, name).items():
            yield from _packed(file, io.BytesIO(data), len(data))
        yield bytes(2 * tarfile.BLOCKSIZE)


def _stacked(base: Path | None, layers: Layers) -> oci.Image:
    """The image of a foundation whose layers are ready."""
    ready = [layer.result() for layer in layers]
    return oci.image(base, [(each.title, each.layer) for each in ready])


def _key(image: oci.Image) -> str:
    return image.digest.removeprefix("sha256:")[:16]


def _name(image: oci.Image) -> str:
    return f"{FOUNDATION}:{_key(image)}"


def _digest(layer: Future[ReadyLayer]) -> str:
    return layer.result().layer.digest.removeprefix("sha256:")


def _blob(path: Path, digest: str) -> Iterator[bytes]:
    """A blob in the tar of an OCI layout."""
    with path.open("rb") as stream:
        yield from _packed(f"blobs/sha256/{digest}", stream, path.stat().st_size)


def _packed(name: str, stream: BinaryIO, size: int) -> Iterator[bytes]:
    """A file in a tar."""
    member = tarfile.TarInfo(name)
    member.size = size
    yield member.tobuf()
    while data := stream.read(_CHUNK):
        yield data
    if padding := -size % tarfile.BLOCKSIZE:
        yield bytes(padding)
