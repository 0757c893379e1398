"""Parent images of Dockerfiles: layers of wheels on top of a base.

BuildKit reads them as a named context. They are unpacked once, into the engine, where both the
build's own steps and containers use them; nothing packs them again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_images.host import tars
from torch_images.host.cache import Part, filling, used, write
from torch_images.host.engine import Engine
from torch_images.host.workers import check_broken_off, workers
from torch_images.layers.make import ReadyLayer
from torch_images.oci import layout

# The repository of parent images, in the image store of an engine that is also the builder.
PARENT_IMAGES = "torch-images-parent"

_POLL = 0.2  # seconds between looks at whether the work was broken off

Layers = Sequence[Future[ReadyLayer]]
# The layout of the base below the layers.
Layout = Future[Path]


@dataclass(frozen=True, kw_only=True)
class ParentRequest:
    """The parents of an image: layers by group, on a base; and whether it compiles."""

    groups: Mapping[str, Layers]
    base: Layout
    compiles: bool


class ParentImages:
    """Makes parent images; equal ones only once.

    If `engine` is also the builder, they are images in it: layers are sent as they get ready, and
    CUDA's libraries are unpacked while the rest is still being packed. For a remote builder they
    are OCI layouts in the cache, which buildx sends to it.
    """

    def __init__(self, cache: Path, engine: Engine | None = None) -> None:
        self._cache, self._engine = cache, engine
        self._loaded: set[str] = set()  # digests of blobs that the engine certainly has

    def contexts(self, requests: Mapping[str, ParentRequest]) -> dict[str, dict[str, str]]:
        """The named contexts of each image, by group, for its Dockerfile.

        An engine unpacks the layers of an image one by one, so images that share no libraries are
        loaded in parallel.

        Raises the errors of layers and of the base, and EngineError or DiskError.
        """
        chains: dict[Layers, list[str]] = {}
        for name, request in requests.items():
            chains.setdefault(tuple(request.groups.get("cuda", ())), []).append(name)

        def make(names: Sequence[str]) -> dict[str, dict[str, str]]:
            return {name: self._of_image(requests[name]) for name in names}

        with workers(len(chains) if self._engine else 1) as pool:
            results = as_completed([pool.submit(make, names) for names in chains.values()])
            return {name: value for done in results for name, value in done.result().items()}

    def _of_image(self, request: ParentRequest) -> dict[str, str]:
        """The contexts of one image; compile stages start from CUDA's libraries only."""
        groups, base = request.groups, request.base
        contexts = {}
        if request.compiles or self._engine:  # an engine keeps the libraries for other images
            contexts["libraries"] = self._context(base, groups.get("cuda", ()))
        contexts["parent"] = self._context(base, [*itertools.chain(*groups.values())])
        return contexts if request.compiles else {"parent": contexts["parent"]}

    def _context(self, base: Layout, layers: Layers) -> str:
        """The context of layers on a base, in the form of a bake file."""
        if self._engine:
            return f"docker-image://{self._load(self._engine, base, layers)}"
        for part in _completed(base, layers):
            part.result()  # raises the first failure first
        folder = self._cache / Part.PARENTS / _key(_stacked(base, layers).digest)
        if not folder.exists():
            ready = [layer.result() for layer in layers]
            with filling(folder) as new:
                layout.extend_layout(
                    base.result(), ((r.title, r.layer, r.path) for r in ready), new
                )
        return f"oci-layout://{used(folder)}@{layout.layout_digest(folder)}"

    def _load(self, engine: Engine, base: Layout, layers: Layers) -> str:
        """Load an image unless the engine has it. Returns its name."""
        if all(layer.done() for layer in layers):  # else loading starts with those that are
            wait([base])
            image = _stacked(base, layers)
            missing = engine.digest(parent_name(image.digest)) != image.digest
        else:
            missing = True
        if missing:
            self._loaded |= self._had(engine)
            engine.load(self._archive(base, layers))
        self._loaded |= {digest for part in _completed(base, layers) for _, digest in _blobs(part)}
        image = _stacked(base, layers)
        write(self._manifest(image.digest), image.documents[1].decode())
        return parent_name(image.digest)

    def _had(self, engine: Engine) -> set[str]:
        """The blobs of the parent images in an engine, by their manifests in the cache.

        The engine would write and hash each of them again, as CUDA's libraries below another torch.
        """
        blobs = set[str]()
        for image in engine.listed():
            if parent_name(image.id) in image.tags:
                with contextlib.suppress(FileNotFoundError):
                    manifest = self._manifest(image.id).read_bytes()
                    if f"sha256:{hashlib.sha256(manifest).hexdigest()}" == image.id:
                        listed = json.loads(manifest)["layers"]
                        blobs |= {each["digest"].removeprefix("sha256:") for each in listed}
        return blobs

    def _manifest(self, digest: str) -> Path:
        """The file of the cache with the manifest of a parent image that an engine has."""
        return self._cache / Part.PARENTS / f"{digest.removeprefix('sha256:')}.json"

    def _archive(self, base: Layout, layers: Layers) -> Iterator[bytes]:
        """Yield the tar of an OCI layout: each blob when it is ready, then index and manifest."""
        for part in _completed(base, layers):
            for path, digest in _blobs(part):
                if digest not in self._loaded:
                    yield from tars.blob(path, digest)
        image = _stacked(base, layers)
        name = {"io.containerd.image.name": f"docker.io/library/{parent_name(image.digest)}"}
        for file, data in layout.layout_files(image, name).items():
            yield from tars.packed(file, io.BytesIO(data), len(data))
        yield tars.END


def _completed(base: Layout, layers: Layers) -> Iterator[Future[Any]]:
    """The parts of a parent image as they get ready, until an error elsewhere ends the work."""
    left: set[Future[Any]] = {*layers, base}
    while left:
        done, left = wait(left, _POLL, FIRST_COMPLETED)
        check_broken_off()
        yield from done


def _blobs(part: Future[Any]) -> list[tuple[Path, str]]:
    """The files, with their digests, of a layer or of the layout of a base."""
    ready: ReadyLayer | Path = part.result()
    if isinstance(ready, Path):
        return [(path, path.name) for path in layout.layout_layers(ready)]
    return [(ready.path, ready.layer.digest.removeprefix("sha256:"))]


def _stacked(base: Layout, layers: Layers) -> layout.Image:
    """The documents of a parent image whose base and layers are ready."""
    ready = [layer.result() for layer in layers]
    return layout.image(base.result(), [(each.title, each.layer) for each in ready])


def _key(digest: str) -> str:
    return digest.removeprefix("sha256:")[:16]


def parent_name(digest: str) -> str:
    """The name of a parent image in the engine, by the digest of its manifest."""
    return f"{PARENT_IMAGES}:{_key(digest)}"
