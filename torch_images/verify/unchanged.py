"""Wheels of an image whose files need not be read, because they are those of the locked wheels.

A layer of wheels was packed here, of files whose SHA-256 is in a lock, and a layer is immutable. So
its files are right in each image in which no layer above it replaces or hides one of them. What a
layer changes is read from the layer itself: a layer of wheels is in the cache, and the few others
are read from the engine. That of the base is, too, because of its links: where a layer enters one,
all files are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from torch_images.errors import EngineError
from torch_images.host.cache import Part, used, write
from torch_images.host.engine import Engine
from torch_images.host.image_info import ImageInfo
from torch_images.layers.make import files_of_layers
from torch_images.oci.contents import Contents, contents, unpacked

_PARTS = tuple(field.name for field in fields(Contents))


def unchanged(info: ImageInfo, cache: Path, engine: Engine) -> tuple[str, ...]:
    """The folders of wheels whose files need not be read, e.g. "torch-2.14.1.dist-info".

    Compiled wheels are not in layers that were packed here, so they are always read.
    """
    wheels_of = {
        layer: Contents(frozenset(files))
        for layer, files in files_of_layers(set(info.layers), cache).items()
    }
    if not wheels_of:
        return ()
    try:
        others = _contents(info, set(info.layers) - wheels_of.keys(), cache, engine)
    except EngineError:  # a remote engine with its blobs elsewhere, or without some
        return ()
    every = {**wheels_of, **others}.values()
    # Engines write no such layers, but other programs can.
    if any(one.through(other) for one in others.values() for other in every if one is not other):
        return ()
    wheels, above = [], list[Contents]()
    for layer in reversed(info.layers):
        own = wheels_of.get(layer)
        if own and not any(each.changes(own) for each in above):
            records = (path for path in own.files if path.endswith(".dist-info/RECORD"))
            wheels += [path.split("/")[-2] for path in records]
        above.append(own or others[layer])
    return tuple(sorted(wheels))


def _contents(
    info: ImageInfo, layers: set[str], cache: Path, engine: Engine
) -> Mapping[str, Contents]:
    """What layers of an image change, by diff id: from the cache, else from the engine."""
    known = {layer: kept for layer in layers if (kept := _read(cache, layer))}
    if missing := layers - known.keys():
        with engine.blobs(info.id) as blob:
            listed = json.loads(blob(info.id).read()).get("layers", [])  # an index has none
            if len(listed) != len(info.layers):
                raise EngineError(f"the manifest of {info.id} has other layers")
            for layer, one in zip(info.layers, listed, strict=True):
                if layer in missing:
                    known[layer] = contents(unpacked(blob(one["digest"]), one["mediaType"]))
                    _write(cache, layer, known[layer])
    return known


def _place(cache: Path, layer: str) -> Path:
    return cache / Part.CONTENTS / f"{layer.removeprefix('sha256:')}.json"


def _read(cache: Path, layer: str) -> Contents | None:
    path = _place(cache, layer)
    if not path.exists():
        return None
    data = json.loads(used(path).read_bytes())
    return Contents(*(frozenset(data[name]) for name in _PARTS))


def _write(cache: Path, layer: str, value: Contents) -> None:
    data = {name: sorted(getattr(value, name)) for name in _PARTS}
    write(_place(cache, layer), json.dumps(data))
