"""Layers of wheels on top of a base, or alone: what a Dockerfile starts from.

BuildKit takes them as a named context. They are unpacked once, into the engine, where both the
build's own steps and containers use them; nothing packs them again.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import BinaryIO

from torch_images import oci
from torch_images.cached import keep, used
from torch_images.engine import Engine
from torch_images.layers import ReadyLayer
from torch_images.planned import FOUNDATION

_CHUNK = 1 << 20

Layers = Sequence[Future[ReadyLayer]]


class Foundations:
    """Makes foundations, those with the same content once.

    For an `engine` that builds itself they are images of it: layers are handed over as they get
    ready, and what came first is unpacked while the rest is still packed. For a builder elsewhere
    they are OCI layouts in the cache, which buildx sends to it.
    """

    def __init__(self, cache: Path, engine: Engine | None = None) -> None:
        self._cache, self._engine = cache, engine
        self._there: set[str] = set()  # digests of blobs that the engine has for sure

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
        if not self._engine:
            folder = self._layout(base, layers)
            return f"oci-layout://{folder}@{oci.layout_digest(folder)}"
        if not all(layer.done() for layer in layers) or not self._has(self._layout(base, layers)):
            self._engine.load(self._archive(base, layers))
        folder = self._layout(base, layers)
        self._there |= _blobs(folder)
        return f"docker-image://{_name(folder)}"

    def _layout(self, base: Path | None, layers: Layers) -> Path:
        """The OCI layout of a foundation, once all its layers are ready."""
        for layer in as_completed(layers):
            layer.result()  # what fails first is told first
        ready = [layer.result() for layer in layers]
        facts = [oci.layout_digest(base) if base else ""]
        facts += [f"{each.title} {each.layer}" for each in ready]
        key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
        folder = self._cache / "foundations" / key
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{key}-") as scratch:
                made = Path(scratch, "layout")
                oci.extend_layout(base, ((r.title, r.layer, r.path) for r in ready), made)
                keep(made, folder)
        return used(folder)

    def _has(self, folder: Path) -> bool:
        assert self._engine
        return self._engine.digest(_name(folder)) == oci.layout_digest(folder)

    def _archive(self, base: Path | None, layers: Layers) -> Iterator[bytes]:
        """A foundation as a tar that an engine loads: blobs as they get ready, then what they are.

        Those that the engine has already are left out.
        """
        sent = set(self._there)
        for path in oci.layout_layers(base) if base else ():
            yield from _member(path, sent)
        for layer in as_completed(layers):
            ready = layer.result()
            yield from _member(ready.path, sent, ready.layer.digest.removeprefix("sha256:"))
        folder = self._layout(base, layers)
        for path in (folder / "blobs" / "sha256").iterdir():
            yield from _member(path, sent)
        index = json.loads((folder / "index.json").read_text())
        name = {"io.containerd.image.name": f"docker.io/library/{_name(folder)}"}
        index["manifests"][0]["annotations"] = name
        layout = (folder / "oci-layout").read_bytes()
        for file, data in (("oci-layout", layout), ("index.json", json.dumps(index).encode())):
            yield from _packed(file, io.BytesIO(data), len(data))
        yield bytes(2 * tarfile.BLOCKSIZE)


def _name(folder: Path) -> str:
    return f"{FOUNDATION}:{folder.name}"


def _blobs(folder: Path) -> set[str]:
    """The digests of what a layout holds, without their algorithm."""
    return {path.name for path in (folder / "blobs" / "sha256").iterdir()}


def _member(path: Path, sent: set[str], digest: str = "") -> Iterator[bytes]:
    """A blob in a tar, by its digest or else its file's name, unless it was sent already."""
    digest = digest or path.name
    if digest not in sent:
        sent.add(digest)
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
