"""Images of several platforms under one name: sisters, their index, and what a registry says of one."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.releases import M130, T130
from tests.unit.fakes import FakeRunner
from torch_images.build import labels
from torch_images.build.plan import lock_image, plan_image
from torch_images.config.choose import choose
from torch_images.config.image import ImageSpec
from torch_images.config.matrix import kin, matrix, sisters
from torch_images.config.types import Config
from torch_images.errors import NetworkError, PublishError, PushError, UsageError, VerifyError
from torch_images.host.engine import Engine
from torch_images.host.image_info import ImageInfo
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.publish import registry
from torch_images.publish.datasheet import describe, markdown, save
from torch_images.publish.index import INDEX, Index
from torch_images.publish.joint import join
from torch_images.publish.push import (
    Preview,
    Transfer,
    preview,
    publish,
    push_index,
    unpublished,
)
from torch_images.publish.registry import contents, exact, lookup, make_index, published
from torch_images.publish.runpod import built, in_registry
from torch_images.publish.tag_rules import (
    MOVES,
    NEW,
    STAYS,
    THERE,
    Manifest,
    Move,
    Names,
    TagTarget,
    floating,
    plan_moves,
)
from torch_images.verify.identify import VerifiedImage
from torch_images.verify.verify import VerifyReport

AMD64, ARM64 = "linux/amd64", "linux/arm64"
OCI = "application/vnd.oci.image.manifest.v1+json"
WHERE, REPOSITORY = "r.io:5000/me", "r.io:5000/me/torch-cu130"
SEEN = {"cuda": "13.0", "torch": f"{T130}+cu130", "triton": "3.8.0"}


@pytest.fixture(scope="module")
def workspace(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The project, with locks of its own."""
    folder = tmp_path_factory.mktemp("project")
    locks = shutil.copytree(root / "locks", folder / "locks")
    return Workspace(root=root, cache=folder, network=Network(), locks=locks)


def digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def verified(
    config: Config, workspace: Workspace, platform: str, compat: str = "without"
) -> VerifiedImage:
    """The default image for a platform."""
    spec = choose(config, platform=platform, compat=compat)
    plan = plan_image(config, lock_image(config, spec, workspace.locks), workspace.root)
    told = labels.write(config, plan)
    info = ImageInfo(
        id=digest(plan.identity), size=1, labels=told, config={}, created="2026-11-02T00:00:00Z"
    )
    seen = {**SEEN, **{f"arch {name}": "native" for name in plan.spec.arches}}
    report = VerifyReport(
        digest=info.id, id=plan.spec.id, suite="", checks=(), observed=seen, seconds=1
    )
    return VerifiedImage(plan=plan, info=info, report=report)


def manifest(image: VerifiedImage, **changes: Any) -> Manifest:
    held = Manifest(
        platform=image.plan.spec.platform.name,
        digest=image.info.id,
        media_type=OCI,
        size=475,
        created=image.info.created,
        labels=labels.read(image.info.labels),
    )
    return dataclasses.replace(held, **changes)


def single(held: Manifest) -> TagTarget:
    target = TagTarget.of(held.digest, held.created, held.labels)
    return dataclasses.replace(target, manifests=(held,))


def held_by(*images: VerifiedImage) -> dict[str, TagTarget]:
    """A registry that has just these images, by their immutable names."""
    found = [manifest(image) for image in images]
    return {f"{REPOSITORY}:{m.labels.version}": single(m) for m in found}


@dataclasses.dataclass(frozen=True)
class Pair:
    """The default image for both platforms, and what is asked of them."""

    config: Config
    workspace: Workspace
    amd64: VerifiedImage
    arm64: VerifiedImage

    @property
    def both(self) -> tuple[VerifiedImage, VerifiedImage]:
        return self.amd64, self.arm64

    def index(self, *held: Manifest) -> Index:
        return Index(repository="torch-cu130", version=T130, manifests=held)

    def due(self, image: VerifiedImage, held: Mapping[str, TagTarget]) -> set[str]:
        """The digests of the images that floating tags have to name."""
        others = sisters(self.config, image.plan.spec)
        found = join(
            *(self.config, others, manifest(image), f"{REPOSITORY}:{T130}"),
            lookup=held.get,
            workspace=self.workspace,
        )
        assert [m.platform for m in found] == sorted({m.platform for m in found})
        return {m.digest for m in found}

    def look(self, image: VerifiedImage, held: Mapping[str, TagTarget], **options: bool) -> Preview:
        """What a push would do."""
        return preview(
            self.config,
            image,
            WHERE,
            lookup=held.get,
            workspace=self.workspace,
            **options,
        )

    def joint(self, held: Mapping[str, TagTarget]) -> Index:
        """The index that is due when a registry has these."""
        [found] = self.look(self.amd64, held).joint
        return found.index


@pytest.fixture
def pair(config: Config, workspace: Workspace) -> Pair:
    """Of a catalogue without images with the compat library."""
    rows = tuple(row for row in config.catalogue if "compat" not in dict(row.values))
    plain = dataclasses.replace(config, catalogue=rows)
    return Pair(plain, workspace, *(verified(plain, workspace, p) for p in (AMD64, ARM64)))


# --- which images are sisters ---------------------------------------------------------------------


def test_sisters_are_images_of_the_catalogue_and_each_others(config: Config) -> None:
    name = f"cu130-torch{T130}-trixie-runtime"
    images = {spec.id: spec for spec in matrix(config)}
    assert sisters(config, images[name]) == (images[f"{name}-arm64"],)
    assert sisters(config, images[f"{name}-compat"]) == (images[f"{name}-arm64"],)
    for axes in ({"cuda": "12.8"}, {"variant": "devel"}, {"arch": "12.0"}, {"arch": "9.0,12.0"}):
        assert sisters(config, choose(config, **axes, platform=AMD64)) == ()
    # Of one that is not listed they would be its sisters, too.
    older = choose(config, torch="2.13.0", platform=ARM64)
    assert [spec.id for spec in sisters(config, older)] == [name.replace(T130, "2.13.0")]
    for spec in images.values():
        for sister in sisters(config, spec):
            assert images[sister.id] == sister
            assert spec in sisters(config, sister)


def test_floating_tags_have_no_platform_and_no_older_torch(config: Config) -> None:
    """A release that one platform has takes no tag from a newer one that another has."""
    assert floating(config, choose(config, arch="12.1", platform=ARM64))[-1] == "sm121"
    older = choose(config, torch="2.13.0", platform=ARM64)
    assert {T130, "2.13.0"} <= {spec.torch for spec in kin(config, older)}
    assert floating(config, older) == ("2.13.0", "2.13")


# --- the index ------------------------------------------------------------------------------------


def test_an_index_says_what_it_has(pair: Pair) -> None:
    amd64, arm64 = map(manifest, pair.both)
    arm64 = dataclasses.replace(arm64, created="2026-11-01T05:00:00Z")
    found = pair.index(amd64, arm64)
    document = json.loads(found.data)
    assert document["manifests"] == [
        {
            "mediaType": OCI,
            "digest": m.digest,
            "size": 475,
            "platform": {"architecture": name, "os": "linux"},
        }
        for m, name in ((amd64, "amd64"), (arm64, "arm64"))
    ]
    assert document["annotations"] == {
        "org.opencontainers.image.created": "2026-11-01T05:00:00Z",
        "org.opencontainers.image.title": "torch-cu130",
        "org.opencontainers.image.version": found.version,
    }
    assert found.digest == f"sha256:{hashlib.sha256(found.data).hexdigest()}"
    assert found.target.created == "2026-11-01"
    assert found.target.torch == T130


# --- which index is due ---------------------------------------------------------------------------


@contextlib.contextmanager
def without(lock: Path) -> Iterator[None]:
    """A lock is away."""
    away = lock.rename(lock.with_suffix(".away"))
    try:
        yield
    finally:
        away.rename(lock)


def test_the_platforms_that_are_there_are_named(pair: Pair) -> None:
    amd64, arm64 = (image.info.id for image in pair.both)
    assert pair.due(pair.amd64, {}) == {amd64}
    assert pair.due(pair.arm64, {}) == {arm64}
    held = held_by(*pair.both)
    for image in pair.both:
        assert pair.due(image, held) == {amd64, arm64}
    with without(pair.workspace.locks / "base-trixie-arm64.json"):
        assert pair.due(pair.amd64, held) == {amd64}


def test_a_platform_stays_until_it_is_pushed_anew(pair: Pair) -> None:
    """The inputs of one platform can change before those of the other are built."""
    old = manifest(pair.arm64, digest=digest("old"), created="2026-11-01T00:00:00Z")
    exact = f"{REPOSITORY}:{T130}"
    before = single(old)
    assert pair.due(pair.amd64, {exact: before}) == {pair.amd64.info.id, old.digest}
    held = {**held_by(pair.arm64), exact: before}
    assert pair.due(pair.amd64, held) == {pair.amd64.info.id, pair.arm64.info.id}
    # Another torch has no business below this tag.
    other = dataclasses.replace(before, torch="2.0.0")
    assert pair.due(pair.amd64, {exact: other}) == {pair.amd64.info.id}


@pytest.mark.parametrize(
    "change",
    [
        {"platform": AMD64},
        {"label": {"org.opencontainers.image.version": "another"}},
        {"label": {"io.github.torch-images.torch": "1.0"}},
        {"label": {"io.github.torch-images.id": f"cu130-torch{T130}-trixie-runtime"}},
    ],
)
def test_a_sister_is_what_its_name_says(pair: Pair, change: dict[str, Any]) -> None:
    [name] = held_by(pair.arm64)
    said = labels.read({**pair.arm64.info.labels, **change.get("label", {})})
    platform = change.get("platform", ARM64)
    other = single(manifest(pair.arm64, labels=said, platform=platform))
    with pytest.raises(PublishError, match=f"^{name} is not the image that its name promises"):
        pair.due(pair.amd64, {name: other})


# --- what a push would do -------------------------------------------------------------------------


def states(found: Preview) -> list[tuple[str, str]]:
    return [(move.reference.removeprefix(f"{REPOSITORY}:"), move.state) for move in found.moves]


FLOATING = (T130, M130, "latest")


def test_a_floating_tag_names_one_image_until_another_platform_is_there(pair: Pair) -> None:
    own = labels.read(pair.amd64.info.labels).version
    found = pair.look(pair.amd64, {})
    assert states(found) == [(own, NEW), *((tag, NEW) for tag in FLOATING)]
    assert (found.joint, found.indexes, found.alone) == ((), (), False)
    held = held_by(pair.amd64)
    [alone] = held.values()
    held |= {f"{REPOSITORY}:{tag}": alone for tag in FLOATING}
    assert {state for _, state in states(pair.look(pair.amd64, held))} == {THERE}
    joined = pair.look(pair.arm64, held)
    assert [state for _, state in states(joined)] == [NEW, *[MOVES] * 3]
    # In an engine a name has one image.
    engine = pair.look(pair.amd64, held_by(*pair.both), in_registry=False)
    assert [state for _, state in states(engine)] == [THERE, *[STAYS] * 3]
    assert {move.reason for move in engine.moves[1:]} == {
        "images for several platforms share it, and `invoke push` moves it"
    }


def test_before_it_is_pushed_its_index_has_no_digest(pair: Pair) -> None:
    found = pair.look(pair.arm64, held_by(pair.amd64))
    assert [joint.index.digest for joint in found.joint] == [""]
    own = labels.read(pair.arm64.info.labels).version
    assert states(found) == [(tag, NEW) for tag in (own, *FLOATING)]


def test_an_index_that_is_there_stays_the_same(pair: Pair) -> None:
    held = held_by(*pair.both)
    due = pair.joint(held)
    names = [f"{REPOSITORY}:{tag}" for tag in FLOATING]
    # A name of one manifest moves to the index that has it.
    alone = {**held, **dict.fromkeys(names, single(manifest(pair.amd64)))}
    [joint] = pair.look(pair.arm64, alone).joint
    assert [move.state for move in joint.moves] == [MOVES] * 3
    held |= dict.fromkeys(names, due.target)
    for image in pair.both:
        found = pair.look(image, held)
        assert {move.state for move in found.moves} == {THERE}
        assert found.indexes == (f"{names[0]}@{due.digest}",)
    taken = {**held, next(iter(held)): single(manifest(pair.amd64, digest=digest("other")))}
    with pytest.raises(PublishError, match="names another image and never moves"):
        pair.look(pair.amd64, taken)


def test_latest_joins_the_image_with_compat_and_one_without_for_another_platform(
    config: Config, workspace: Workspace
) -> None:
    plain, compat = (verified(config, workspace, AMD64, word) for word in ("without", "with"))
    arm64 = verified(config, workspace, ARM64)
    pair, held = Pair(config, workspace, plain, arm64), held_by(plain, compat, arm64)

    def joined(image: VerifiedImage) -> list[tuple[set[str], list[str]]]:
        return [
            (
                {one.digest for one in joint.index.manifests},
                [move.reference.rpartition(":")[2] for move in joint.moves],
            )
            for joint in pair.look(image, held).joint
        ]

    both, mixed = {plain.info.id, arm64.info.id}, {compat.info.id, arm64.info.id}
    assert joined(plain) == [(both, [T130, M130])]
    assert joined(compat) == [(mixed, ["latest"])]
    assert joined(arm64) == [(both, [T130, M130]), (mixed, ["latest"])]
    own = pair.look(compat, held).own[1:]
    names = [f"{T130}-compat", f"{M130}-compat", "compat"]
    assert [move.reference.rpartition(":")[2] for move in own] == names


def after(ours: tuple[Manifest, ...], theirs: tuple[Manifest, ...]) -> Move:
    def target(held: tuple[Manifest, ...], name: str) -> TagTarget:
        return TagTarget(
            digest=digest(name),
            torch=held[0].labels.torch,
            created=min(m.created for m in held)[:10],
            manifests=held,
        )

    names = Names(repository="t", immutable="exact", floating=("short",))
    [_, move] = plan_moves(
        *(names, target(ours, "ours"), "r/o"),
        lambda name: target(theirs, "theirs") if name.endswith("short") else None,
    )
    return move


def test_an_index_moves_forward_platform_by_platform(pair: Pair) -> None:
    amd64, arm64 = map(manifest, pair.both)
    newer = dataclasses.replace(arm64, digest=digest("n"), created="2026-11-03T00:00:00Z")
    older = dataclasses.replace(amd64, digest=digest("o"), created="2026-11-01T00:00:00Z")
    assert after((amd64, newer), (amd64, arm64)).state == MOVES  # only one was built anew
    assert after((amd64, arm64), (amd64, newer)).reason == "it names newer inputs, of 2026-11-03"
    # A step forward of one platform is none where the other one steps back.
    assert after((older, newer), (amd64, arm64)).reason == "it names newer inputs, of 2026-11-02"
    assert after((amd64, arm64), (amd64,)).state == MOVES
    assert after((amd64,), (amd64, arm64)).reason == "it names an index with this image"
    # Nor is another index of the same images.
    assert after((amd64, arm64), (amd64, arm64)).reason == "it names an index with this image"
    # Of one day, the one that is pushed.
    rebuilt = dataclasses.replace(amd64, digest=digest("r"))
    assert after((rebuilt,), (amd64,)).state == MOVES
    later = dataclasses.replace(amd64.labels, torch="99.0")
    assert after((dataclasses.replace(older, labels=later),), (amd64, arm64)).state == MOVES


def test_an_index_that_is_not_made_yet_is_that_of_its_images(pair: Pair) -> None:
    amd64, arm64 = map(manifest, pair.both)
    unmade = dataclasses.replace(single(amd64), digest="")
    assert unmade.same(single(amd64))
    assert not unmade.same(single(arm64))
    nothing = dataclasses.replace(unmade, manifests=())
    assert not nothing.same(nothing)


def test_what_its_exact_tag_lacks_is_not_published(pair: Pair) -> None:
    specs = [image.plan.spec for image in pair.both]

    def lacking(held: Mapping[str, TagTarget]) -> list[ImageSpec]:
        found = unpublished(pair.config, specs, WHERE, lookup=held.get, workspace=pair.workspace)
        return [spec for spec, _ in found]

    held, exact = held_by(*pair.both), f"{REPOSITORY}:{T130}"
    assert lacking({}) == lacking(held) == specs
    assert lacking({**held, exact: single(manifest(pair.amd64))}) == specs[1:]
    assert lacking({**held, exact: pair.joint(held).target}) == []
    # A name that has the other platform only is taken: nothing can be pushed to it.
    [name] = held_by(pair.amd64)
    assert lacking({name: single(manifest(pair.arm64))}) == specs[1:]


# --- carrying it out ------------------------------------------------------------------------------


class Shelf(Engine):
    """An engine and a registry, which another machine may push to at any time."""

    def __init__(self, image: VerifiedImage) -> None:
        self.image, self.held = image, dict[str, TagTarget]()
        self.did: list[str] = []
        self.meanwhile: dict[str, TagTarget] = {}
        self.late: dict[str, TagTarget] = {}
        self.breaks, self.becomes = 0, ""

    def tag(self, image: str, repository: str, tag: str) -> None:
        assert image == self.image.info.id

    def push(self, reference: str, report: Callable[[Mapping[str, Any]], None]) -> None:
        report({})
        if self.breaks:
            self.breaks -= 1
            raise PushError("EOF")
        self.did.append(reference.partition("torch-cu130:")[2])
        self.held |= {reference: single(manifest(self.image)), **self.meanwhile}
        if len(self.did) > 1:
            self.held |= self.late

    def registry_digest(self, image: str, *, missing_ok: bool = False) -> str:
        return self.becomes or self.held[image].digest


class Buildx(FakeRunner):
    """buildx, which gives names to indexes."""

    def __init__(self, shelf: Shelf, index: Index) -> None:
        super().__init__()
        self.shelf, self.index = shelf, index

    def run(self, command: Any, **options: Any) -> Any:
        done = super().run(command, **options)
        if "--dry-run" in command:
            return dataclasses.replace(done, output=self.index.data.decode() + "\n")
        [name] = [word.removeprefix("--tag=") for word in command if word.startswith("--tag=")]
        self.shelf.held[name] = self.index.target
        self.shelf.did.append(name.partition("torch-cu130:")[2])
        return done


def carry_out(pair: Pair, shelf: Shelf, run: Runner, retries: int = 0) -> Preview:
    return publish(
        lambda: pair.look(pair.amd64, shelf.held),
        pair.amd64.info.id,
        shelf,
        run=run,
        retries=retries,
        transfer=Transfer(lambda _sent, _size: None),
        say=lambda _: None,
    )


def test_a_sister_that_came_meanwhile_counts(pair: Pair) -> None:
    """Whoever is last finds the other one, though it was not there when the push began."""
    shelf, due = Shelf(pair.amd64), pair.joint(held_by(*pair.both))
    shelf.meanwhile = held_by(pair.arm64)
    run = Buildx(shelf, due)
    found = carry_out(pair, shelf, run)
    own = labels.read(pair.amd64.info.labels).version
    assert shelf.did == [own, *FLOATING]
    assert [move.state for move in found.moves] == [NEW] * 4
    made = [" ".join(command) for command in run.commands]
    assert ["--dry-run" in line for line in made] == [True, False, False, False]
    assert all(line.endswith(f" {REPOSITORY}@{due.digest}") for line in made[2:])
    found = carry_out(pair, shelf, FakeRunner())
    assert {move.state for move in found.moves} == {THERE}
    assert len(shelf.did) == 4


def test_without_its_sister_an_image_is_pushed_alone(pair: Pair) -> None:
    shelf = Shelf(pair.amd64)
    found = carry_out(pair, shelf, FakeRunner())
    assert shelf.did == [labels.read(pair.amd64.info.labels).version, *FLOATING]
    assert [move.state for move in found.moves] == [NEW] * 4


def test_a_sister_that_came_while_names_moved_counts(pair: Pair) -> None:
    """The other machine's push saw no sister yet, or its index was overwritten by this one."""
    shelf = Shelf(pair.amd64)
    own = labels.read(pair.amd64.info.labels).version
    due = pair.joint(held_by(*pair.both))
    shelf.late = held_by(pair.arm64)
    found = carry_out(pair, shelf, Buildx(shelf, due))
    assert shelf.did == [own, *FLOATING, *FLOATING]
    assert shelf.held[f"{REPOSITORY}:latest"].digest == due.digest
    assert [move.state for move in found.moves] == [NEW] * 4
    assert found.indexes == (f"{REPOSITORY}:{T130}@{due.digest}",)


def test_image_and_index_are_tried_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(registry, "retry", partial(registry.retry, sleep=waits.append))
    shelf = Shelf(pair.amd64)
    shelf.breaks, shelf.meanwhile = 1, held_by(pair.arm64)
    broken = FakeRunner({"docker": (1, "ERROR: connection refused")})
    with pytest.raises(NetworkError, match="connection refused"):
        carry_out(pair, shelf, broken, retries=1)
    assert len(shelf.did) == 1
    assert len(broken.commands) == 2
    assert waits == [1, 1]


def test_an_index_of_other_bytes_in_the_registry_stops_it(pair: Pair) -> None:
    shelf = Shelf(pair.amd64)
    shelf.held = held_by(*pair.both)
    shelf.becomes = digest("other")
    due = pair.joint(shelf.held)
    with pytest.raises(VerifyError, match=f"{due.version} is {shelf.becomes}, expected "):
        carry_out(pair, shelf, Buildx(shelf, due))
    assert shelf.did == [due.version]


def test_an_index_waits_until_the_registry_shows_its_images(pair: Pair) -> None:
    """Some registries take a moment; without its size the index would be another one."""
    shelf = Shelf(pair.amd64)
    [found] = pair.look(pair.amd64, held_by(pair.arm64)).joint
    run = Buildx(shelf, found.index)
    said = f"{found.index.version}: the registry does not show its images yet; push again$"
    with pytest.raises(NetworkError, match=said):
        push_index(found.index, found.moves, shelf, run=run, retries=0, say=lambda _: None)
    assert run.commands == []


def test_another_index_of_buildx_is_not_sent(pair: Pair) -> None:
    made = pair.index(*map(manifest, pair.both))
    run = FakeRunner({"docker": (0, made.data.decode().replace("475", "476"))})
    with pytest.raises(UsageError, match="writes an index with unexpected bytes"):
        make_index("r.io/me/x:y", made, run)
    assert ["--dry-run" in command for command in run.commands] == [True]
    old = FakeRunner({"docker": (1, "unknown flag: --annotation\n")})
    with pytest.raises(UsageError, match="has no option --annotation of imagetools create"):
        make_index("r.io/me/x:y", made, old)
    refused = "#1 pushing\nERROR: failed: 403 Forbidden\n"
    with pytest.raises(UsageError, match=r"^r.io refuses: failed: 403 Forbidden"):
        make_index("r.io/me/x:y", made, FakeRunner({"docker": (1, refused)}))


# --- what a registry says of an index -------------------------------------------------------------

NAME, HEX = "ghcr.io/me/torch-cu130:sm120", "a" * 64
D1, D2 = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
INSPECT = "docker buildx imagetools inspect --format {{json .}} "
RAW = "docker buildx imagetools inspect --raw "


def entry(architecture: str, held: str, **changes: Any) -> dict[str, Any]:
    platform = {"os": "linux", "architecture": architecture}
    return {"mediaType": OCI, "digest": held, "size": 475, "platform": platform, **changes}


def member(architecture: str, held: str, **changes: Any) -> dict[str, Any]:
    told = {"io.github.torch-images.torch": "2.14.1", **changes.pop("labels", {})}
    image = {
        "created": "2026-11-02T00:00:00Z",
        "os": "linux",
        "architecture": architecture,
        "config": {"Labels": told},
        "history": [{"created_by": architecture}],
        **changes,
    }
    return {"manifest": {"mediaType": OCI, "digest": held, "size": 475}, "image": image}


ATTESTATION = entry("amd64", f"sha256:{HEX}", platform={"os": "unknown", "architecture": "unknown"})
HELD = {
    "manifest": {
        "mediaType": INDEX,
        "digest": f"sha256:{HEX}",
        "manifests": [entry("arm64", D2), ATTESTATION, entry("amd64", D1)],
    }
}
MEMBERS = {
    D1: member("amd64", D1),
    D2: member("arm64", D2, created="2026-11-01T00:00:00Z", variant="v8"),
}


def answers(
    held: Mapping[str, Any] = HELD, members: Mapping[str, Mapping[str, Any]] = MEMBERS
) -> FakeRunner:
    layers = {
        d: {"config": {"digest": "x"}, "layers": [{"digest": "y", "size": n}]}
        for n, d in enumerate(members, 1)
    }
    repository = NAME.rpartition(":")[0]
    return FakeRunner(
        {
            INSPECT + NAME: (0, json.dumps(held)),
            **{f"{INSPECT}{repository}@{d}": (0, json.dumps(m)) for d, m in members.items()},
            **{f"{RAW}{repository}@{d}": (0, json.dumps(m)) for d, m in layers.items()},
            "docker": (1, f"ERROR: {NAME}: not found\n"),
        }
    )


def test_an_index_as_the_holder_of_a_name() -> None:
    found = lookup(NAME, answers())
    assert found
    assert (found.digest, found.torch, found.created) == (f"sha256:{HEX}", "2.14.1", "2026-11-01")
    assert [(m.platform, m.digest, m.size) for m in found.manifests] == [
        (AMD64, D1, 475),
        (ARM64, D2, 475),
    ]


def test_one_platform_of_an_index() -> None:
    for platform, held, size in ((AMD64, D1, 1), (ARM64, D2, 2)):
        found = published(NAME, answers(), platform=platform)
        assert (found.digest, found.size) == (held, size)
        document, history = contents(NAME, answers(), platform=platform)
        assert document["layers"][0]["size"] == size
        assert history == [{"created_by": platform.partition("/")[2]}]
        assert exact(NAME, answers(), platform=platform) == f"{NAME.rpartition(':')[0]}@{held}"
    assert published(NAME, answers()).digest == D1
    alone = {"manifest": {**HELD["manifest"], "manifests": [entry("arm64", D2)]}}
    for asked in (published, exact):
        with pytest.raises(UsageError, match="has no image for linux/amd64; it has one for") as e:
            asked(NAME, answers(alone), platform=AMD64)
        assert str(e.value).endswith("linux/arm64")


def test_a_name_of_one_manifest_is_for_its_platform() -> None:
    one = FakeRunner({INSPECT + NAME: (0, json.dumps(MEMBERS[D2]))})
    with pytest.raises(UsageError, match="has no image for linux/amd64; it has one for linux/arm6"):
        published(NAME, one)
    assert exact(NAME, one, platform=AMD64) == NAME  # an emulator may build it again
    found = lookup(NAME, one)
    assert found
    assert [(m.platform, m.digest) for m in found.manifests] == [(ARM64, D2)]


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([], "its index has no image"),
        ([entry("amd64", D1), entry("amd64", D2)], "its index has two images for linux/amd64"),
        ([entry("s390x", D1)], "its index has an image for linux/s390x"),
        ([entry("amd64", D1, mediaType=INDEX)], f"its index has {INDEX} for linux/amd64"),
        ([entry("amd64", "sha256:../x")], "sha256:../x is not a digest"),
        ([entry("amd64", D1, size=0)], "a manifest has an impossible size"),
        ([entry("amd64", D2)], "its index names another image for linux/amd64"),
        ([entry("amd64", f"sha256:{HEX}")], "its index names a missing image for linux/amd64"),
        (None, "'manifest.manifests' is not a list"),
        ([ATTESTATION] * 101, "its index has more than 100 entries"),
    ],
)
def test_an_index_that_nobody_should_make(entries: Any, said: str) -> None:
    held = {"manifest": {**HELD["manifest"], "manifests": entries}}
    for asked in (lookup, published):
        with pytest.raises(NetworkError) as caught:
            asked(NAME, answers(held))
        assert said in str(caught.value)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            member("arm64", D2, labels={"io.github.torch-images.torch": "2.9"}),
            "its images have torch 2.14.1 and 2.9",
        ),
        (member("arm64", D2, created="yesterday"), "yesterday is not a time"),
        (member("amd64", D2), "its index names another image for linux/arm64"),
    ],
)
def test_images_that_do_not_belong_together(other: dict[str, Any], said: str) -> None:
    with pytest.raises(NetworkError) as caught:
        lookup(NAME, answers(HELD, {**MEMBERS, D2: other}))
    assert said in str(caught.value)


# --- what is written of an image ------------------------------------------------------------------


class Sizes(Engine):
    """An engine, as far as datasheets and bills of materials ask one."""

    def __init__(self) -> None:
        pass

    def layer_sizes(self, image: str) -> tuple[int, ...]:
        return (7,)

    def read_files(self, image: str, folder: str) -> dict[str, str]:
        return {"cyclonedx.json": json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.6"})}

    def tags(self, prefix: str = "") -> tuple[str, ...]:
        return tuple(t for t in ("torch-cu130:latest", "torch-cu130:latest-arm64") if prefix in t)

    def inspect(self, image: str) -> ImageInfo:
        name = f"cu130-torch{T130}-trixie-runtime" + "-arm64" * image.endswith("-arm64")
        return ImageInfo(id=image, size=1, labels={labels.ID: name}, config={}, created="")


@pytest.mark.parametrize("names", [(), (f"{REPOSITORY}:x@{D1}", f"{REPOSITORY}:latest@{D2}")])
def test_a_datasheet_says_platform_and_indexes(
    pair: Pair, names: tuple[str, ...], tmp_path: Path
) -> None:
    arm64 = pair.arm64
    arm64.report.observed["python"] = "3.11.2"  # type: ignore[index]
    document = {"config": {"digest": D1}, "layers": [{"digest": D2, "size": 1}]}
    history = [{"created_by": "x"}]
    sheet = describe(arm64, Sizes(), document, history, commit="f" * 40, indexes=names)
    assert (sheet["platform"], sheet["indexes"]) == (ARM64, list(names))
    text = markdown(sheet)
    assert f"| Platform | {ARM64} |" in text
    assert f"| Commit | `{sheet['commit']}` |" in text
    assert text.count("| Index of all platforms | `") == len(names)
    assert "torch" in sheet["packages"]["python"]
    assert "torch" not in sheet["packages"]["cuda"]
    assert set(sheet["security"]) < set(sheet["packages"]["debian"])
    save(sheet, dataclasses.replace(pair.workspace, made=tmp_path))
    kept = tmp_path / "build" / "datasheets" / f"{arm64.info.id.replace(':', '-')}.json"
    assert json.loads(kept.read_text()) == json.loads(json.dumps(sheet))
    assert kept.with_suffix(".md").read_text() == text


# --- RunPod ---------------------------------------------------------------------------------------


def test_runpod_has_one_platform(pair: Pair) -> None:
    arm64 = pair.arm64
    message = (
        rf"RunPod's machines are linux/amd64, and {arm64.plan.spec.id} is for linux/arm64; use"
    )
    with pytest.raises(UsageError, match=message):
        built(pair.config, arm64, WHERE, lambda _: pytest.fail("a registry was asked"))
    held = registry.Published(digest=D1, labels=labels.read(arm64.info.labels), size=1)
    with pytest.raises(UsageError, match=message):
        in_registry(pair.config, NAME, held)
