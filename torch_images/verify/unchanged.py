"""Wheels of an image whose files passed their checks in another image, and are the same here.

A layer is immutable. If its files passed, they pass in each image in which no layer above it
replaces or hides one of them. What a layer changes is read from the layer itself: a layer of wheels
is in the cache, packed here, and the few others are read from the engine. That of the base is, too,
because of its links: where a layer enters one, all files are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from torch_images.errors import EngineError
from torch_images.host.cache import Part, used, write
from torch_images.host.engine import Engine
from torch_images.host.image_info import ImageInfo
from torch_images.host.workspace import Workspace
from torch_images.layers.make import files_of_layers
from torch_images.oci.contents import Contents, contents, unpacked

# The check whose result is kept, and the files that it is made of.
CHECK = "image/test_files/test_wheels_files_are_what_their_records_say"
_PARTS = tuple(field.name for field in fields(Contents))
_CODE = ("tests/image/installed.py", "tests/image/test_files.py")


@dataclass(frozen=True)
class Unchanged:
    """Layers of wheels that no layer above changes, as the files that keep their result.

    `wheels` are folders of packages, e.g. "torch-2.14.1.dist-info", whose files need not be read
    because their layers have passed.
    """

    layers: tuple[Path, ...] = ()
    wheels: tuple[str, ...] = ()

    def passed(self, digest: str) -> None:
        """Keep that the files of `layers` passed CHECK in an image."""
        for path in self.layers:
            write(path, f"{digest}\n")


NOTHING = Unchanged()


def unchanged(
    info: ImageInfo, workspace: Workspace, engine: Engine, *, fresh: bool = False
) -> Unchanged:
    """What need not be read of an image, nothing with `fresh`, and what its CHECK decides.

    Compiled wheels are not in layers that were packed here, so they are always read.
    """
    wheels_of = {
        layer: Contents(frozenset(files))
        for layer, files in files_of_layers(set(info.layers), workspace.cache).items()
    }
    if not wheels_of:
        return NOTHING
    try:
        others = _contents(info, set(info.layers) - wheels_of.keys(), workspace.cache, engine)
    except EngineError:  # a remote engine with its blobs elsewhere, or without some
        return NOTHING
    every = {**wheels_of, **others}.values()
    # Engines write no such layers, but other programs can.
    if any(one.through(other) for one in others.values() for other in every if one is not other):
        return NOTHING
    code = b"".join((workspace.root / name).read_bytes() for name in _CODE)
    layers, wheels, above = [], [], list[Contents]()
    for layer in reversed(info.layers):
        own = wheels_of.get(layer)
        if own and not any(each.changes(own) for each in above):
            kept = _kept(layer, code, workspace.cache)
            layers.append(kept)
            if kept.exists() and not fresh:
                used(kept)
                records = (path for path in own.files if path.endswith(".dist-info/RECORD"))
                wheels += [path.split("/")[-2] for path in records]
        above.append(own or others[layer])
    return Unchanged(tuple(layers), tuple(sorted(wheels)))


def _kept(layer: str, code: bytes, cache: Path) -> Path:
    """The file that is there if a layer has passed the check. `code` is the source of the check."""
    return cache / Part.CHECKED / hashlib.sha256(layer.encode() + code).hexdigest()


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
