"""Parent images: what a builder elsewhere is sent, and what an engine is handed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.servers import web_server
from tests.wheels import index, make_wheel
from torch_images.errors import LockError
from torch_images.host.image_info import ListedImage
from torch_images.host.network import Network
from torch_images.layers.make import making
from torch_images.layers.parent import PARENT_IMAGES, Layers, Layout, ParentImages, ParentRequest
from torch_images.layers.plan import LayerPlan
from torch_images.oci.layout import layout_digest, write_layout


class StandInEngine:
    """Stands in for an engine's image store: takes archives, and notes the blobs of each."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.images: dict[str, str] = {}
        self.loads: list[set[str]] = []
        self.loaded: Callable[[], None] = lambda: None

    def digest(self, image: str) -> str | None:
        return self.images.get(image)

    def listed(self) -> tuple[ListedImage, ...]:
        return tuple(
            ListedImage(id=digest, tags=(name,), labels={}) for name, digest in self.images.items()
        )

    def untag(self, reference: str) -> None:
        del self.images[reference]

    def load(self, archive: Iterable[bytes]) -> None:
        files = {}
        with tarfile.open(fileobj=io.BytesIO(b"".join(archive))) as tar:
            for member in tar:
                assert member.name not in files
                files[member.name] = (tar.extractfile(member) or io.BytesIO()).read()
        assert json.loads(files.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
        [descriptor] = json.loads(files.pop("index.json"))["manifests"]
        blobs = {name.removeprefix("blobs/sha256/"): data for name, data in files.items()}
        for digest, data in blobs.items():
            assert hashlib.sha256(data).hexdigest() == digest
        self.blobs |= blobs
        self.loads.append(set(blobs))
        name = descriptor["annotations"]["io.containerd.image.name"]
        self.images[name.removeprefix("docker.io/library/")] = descriptor["digest"]
        self.loaded()

    def document(self, digest: str) -> Any:
        return json.loads(self.blobs[digest.removeprefix("sha256:")])


@pytest.fixture
def base(tmp_path: Path) -> Layout:
    return bootstrapped(tmp_path, "base")


def bootstrapped(tmp_path: Path, name: str) -> Layout:
    """A base; its name is its only file."""
    with tarfile.open(tmp_path / "tree", "w") as tree:
        tree.addfile(tarfile.TarInfo(name))
    write_layout(tmp_path / name, tmp_path / "tree", history="the base", env=("PATH=/bin",))
    ready: Layout = Future()
    ready.set_result(tmp_path / name)
    return ready


@pytest.fixture
def layers(tmp_path: Path) -> Iterator[Layers]:
    """Two layers, which are made meanwhile."""
    with layers_of(tmp_path, "one", "two") as ready:
        yield ready


@contextlib.contextmanager
def layers_of(tmp_path: Path, *names: str) -> Iterator[Layers]:
    wheels = [make_wheel(tmp_path, name, "1.0") for name in names]
    group = [LayerPlan(title=w.locked.name, wheels=(w.locked,), python="3.11") for w in wheels]
    with (
        web_server(index(wheels)) as (url, _),
        making([group], tmp_path, Network(index=f"{url}/simple")) as ready,
    ):
        yield [ready[plan] for plan in group]


def store(tmp_path: Path, engine: StandInEngine | None = None) -> ParentImages:
    return ParentImages(tmp_path / "c", engine)  # type: ignore[arg-type]


def contexts(
    parents: ParentImages, groups: Mapping[str, Layers], base: Layout, *, compiles: bool
) -> dict[str, str]:
    """Those of one image."""
    request = ParentRequest(groups=groups, base=base, compiles=compiles)
    return parents.contexts({"image": request})["image"]


def test_a_parent_image_is_the_base_with_the_layers(
    base: Layout, layers: Layers, tmp_path: Path
) -> None:
    reference = contexts(store(tmp_path), {"cuda": layers}, base, compiles=False)["parent"]
    folder, _, digest = reference.removeprefix("oci-layout://").rpartition("@")
    assert digest == layout_digest(Path(folder))
    blobs = Path(folder, "blobs", "sha256")
    for blob in blobs.iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    manifest = json.loads((blobs / digest.removeprefix("sha256:")).read_text())
    config = json.loads((blobs / manifest["config"]["digest"].removeprefix("sha256:")).read_text())
    ready = [layer.result() for layer in layers]
    assert [h["created_by"] for h in config["history"]] == ["the base", "one", "two"]
    assert config["rootfs"]["diff_ids"][1:] == [r.layer.diff_id for r in ready]
    assert [x["digest"] for x in manifest["layers"]][1:] == [r.layer.digest for r in ready]
    assert {x["mediaType"] for x in manifest["layers"]} == {
        "application/vnd.oci.image.layer.v1.tar+zstd"
    }
    assert config["config"]["Env"] == ["PATH=/bin"]
    again = contexts(store(tmp_path / "d"), {"cuda": layers}, base, compiles=False)
    assert again["parent"].rpartition("@")[2] == digest


def test_contexts_of_an_image(base: Layout, layers: Layers, tmp_path: Path) -> None:
    one, two = layers
    groups = {"cuda": [one], "python": [two]}
    for engine in (None, StandInEngine()):
        parents = store(tmp_path, engine)
        result = contexts(parents, groups, base, compiles=True)
        assert result.keys() == {"parent", "libraries"}
        assert contexts(parents, groups, base, compiles=False).keys() == {"parent"}


def test_an_engine_gets_each_blob_once(base: Layout, layers: Layers, tmp_path: Path) -> None:
    """What is loaded is the layout that a builder elsewhere gets; the libraries come first."""
    one, two = layers
    groups, engine = {"cuda": [one], "python": [two]}, StandInEngine()
    loaded = contexts(store(tmp_path, engine), groups, base, compiles=True)
    libraries, wheels = (
        engine.document(engine.images[loaded[name].removeprefix("docker-image://")])
        for name in ("libraries", "parent")
    )
    assert wheels["layers"][:-1] == libraries["layers"]
    first, second = engine.loads
    assert not first & second
    layout = contexts(store(tmp_path), groups, base, compiles=False)["parent"]
    assert (
        engine.digest(loaded["parent"].removeprefix("docker-image://"))
        == (layout.rpartition("@")[2])
    )
    folder = Path(layout.removeprefix("oci-layout://").rpartition("@")[0])
    assert {p.name for p in (folder / "blobs" / "sha256").iterdir()} <= first | second
    assert contexts(store(tmp_path, engine), groups, base, compiles=True) == loaded
    assert len(engine.loads) == 2


@pytest.mark.parametrize(
    ("happens", "again"),
    [
        (lambda *_: None, False),
        (lambda engine, _: engine.images.clear(), True),
        (lambda _, manifest: manifest.unlink(), True),
        (lambda _, manifest: manifest.write_bytes(manifest.read_bytes() + b" "), True),
    ],
    ids=["stays", "is removed", "without a manifest", "with another manifest"],
)
def test_an_engine_gets_no_blob_of_another_parent_image(
    base: Layout,
    layers: Layers,
    tmp_path: Path,
    *,
    happens: Callable[[StandInEngine, Path], object],
    again: bool,
) -> None:
    """The same libraries on another base, as long as the engine has those of an earlier build."""
    engine = StandInEngine()
    contexts(store(tmp_path, engine), {"cuda": layers}, base, compiles=False)
    [manifest] = (tmp_path / "c" / "parents").glob("*.json")
    happens(engine, manifest)
    other = bootstrapped(tmp_path, "other")
    contexts(store(tmp_path, engine), {"cuda": layers}, other, compiles=False)
    sent = {layer.result().layer.digest.removeprefix("sha256:") for layer in layers}
    assert (sent <= engine.loads[-1]) is again
    assert again or not sent & engine.loads[-1]


def test_images_without_common_libraries_go_side_by_side(base: Layout, tmp_path: Path) -> None:
    """Neither is there before the engine has begun to take both."""
    both = threading.Barrier(2)

    class Engine(StandInEngine):
        def load(self, archive: Iterable[bytes]) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(60)
            super().load(archive)

    with layers_of(tmp_path, "one", "two") as (one, two):
        groups: list[dict[str, Layers]] = [{"cuda": [one]}, {"cuda": [two]}]
        requests = {
            name: ParentRequest(groups=group, base=base, compiles=False)
            for name, group in zip("ab", groups, strict=True)
        }
        together = store(tmp_path, Engine()).contexts(requests)
        apart = {n: store(tmp_path, StandInEngine()).contexts({n: w}) for n, w in requests.items()}
    assert not both.broken
    assert together == apart["a"] | apart["b"]


def test_contexts_stop_after_one_failure(base: Layout, tmp_path: Path) -> None:
    never, failed = Future[Any](), Future[Any]()
    failed.set_exception(LockError("not the file"))
    engine = StandInEngine()
    requests = {
        name: ParentRequest(groups={"cuda": [layer]}, base=base, compiles=False)
        for name, layer in (("a", never), ("b", failed))
    }
    with pytest.raises(LockError, match="not the file"):
        store(tmp_path, engine).contexts(requests)
    assert not engine.images


def test_an_image_that_was_removed_is_loaded_again(
    base: Layout, layers: Layers, tmp_path: Path
) -> None:
    engine = StandInEngine()
    first = contexts(store(tmp_path, engine), {"cuda": layers}, base, compiles=False)
    name = first["parent"].removeprefix("docker-image://")
    assert name.startswith(f"{PARENT_IMAGES}:")
    engine.images[name] = "sha256:another"
    contexts(store(tmp_path, engine), {"cuda": layers}, base, compiles=False)
    assert engine.images[name] != "sha256:another"
