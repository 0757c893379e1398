"""Which wheels of an image need not be read again, by what its layers say of themselves."""

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

from tests.unit.fakes import workspace_of
from torch_images.errors import EngineError
from torch_images.host.cache import Part
from torch_images.host.engine import Engine
from torch_images.host.image_info import ImageInfo
from torch_images.host.workspace import Workspace
from torch_images.oci.contents import Contents, contents
from torch_images.verify.unchanged import NOTHING, Unchanged, unchanged

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
def space(tmp_path: Path) -> Workspace:
    """A cache with two layers of wheels, and the checks."""
    for number, files in enumerate((TORCH, TRITON)):
        folder = tmp_path / "cache" / Part.LAYERS / str(number)
        folder.mkdir(parents=True)
        (folder / "layer.json").write_text(json.dumps({"diff_id": digest(tar(*files))}))
        (folder / "files.json").write_text(json.dumps(files))
    for name in ("installed.py", "test_files.py"):
        path = tmp_path / "tests" / "image" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return workspace_of(tmp_path, tmp_path / "cache")


def engine(*above: bytes) -> Layers:
    """An image of a base, both layers of wheels, and others above."""
    return Layers([tar("usr/bin/env"), tar(*TORCH), tar(*TRITON), *above])


def look(engine: Layers, space: Workspace, *, fresh: bool = False) -> Unchanged:
    return unchanged(engine.image, space, engine, fresh=fresh)


BOTH = ("torch-2.0.dist-info", "triton-3.0.dist-info")


def test_layers_that_passed_in_another_image_are_not_read_again(space: Workspace) -> None:
    first, other = engine(tar("etc/one")), engine(tar("etc/two"), tar(f"{SITE}/x.py"))
    assert look(first, space).wheels == look(other, space).wheels == ()
    look(first, space).passed(first.image.id)
    assert look(first, space).wheels == look(other, space).wheels == BOTH
    assert look(other, space, fresh=True).wheels == ()


def test_a_layer_of_which_one_file_is_replaced_above_is_read(space: Workspace) -> None:
    first, derived = engine(), engine(tar(TORCH[0]))
    look(first, space).passed(first.image.id)
    assert look(derived, space).wheels == ("triton-3.0.dist-info",)


@pytest.mark.parametrize("below", [0, 3])
def test_a_file_that_is_replaced_through_a_link(space: Workspace, below: int) -> None:
    """The link is in the base or above the wheels; no path of the layer is one of a wheel."""
    first, through = engine(), TORCH[0].replace("venv/lib", "venv/lib64")
    look(first, space).passed(first.image.id)
    layers = [tar("usr/bin/env"), tar(*TORCH), tar(*TRITON), tar("etc/one"), tar(through)]
    assert look(Layers(layers), space).wheels == BOTH  # a folder of its own
    layers[below] = tar("opt/venv/lib64")
    assert look(Layers(layers), space) == NOTHING


def test_a_layer_whose_file_is_hidden_has_not_passed(space: Workspace) -> None:
    """The file that was read is of the layer above."""
    derived = engine(tar(TORCH[0]))
    look(derived, space).passed(derived.image.id)
    assert look(engine(), space).wheels == ("triton-3.0.dist-info",)


@pytest.mark.parametrize("name", ["layer.json", "files.json"])
def test_a_damaged_layer_of_the_cache_is_read(space: Workspace, name: str) -> None:
    look(engine(), space).passed("sha256:1")
    (space.cache / Part.LAYERS / "0" / name).write_text("{")
    assert look(engine(), space).wheels == ("triton-3.0.dist-info",)


def test_a_layer_that_another_check_passed_is_read(space: Workspace) -> None:
    look(engine(), space).passed("sha256:1")
    (space.root / "tests/image/installed.py").write_text("another")
    assert look(engine(), space).wheels == ()


def test_layers_from_elsewhere_are_read(space: Workspace) -> None:
    """Compiled torch, and what a registry's base has."""
    compiled = Layers([tar("usr/bin/env"), tar(f"{SITE}/mine-1.0.dist-info/RECORD")])
    assert look(compiled, space) == NOTHING
    assert compiled.opened == 0
