"""What images start from, in the image store of a real engine."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import IO, cast

import pytest

from torch_images.errors import LockError, UsageError
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.layers.make import ReadyLayer
from torch_images.layers.parent import PARENT_IMAGES, Layers, ParentImages, ParentRequest
from torch_images.maintain import gc
from torch_images.oci.layout import Compressed, write_layout

# Where containerd listens that dockerd started itself, and where one that is a service does.
CONTAINERD = (
    Path("/run/docker/containerd/containerd.sock"),
    Path("/run/containerd/containerd.sock"),
)


def contexts(
    parents: ParentImages, groups: Mapping[str, Layers], file: str = "base"
) -> dict[str, str]:
    """Those of one image, on a base with one file."""
    with tempfile.TemporaryDirectory() as folder:
        tree, base = Path(folder, "tree"), Future[Path]()
        with tarfile.open(tree, "w") as archive:
            archive.addfile(tarfile.TarInfo(file))
        write_layout(Path(folder, "base"), tree, history="the base")
        base.set_result(Path(folder, "base"))
        request = ParentRequest(groups=groups, base=base, compiles=False)
        return parents.contexts({"image": request})["image"]


def layer(folder: Path, name: str) -> Future[ReadyLayer]:
    """A layer with one file, that no engine has."""
    path, data = folder / name, os.urandom(100_000)
    with path.open("wb") as target:
        sink = Compressed(target)
        with tarfile.open(fileobj=cast("IO[bytes]", sink), mode="w:") as archive:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        written = sink.finish()
    ready: Future[ReadyLayer] = Future()
    ready.set_result(ReadyLayer(title=name, layer=written, path=path))
    return ready


@pytest.fixture
def layers(tmp_path: Path) -> Layers:
    return [layer(tmp_path, name) for name in ("one", "two")]


@pytest.fixture
def parents(engine: Engine, layers: Layers, tmp_path: Path) -> Iterator[ParentImages]:
    yield ParentImages(tmp_path / "cache", engine)
    for name in having(engine, layers):
        engine.untag(name)


def having(engine: Engine, layers: Layers) -> list[str]:
    """The parent images in the engine with one of these layers; other builds make others meanwhile."""
    ours, names = {each.result().layer.diff_id for each in layers}, []
    for name in engine.tags(f"{PARENT_IMAGES}:"):
        with contextlib.suppress(UsageError):  # gone since it was listed
            if ours & set(engine.inspect(name).layers):
                names.append(name)
    return names


def test_build_from_a_parent_image(
    parents: ParentImages, layers: Layers, engine: Engine, runner: Runner, tmp_path: Path
) -> None:
    """No registry is asked; layers that an earlier one brought are not handed over again."""
    contexts(parents, {"one": layers[:1]})
    [context] = contexts(parents, {"both": layers}).values()
    (tmp_path / "Dockerfile").write_text("FROM wheels\nCOPY Dockerfile /\n")
    name = "torch-images-test:parent"
    command = ["docker", "buildx", "build", f"--build-context=wheels={context}", f"--tag={name}"]
    runner.run([*command, "--provenance=false", str(tmp_path)])
    try:
        diff_ids = [each.result().layer.diff_id for each in layers]
        assert list(engine.inspect(name).layers[1:3]) == diff_ids
    finally:
        engine.untag(name)


def test_layers_stay_after_the_parent_image_that_brought_them(
    parents: ParentImages, layers: Layers, engine: Engine, runner: Runner, tmp_path: Path
) -> None:
    """The engine gets them once for both bases, and keeps them for the second."""
    [first] = contexts(parents, {"x": layers}).values()
    for each in layers:  # nobody could hand them over again
        each.result().path.unlink()
    later = ParentImages(tmp_path / "cache", engine)
    [second] = contexts(later, {"x": layers}, "another").values()
    assert first != second
    engine.untag(first.removeprefix("docker-image://"))
    saved = tmp_path / "saved.tar"
    runner.run(["docker", "save", "--output", str(saved), second.removeprefix("docker-image://")])
    with tarfile.open(saved) as archive:
        blobs = {Path(name).name for name in archive.getnames()}
    assert {each.result().layer.digest.removeprefix("sha256:") for each in layers} <= blobs


def test_remove_prunes_a_parent_image(
    parents: ParentImages, layers: Layers, engine: Engine, tmp_path: Path
) -> None:
    [context] = contexts(parents, {"x": layers}).values()
    name = context.removeprefix("docker-image://")
    [item] = [x for x in gc.images(tmp_path, engine) if x.name == name]
    assert item.size > 200_000
    assert list(gc.remove([item], engine)) == [item]
    assert engine.digest(name) is None


def test_contexts_leave_nothing_after_a_failure(
    parents: ParentImages, layers: Layers, engine: Engine
) -> None:
    """A layer that fails while the others are handed over; the engine takes the next one."""
    failed: Future[ReadyLayer] = Future()
    failed.set_exception(LockError("not the locked file"))
    with pytest.raises(LockError, match="not the locked file"):
        contexts(parents, {"x": [*layers, failed]})
    assert having(engine, layers) == []
    [context] = contexts(parents, {"x": layers}).values()
    assert [f"docker-image://{name}" for name in having(engine, layers)] == [context]


def test_an_image_that_another_command_still_loads(
    parents: ParentImages, layers: Layers, engine: Engine, runner: Runner, tmp_path: Path
) -> None:
    """The engine lists it before its layers are unpacked; all that goes through images passes by.

    containerd's own client leaves an image in that state.
    """
    [context] = contexts(parents, {"x": layers}).values()
    name = context.removeprefix("docker-image://")
    saved = tmp_path / "saved.tar"
    runner.run(["docker", "save", "--output", str(saved), name])
    engine.untag(name)
    [socket] = [path for path in CONTAINERD if path.is_socket()]
    command = ["ctr", f"--address={socket}", "--namespace=moby", "images", "import"]
    runner.run([*command, "--local", "--no-unpack", str(saved)])
    with pytest.raises(
        UsageError, match=r"is incomplete: another command is loading or removing it; wait"
    ):
        engine.inspect(name)
    assert having(engine, layers) == []
    assert name not in {item.name for item in gc.images(tmp_path, engine)}
    engine.untag(name)
