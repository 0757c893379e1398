"""Which wheels of an image need not be read, by what its layers say of themselves."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest

from torch_images.errors import EngineError
from torch_images.host.cache import Part
from torch_images.host.engine import Engine
from torch_images.host.image_info import ImageInfo
from torch_images.oci.contents import Contents, contents
from torch_images.verify.unchanged import unchanged

SITE = "opt/venv/lib/python3.13/site-packages"
TORCH = [f"{SITE}/torch/__init__.py", f"{SITE}/torch-2.0.dist-info/RECORD"]
TRITON = [f"{SITE}/triton/__init__.py", f"{SITE}/triton-3.0.dist-info/RECORD"]


def tar(*names: str) -> bytes:
    """A layer; a name that ends in "/" is a folder."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            archive.addfile(member)
    return stream.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a/b", Contents(frozenset({"a/b"}))),
        ("./a/b", Contents(frozenset({"a/b"}))),
        ("a/", Contents(frozenset(), frozenset({"a"}))),
        ("a/.wh.b", Contents(frozenset(), removed=frozenset({"a/b"}))),
        ("a/.wh..wh..opq", Contents(frozenset(), removed=frozenset({"a"}))),
        (".wh..wh..opq", Contents(frozenset(), removed=frozenset({"."}))),
    ],
)
def test_contents_of_a_layer(name: str, expected: Contents) -> None:
    assert contents(io.BytesIO(tar(name))) == expected


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (TORCH[0], True),
        (f"{SITE}/.wh.torch", True),
        ("opt/venv/.wh..wh..opq", True),
        (".wh..wh..opq", True),
        (f"{SITE}/torch", True),  # a link in place of the folder
        (f"{SITE}/torch/", False),  # another mode of the folder
        (f"{SITE}/torch/__pycache__/__init__.pyc", False),
        (f"{SITE}/torch/__init__.py/", True),
        (f"{SITE}/torch/__init__.py/x", True),
        (f"{SITE}/tor", False),
    ],
)
def test_changes_of_a_layer_below(name: str, changes: bool) -> None:
    assert contents(io.BytesIO(tar(name))).changes(Contents(frozenset(TORCH))) is changes


class Layers(Engine):
    """An engine with one image; it counts how often its blobs are opened."""

    def __init__(self, blobs: Sequence[bytes]) -> None:
        packed = [gzip.compress(blob, mtime=0) for blob in blobs]
        kind = "application/vnd.oci.image.layer.v1.tar+gzip"
        listed = [{"digest": digest(blob), "mediaType": kind} for blob in packed]
        manifest = json.dumps({"layers": listed}).encode()
        self.stored = {digest(blob): blob for blob in [*packed, manifest]}
        self.image = ImageInfo(
            id=digest(manifest),
            size=1,
            labels={},
            config={},
            created="",
            layers=tuple(map(digest, blobs)),
        )
        self.opened = 0
        self.works = True

    @contextlib.contextmanager
    def blobs(self, image: str) -> Iterator[Callable[[str], IO[bytes]]]:
        if not self.works:
            raise EngineError("no such folder")

        def read(name: str) -> IO[bytes]:
            self.opened += name != image
            return io.BytesIO(self.stored[name])

        yield read


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with two layers of wheels."""
    for number, files in enumerate((TORCH, TRITON)):
        folder = tmp_path / Part.LAYERS / str(number)
        folder.mkdir(parents=True)
        (folder / "layer.json").write_text(json.dumps({"diff_id": digest(tar(*files))}))
        (folder / "files.json").write_text(json.dumps(files))
    return tmp_path


def engine(*above: bytes) -> Layers:
    """An image of a base, both layers of wheels, and others above."""
    return Layers([tar("usr/bin/env"), tar(*TORCH), tar(*TRITON), *above])


def look(engine: Layers, cache: Path) -> tuple[str, ...]:
    return unchanged(engine.image, cache, engine)


BOTH = ("torch-2.0.dist-info", "triton-3.0.dist-info")


@pytest.mark.parametrize("above", ["etc/one", f"{SITE}/x.py"])
def test_layers_that_were_packed_here_are_not_read(cache: Path, above: str) -> None:
    assert look(engine(tar(above)), cache) == BOTH


def test_a_layer_of_which_one_file_is_replaced_above_is_read(cache: Path) -> None:
    assert look(engine(tar(TORCH[0])), cache) == ("triton-3.0.dist-info",)


@pytest.mark.parametrize("below", [0, 3])
def test_a_file_that_is_replaced_through_a_link(cache: Path, below: int) -> None:
    """The link is in the base or above the wheels; no path of the layer is one of a wheel."""
    through = TORCH[0].replace("venv/lib", "venv/lib64")
    layers = [tar("usr/bin/env"), tar(*TORCH), tar(*TRITON), tar("etc/one"), tar(through)]
    assert look(Layers(layers), cache) == BOTH  # a folder of its own
    layers[below] = tar("opt/venv/lib64")
    assert look(Layers(layers), cache) == ()


@pytest.mark.parametrize("name", ["layer.json", "files.json"])
def test_a_damaged_layer_of_the_cache_is_read(cache: Path, name: str) -> None:
    (cache / Part.LAYERS / "0" / name).write_text("{")
    assert look(engine(), cache) == ("triton-3.0.dist-info",)


def test_layers_from_elsewhere_are_read(cache: Path) -> None:
    """Compiled torch, and what a registry's base has."""
    compiled = Layers([tar("usr/bin/env"), tar(f"{SITE}/mine-1.0.dist-info/RECORD")])
    assert look(compiled, cache) == ()
    assert compiled.opened == 0


def test_an_engine_without_the_blobs_here_has_all_read(cache: Path) -> None:
    remote = engine()
    remote.works = False
    assert look(remote, cache) == ()
