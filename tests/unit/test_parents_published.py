"""Which parent images a push leaves beside an image, and what it says where it leaves none."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torch_images.build.plan import lock_image
from torch_images.build.record import recorded, wanted
from torch_images.build.substitution import known
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import NetworkError, VerifyError
from torch_images.host.network import Network
from torch_images.host.workspace import Workspace
from torch_images.layers.parent import parent_name
from torch_images.locks.layers import format_record, path, read_record
from torch_images.oci.layout import Layer
from torch_images.publish.parents import Beside, beside, push_beside
from torch_images.publish.push import Transfer


class Engine:
    """Notes what is pushed; `arrives` is the digest that the registry has afterwards."""

    def __init__(self, names: dict[str, str], arrives: str = "") -> None:
        self.names, self.arrives = names, arrives
        self.pushed: list[str] = []

    def digest(self, name: str) -> str | None:
        return self.names.get(name)

    def tag(self, image: str, repository: str, tag: str) -> None:
        self.names[f"{repository}:{tag}"] = self.names[image]

    def untag(self, name: str) -> None:
        del self.names[name]

    def push(self, name: str, _: object) -> None:
        self.pushed.append(name)

    def registry_digest(self, name: str, **_: object) -> str:
        return self.arrives or self.names[name]


@dataclasses.dataclass
class World:
    config: Config
    image: Any
    workspace: Workspace
    engine: Any
    name: str
    digest: str

    def beside(self) -> Beside:
        return beside(self.config, self.image, "r.example/me", self.workspace, self.engine)


@pytest.fixture
def world(config: Config, root: Path, tmp_path: Path) -> World:
    plan = lock_image(config, choose(config), root / "locks")
    layers = [
        recorded(f"t{n}", key, Layer(digest=f"sha256:{key}", diff_id=f"sha256:{key}", size=1))
        for n, key in enumerate(wanted(config, [plan], root).keys)
    ]
    path(tmp_path).write_text(format_record(layers))
    found = known(config, read_record(tmp_path), plan, root)
    assert found
    [parent] = found.parents
    held = (*(layer.diff_id for layer in layers), "sha256:more")
    image = SimpleNamespace(plan=plan, info=SimpleNamespace(layers=held))
    place = Workspace(root=root, cache=tmp_path, network=Network(), locks=tmp_path)
    name, digest = parent_name(parent.image), parent.image.digest
    return World(config, image, place, Engine({name: digest}), name, digest)


def test_a_parent_image_is_named_by_its_digest(world: World) -> None:
    found = world.beside()
    repository = f"r.example/me/{world.image.plan.spec.repository}"
    assert found.images == (
        (world.name, world.digest, f"{repository}:parent-{world.digest[7:23]}"),
    )
    assert not found.lacking


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("no record", "run `invoke lock --layers` and commit that"),
        ("gone", "build the image again"),
        ("another", "build the image again"),
        ("other layers", "build the image again"),
        ("copies", "it holds copies of its wheels"),
    ],
)
def test_why_there_is_none(what: str, text: str, world: World) -> None:
    if what == "no record":
        path(world.workspace.locks).unlink()
    elif what == "gone":
        world.engine.names.clear()
    elif what == "another":
        world.engine.names[world.name] = "sha256:another"
    elif what == "other layers":  # what a push would upload a second time
        world.image.info.layers = world.image.info.layers[1:]
    else:
        lock = world.image.plan.lock
        base = dataclasses.replace(lock.base, image="r/x@sha256:" + "0" * 64)
        lock = dataclasses.replace(lock, base=base)
        world.image.plan = dataclasses.replace(world.image.plan, lock=lock)
    found = world.beside()
    assert found.images == ()
    assert text in found.lacking


def push(world: World, there: str = "") -> list[str]:
    said: list[str] = []
    push_beside(
        world.beside(), world.engine, retries=0, transfer=Transfer(lambda *_: None),
        lookup=lambda _: there, say=said.append,
    )  # fmt: skip
    return said


def test_it_is_pushed_once_and_leaves_no_name_in_the_engine(world: World) -> None:
    [(_, _, reference)] = world.beside().images
    assert push(world) == [f"pushed {reference}"]
    assert world.engine.pushed == [reference]
    assert world.engine.names == {world.name: world.digest}
    assert push(world, there=world.digest) == []
    assert world.engine.pushed == [reference]


def test_what_arrives_is_what_was_sent(world: World) -> None:
    world.engine.arrives = "sha256:another"
    with pytest.raises(VerifyError):
        push(world)
    assert world.engine.names == {world.name: world.digest}


def test_a_push_that_breaks_off_leaves_no_name_in_the_engine(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise NetworkError("it broke off")

    monkeypatch.setattr(Engine, "push", fail)
    with pytest.raises(NetworkError):
        push(world)
    assert world.engine.names == {world.name: world.digest}
