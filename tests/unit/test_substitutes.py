"""What a build takes from a registry, and what it does not: the choice, and giving up."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.standin_registry import StandIn, standin_registry
from tests.unit.fakes import FakeRunner
from tests.unit.test_parent import bootstrapped, contexts, layers_of, made
from torch_images.build import prepare
from torch_images.build.bake import BuildOptions
from torch_images.build.plan import LockedImage, lock_image
from torch_images.build.record import recorded, wanted
from torch_images.build.substitution import LayerCount, Substitution, known
from torch_images.cli import report, verb
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import EngineError, NetworkError, UsageError
from torch_images.fetch.blobs import Blobs, LoginError
from torch_images.fetch.bootstrap import ReadyBase
from torch_images.host.cache import Part
from torch_images.host.network import Network
from torch_images.host.workspace import Workspace
from torch_images.jobs import Builder
from torch_images.layers.known import (
    KnownBase,
    KnownParent,
    known_parents,
    worth_fetching,
    worth_pulling,
)
from torch_images.layers.parent import parent_name
from torch_images.layers.plan import LayerPlan
from torch_images.layers.substitutes import Substitutes
from torch_images.locks.layers import RecordedLayer, format_record, path, read_record
from torch_images.oci.layout import Compressed, Image, Layer, first_layer, image
from torch_images.platforms import AMD64, ARM64, Platform

MB = 1 << 20


def held(size: int, name: str = "x") -> RecordedLayer:
    digest = f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"
    return RecordedLayer(title=name, key=digest[7:], digest=digest, diff_id=digest, size=size)


def parent(*layers: RecordedLayer, context: str = "parent") -> KnownParent:
    titled = [(x.title, Layer(digest=x.digest, diff_id=x.diff_id, size=x.size)) for x in layers]
    return KnownParent(context=context, image=image(None, titled), layers=layers)


def test_a_parent_is_known_before_it_is_made(tmp_path: Path) -> None:
    """Its digest is that of the layout, so a registry can be asked for it."""
    base = bootstrapped(tmp_path)
    with layers_of(tmp_path, "one", "two") as layers:
        ready = [layer.result() for layer in layers]
        done: Future[Path] = Future()
        done.set_result(base)
        made_ = contexts(made(tmp_path), {"cuda": layers[:1], "x": layers[1:]}, done, compiles=True)
    plans = [LayerPlan(title=r.title, wheels=(), python=r.title) for r in ready]
    record = {p.key: recorded(r.title, p.key, r.layer) for p, r in zip(plans, ready, strict=True)}
    layer = first_layer(base)
    start = KnownBase(
        layer=recorded("base", "b", layer),
        image=image(None, [("the base", layer)], ("PATH=/bin",)),
    )
    groups = {"cuda": plans[:1], "x": plans[1:]}
    found = {p.context: p for p in known_parents(record, groups, start, compiles=True)}
    assert {name: p.image.digest for name, p in found.items()} == {
        name: text.rpartition("@")[2] for name, text in made_.items()
    }
    assert [x.title for x in found["parent"].layers] == ["base", "one", "two"]
    assert [p.context for p in known_parents(record, groups, start, compiles=False)] == ["parent"]
    del record[plans[1].key]
    assert known_parents(record, groups, start, compiles=True) == ()


@pytest.mark.parametrize(
    ("sizes", "in_engine", "instead", "worth"),
    [
        ((100 * MB, 50 * MB), "", 150 * MB, True),
        ((100 * MB, 70 * MB), "", 150 * MB, False),
        ((100 * MB, 70 * MB), "1", 150 * MB, True),
        ((100 * MB, 70 * MB), "01", 0, False),  # all is in the cache: nothing is fetched
        ((100 * MB, 70 * MB), "01", 1, True),
        ((100 * MB, 50 * MB), "", 50 * MB, False),  # the large one is in the cache
    ],
)
def test_a_pull_needs_no_more_bytes_than_packing(
    sizes: tuple[int, ...], in_engine: str, instead: int, worth: bool
) -> None:
    layers = [held(size, str(number)) for number, size in enumerate(sizes)]
    there = {layer.diff_id for layer in layers if layer.title in in_engine}
    both = [parent(*layers), parent(layers[0], context="libraries")]  # shares a layer
    assert worth_pulling(both, there, instead) == worth


def test_a_layer_is_fetched_if_it_is_hardly_larger_than_its_wheels() -> None:
    plan = LayerPlan(title="x", wheels=(), python="3.11")
    assert worth_fetching(held(MB), plan)
    assert not worth_fetching(held(MB + 1), plan)


def test_what_a_layer_and_its_wheels_are_for_real(config: Config, root: Path) -> None:
    """The rule lets the layers of real images through: by the committed record."""
    record = read_record(root / "locks")
    parts = wanted(config, [lock_image(config, choose(config), root / "locks")], root)
    both = [(record[key], plan) for key, plan in parts.plans.items() if key in record]
    assert all(worth_fetching(layer, plan) for layer, plan in both)


class FakeEngine:
    """An engine that pulls what a test says, and remembers names."""

    def __init__(self, *, gives: str = "", error: Exception | None = None) -> None:
        self.names: dict[str, str] = {}
        self.pulled: list[str] = []
        self.gives, self.error = gives, error

    def platform(self) -> Platform:
        return AMD64

    def pull(self, image: str, report: Callable[[Mapping[str, Any]], None]) -> None:
        self.pulled.append(image)
        if self.error:
            raise self.error
        report({"id": "a", "status": "Downloading", "progressDetail": {"current": 1}})
        report({"id": "a", "status": "Pull complete"})
        self.names[image] = self.gives or image.rpartition("@")[2]

    def digest(self, image: str) -> str | None:
        return self.names.get(image)

    def tag(self, image: str, repository: str, tag: str) -> None:
        self.names[f"{repository}:{tag}"] = self.names[image]

    def untag(self, reference: str) -> None:
        del self.names[reference]

    def tags(self, prefix: str) -> tuple[str, ...]:
        return tuple(name for name in self.names if name.startswith(prefix))

    def inspect(self, name: str) -> Any:
        raise UsageError(f"no layers of {name}")


@dataclasses.dataclass
class World:
    """A layer that a stand-in for a registry has, the record with it, and what takes it."""

    plan: LayerPlan
    layer: RecordedLayer
    parent: KnownParent
    standin: StandIn

    def take(self, **changes: Any) -> Substitutes:
        layer = dataclasses.replace(self.layer, **changes)
        return Substitutes(f"{self.standin.host}/me/x", {layer.key: layer}, Network(), patience=60)


@pytest.fixture
def world() -> Iterator[World]:
    plan = LayerPlan(title="one", wheels=(), python="3.11")
    blob = io.BytesIO()
    sink = Compressed(blob)
    with tarfile.open(fileobj=sink, mode="w:") as tar:
        tar.addfile(tarfile.TarInfo("f"))
    layer = recorded("one", plan.key, sink.finish())
    known_ = parent(layer)
    documents = {f"sha256:{hashlib.sha256(d).hexdigest()}": d for d in known_.image.documents}
    with standin_registry({layer.digest: blob.getvalue(), **documents}) as standin:
        yield World(plan, layer, known_, standin)


def test_a_layer_is_fetched(world: World, tmp_path: Path) -> None:
    take = world.take()
    layer = take.fetch(world.plan, tmp_path / "blob")
    assert layer == Layer(
        digest=world.layer.digest, diff_id=world.layer.diff_id, size=world.layer.size
    )
    assert take.taken == {world.plan.key}
    other = dataclasses.replace(world.plan, python="3.12")
    assert take.fetch(other, tmp_path / "other") is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"size": 3}, "it sent other bytes"),
        ({"diff_id": "sha256:" + "0" * 64}, "is wrong about the content of one"),
    ],
)
def test_the_first_thing_that_is_wrong_ends_it(
    changes: dict[str, Any],
    text: str,
    world: World,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With one line, however often it is asked; the registry is asked no more, nor for a parent."""
    take = world.take(**changes)
    assert take.fetch(world.plan, tmp_path / "blob") is None
    world.standin.asked.clear()
    assert take.fetch(world.plan, tmp_path / "blob") is None
    assert not take.pull([world.parent], FakeEngine())  # type: ignore[arg-type]
    assert world.standin.asked == []
    [message] = caplog.messages
    assert message.startswith(world.standin.host)
    assert text in message
    assert message.endswith("; the rest is packed here")
    assert take.taken == set()


def test_what_is_no_archive_is_not_taken(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A record that names bytes which are no layer at all."""
    data = b"no zstd"
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    with standin_registry({digest: data}) as standin:
        layer = dataclasses.replace(world.layer, digest=digest, size=len(data))
        take = Substitutes(f"{standin.host}/me/x", {layer.key: layer}, Network())
        assert take.fetch(world.plan, tmp_path / "blob") is None
    assert "is wrong about the content" in caplog.text


def test_a_layer_that_is_missing_is_packed_without_a_word(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world.standin.lies[world.layer.digest] = "missing"
    assert world.take().fetch(world.plan, tmp_path / "blob") is None
    assert caplog.messages == []


def test_a_parent_is_pulled_and_has_the_name_that_builds_know(world: World) -> None:
    engine, take = FakeEngine(), world.take()
    assert take.pull([world.parent], engine)  # type: ignore[arg-type]
    digest = world.parent.image.digest
    assert engine.names == {parent_name(world.parent.image): digest}
    assert engine.pulled == [f"{world.standin.host}/me/x@{digest}"]
    assert take.taken == {world.plan.key}


def test_a_parent_that_is_missing_is_not_asked_of_the_engine(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Two are wanted: one is there, the other is not. The layers may be there all the same."""
    engine, take = FakeEngine(), world.take()
    both = [world.parent, parent(held(5))]
    assert not take.pull(both, engine)  # type: ignore[arg-type]
    assert (engine.pulled, caplog.messages) == ([], [])


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        (FakeEngine(error=NetworkError("it broke off")), "it broke off"),
        (FakeEngine(error=EngineError("no room")), "no room"),
        (FakeEngine(gives="sha256:another"), "pulled another image"),
    ],
)
def test_a_pull_that_fails_leaves_no_name_of_a_parent(
    engine: FakeEngine, text: str, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    assert not world.take().pull([world.parent], engine)  # type: ignore[arg-type]
    assert engine.tags("torch-images-parent") == ()
    assert text in caplog.text


def test_a_registry_with_a_login_is_left_to_the_engine(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, take = FakeEngine(), world.take()

    def refuse(_: object, _digest: str) -> bool:
        raise LoginError

    monkeypatch.setattr(Blobs, "has_manifest", refuse)
    assert take.pull([world.parent], engine)  # type: ignore[arg-type]


@dataclasses.dataclass
class Planned:
    """The default image, a record of all that it is made of, and where that lies."""

    config: Config
    image: LockedImage
    workspace: Workspace

    def substitution(self, namespace: str = "127.0.0.1:1/me") -> Substitution:
        return Substitution(self.config, [self.image], self.workspace, namespace)

    @property
    def parent(self) -> Image:
        record = read_record(self.workspace.locks)
        found = known(self.config, record, self.image, self.workspace.root)
        assert found
        [one] = found.parents
        return one.image


@pytest.fixture
def planned(config: Config, root: Path, tmp_path: Path) -> Planned:
    image_ = lock_image(config, choose(config, platform="linux/amd64"), root / "locks")
    image_ = dataclasses.replace(image_, lock=dataclasses.replace(image_.lock, compat=None))
    parts = wanted(config, [image_], root)
    layers = [
        recorded(f"t{n}", key, Layer(digest=held(1, key).digest, diff_id="sha256:" + key, size=1))
        for n, key in enumerate(parts.keys)
    ]
    (tmp_path / "locks").mkdir()
    path(tmp_path / "locks").write_text(format_record(layers))
    place = Workspace(
        root=root, cache=tmp_path / "cache", network=Network(), locks=tmp_path / "locks"
    )
    return Planned(config, image_, place)


def test_an_image_whose_parent_is_there_needs_neither_base_nor_layers(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No registry is asked; the base is the one that would have been made."""
    engine = FakeEngine()
    engine.names[parent_name(planned.parent)] = planned.parent.digest

    def fail(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(prepare, "making", fail)
    monkeypatch.setattr(prepare, "prepare_base", fail)
    substitution = planned.substitution()
    nobody: Any = engine
    images, parts = prepare.prepare_inputs(
        planned.config, [planned.image], planned.workspace, BuildOptions(compat="off"),
        engine=nobody, builds=nobody, run=FakeRunner(), substitution=substitution,
    )  # fmt: skip
    [image_] = images
    assert image_.lock == planned.image.lock
    part = parts[image_.target]
    assert part.parents == {"parent": f"docker-image://{parent_name(planned.parent)}"}
    assert part.base.digest.startswith("sha256:")
    assert substitution.count(image_) == LayerCount(taken=0, here=15, packed=0)
    assert engine.pulled == []


@pytest.mark.parametrize("what", ["packs", "arm", "unlocked", "incomplete", "another", "cached"])
def test_an_image_that_is_made_here(
    what: str, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    if what != "another":
        engine.names[parent_name(planned.parent)] = planned.parent.digest
    namespace, lock = "127.0.0.1:1/me", planned.image.lock
    if what == "packs":
        namespace = ""
    elif what == "arm":
        monkeypatch.setattr(FakeEngine, "platform", lambda _: ARM64)
    elif what == "unlocked":
        lock = dataclasses.replace(lock, base=dataclasses.replace(lock.base, unlocked=True))
        planned.image = dataclasses.replace(planned.image, lock=lock)
    elif what == "incomplete":
        text = path(planned.workspace.locks).read_text().splitlines(keepends=True)
        path(planned.workspace.locks).write_text("".join(text[:-2]))
    elif what == "another":
        engine.names[parent_name(planned.parent)] = "sha256:another"
    found = planned.substitution(namespace)
    if what == "cached":
        for plan in found._plans[planned.image.target]:
            (planned.workspace.cache / Part.LAYERS / plan.key).mkdir(parents=True)
        engine.names.clear()
        found = planned.substitution(namespace)
    assert found.starts(engine) == {}  # type: ignore[arg-type]
    assert engine.pulled == []
    if what == "packs":
        count = LayerCount(taken=0, here=0, packed=15)
        assert found.count(planned.image) == count


def test_a_base_that_is_taken_is_not_made_for_an_image(planned: Planned) -> None:
    lock = planned.image.lock.base
    base = ReadyBase(lock=lock, contexts={}, digest="sha256:x")
    assert base.layout is None


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (LayerCount(taken=14, here=0, packed=1, repository="r/x"), "14 of 15 from r/x, 1 of 15 packed"),
        (LayerCount(taken=0, here=15, packed=0), "15 of 15 were here"),
        (LayerCount(taken=3, here=12, packed=0, repository="r/x"), "3 of 15 from r/x, 12 of 15 were here"),
        (LayerCount(taken=0, here=0, packed=15), "15 of 15 packed"),
        (LayerCount(taken=0, here=0, packed=0), "0 of 0 were here"),
    ],
)  # fmt: skip
def test_what_came_from_where(count: LayerCount, text: str) -> None:
    assert report.layers(**dataclasses.asdict(count)) == text


def test_a_plan_says_what_could_be_taken(planned: Planned) -> None:
    def lines(**options: Any) -> list[str]:
        text = report.plan(
            planned.config, [planned.image], BuildOptions(compat="off", **options),
            planned.workspace, Builder(cores=2, memory=10**10),
        )  # fmt: skip
        return [line for line in text.splitlines() if "layers" in line]

    where = "ghcr.io/me/torch-cu130"
    assert lines(substitute="ghcr.io/me") == [
        f"  layers: 15 of 15 are recorded, to be taken from {where}"
    ]
    assert lines() == lines(substitute="ghcr.io/me", no_cache=True) == []


def test_where_layers_are_taken_from(config: Config) -> None:
    off = {"--no-cache": False, "--stale": False}
    assert verb.substitute(config, "", off=off) == f"{config.registry}/{config.owner}"
    assert verb.substitute(config, "127.0.0.1:5000/me", off=off) == "127.0.0.1:5000/me"
    assert verb.substitute(config, "", off={**off, "--stale": True}) == ""
    with pytest.raises(UsageError, match="--no-cache packs every layer here; leave it or"):
        verb.substitute(config, "ghcr.io/me", off={**off, "--no-cache": True})
    with pytest.raises(UsageError, match="give host and owner"):
        verb.substitute(config, "https://ghcr.io", off=off)
