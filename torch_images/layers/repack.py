"""An image of the engine -> the same image with its layers compressed again, as small as they get.

The tars inside are the same, and so is the configuration. All layers are packed here, those that
BuildKit made too, so the result depends on their content and on this project's compressor alone.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from torch_images.errors import EngineError
from torch_images.host import tars
from torch_images.host.cache import Part
from torch_images.host.engine import Engine
from torch_images.jobs import processors
from torch_images.layers.make import Progress, no_progress, store, stored
from torch_images.oci import layout
from torch_images.oci.compression import Compression, recording
from torch_images.oci.diff import Archive

# The largest layers keep several threads busy, small ones one or two, so many are packed at once.
THREADS = 4


class _StoppedError(Exception):
    """Another layer failed, or the user broke off."""


def repack(
    name: str,
    digest: str,
    cache: Path,
    *,
    engine: Engine,
    fresh: bool = False,
    progress: Progress = no_progress,
) -> str:
    """Give the name `name` to the image `digest` with smaller layers. Returns its new digest.

    Layers are kept in the cache, and taken from there unless `fresh`. `progress` shows bytes of the
    layers as they were. Raises EngineError for an image that is damaged, and DiskError; `name` is
    what it was then.
    """
    folder = cache / Part.LAYERS
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder, prefix=".making-"))
    try:
        saved = scratch / "image.tar"
        engine.save(digest, saved)
        with Archive(saved) as image:
            config, layers = image.config_bytes(), image.layers()
        _make_all(saved, layers, folder, scratch, fresh=fresh, progress=progress)
        saved.unlink()
        entries = [folder / _key(diff_id) for diff_id, _ in layers]
        ready = [(stored(entry), entry / "blob") for entry in entries]
        said = recording(Compression.SMALL)
        made = layout.recompressed(config, [layer for layer, _ in ready], said)
        engine.load(_archive(name, made, ready))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if engine.digest(name) != made.digest:
        raise EngineError(f"the engine has another image as {name} than it was given", "try again")
    return made.digest


def _make_all(
    saved: Path,
    layers: Sequence[tuple[str, Mapping[str, Any]]],
    folder: Path,
    scratch: Path,
    *,
    fresh: bool,
    progress: Progress,
) -> None:
    """Put the smaller layers of a saved image into the cache, the largest first."""
    missing = {d: blob for d, blob in layers if fresh or not (folder / _key(d)).exists()}
    ordered = sorted(missing.items(), key=lambda item: -item[1]["size"])
    total, done, stop = sum(blob["size"] for blob in missing.values()), 0, threading.Event()
    if not missing:
        return

    def make(diff_id: str, blob: Mapping[str, Any]) -> int:
        made = scratch / _key(diff_id)
        made.mkdir()
        # Each has the archive open for itself: a file has one place where it is read.
        with Archive(saved) as image, (made / "blob").open("wb") as target:
            sink = layout.Compressed(target, THREADS, effort=layout.Effort.SMALL)
            for chunk in image.tar(blob):
                if stop.is_set():
                    raise _StoppedError
                sink.write(chunk)
            layer = sink.finish()
        if layer.diff_id != diff_id:
            raise EngineError(f"a layer of the image is damaged: {diff_id}", "build it again")
        store(made, layer, folder / _key(diff_id), fresh=fresh)
        return int(blob["size"])

    with progress() as show, ThreadPoolExecutor(processors()) as pool:
        try:
            work = [pool.submit(make, *item) for item in ordered]
            for number, ready in enumerate(as_completed(work), 1):
                done += ready.result()
                show(f"layer {number} of {len(work)} again", done, total)
        finally:
            stop.set()  # the largest takes minutes
            pool.shutdown(cancel_futures=True)


def _key(diff_id: str) -> str:
    """Identifies the bytes of a smaller layer: SHA-256 in hexadecimal."""
    return hashlib.sha256(f"{layout.SMALL_COMPRESSOR} {diff_id}".encode()).hexdigest()


def _archive(
    name: str, made: layout.Image, layers: Sequence[tuple[layout.Layer, Path]]
) -> Iterator[bytes]:
    """Yield a tar of an OCI layout: each blob once, then the documents."""
    for digest, path in {layer.digest: path for layer, path in layers}.items():
        yield from tars.blob(path, digest.removeprefix("sha256:"))
    said = {"io.containerd.image.name": f"docker.io/library/{name}"}
    for file, data in layout.layout_files(made, said).items():
        yield from tars.packed(file, io.BytesIO(data), len(data))
    yield tars.END
