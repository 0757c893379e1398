"""A verified image -> its names in a registry: what moves, in which order, and what stops it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import M130, T130
from tests.unit.fakes import FakeEngine, FakeRunner, stored, workspace_of
from torch_images.build import labels
from torch_images.build.plan import lock_image, plan_image
from torch_images.config.choose import choose
from torch_images.config.matrix import sisters
from torch_images.config.types import Config
from torch_images.errors import (
    NetworkError,
    NoAnswerError,
    PublishError,
    UsageError,
    VerifyError,
)
from torch_images.host.image_info import ImageInfo
from torch_images.host.runner import Completed
from torch_images.host.workspace import Workspace
from torch_images.publish.push import indexes, plan, push, send, unpublished
from torch_images.publish.tag_rules import (
    MOVES,
    NEW,
    STAYS,
    THERE,
    Manifest,
    Move,
    TagTarget,
)
from torch_images.verify.identify import VerifiedImage
from torch_images.verify.verify import VerifyReport

AMD64, ARM64 = "linux/amd64", "linux/arm64"
REPOSITORY = "r.io:5000/me/torch-cu130"
FLOATING = (T130, M130, "latest")
SEEN = {"cuda": "13.0", "torch": f"{T130}+cu130", "triton": "3.8.0", "python": "3.13.5"}
Registry = dict[str, TagTarget]


@pytest.fixture(scope="module")
def workspace(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = tmp_path_factory.mktemp("project")
    return workspace_of(root, folder, made=folder)


@pytest.fixture(scope="module")
def plain(config: Config) -> Config:
    """A catalogue without images with the compat library."""
    rows = tuple(row for row in config.catalogue if not row.compat)
    return dataclasses.replace(config, catalogue=rows)


def verified(config: Config, workspace: Workspace, **axes: str) -> VerifiedImage:
    spec = choose(config, **{"platform": AMD64, **axes})
    planned = plan_image(config, lock_image(config, spec, workspace.locks), workspace.root)
    info = ImageInfo(
        id=f"sha256:{planned.identity}",
        size=1,
        labels=labels.write(config, planned),
        config={},
        created="2026-11-02T00:00:00Z",
    )
    seen = {**SEEN, **{f"arch {name}": "native" for name in spec.arches}}
    report = VerifyReport(digest=info.id, id=spec.id, suite="", checks=(), observed=seen, seconds=1)
    return VerifiedImage(plan=planned, info=info, report=report)


@pytest.fixture(scope="module")
def amd64(plain: Config, workspace: Workspace) -> VerifiedImage:
    return verified(plain, workspace)


@pytest.fixture(scope="module")
def arm64(plain: Config, workspace: Workspace) -> VerifiedImage:
    return verified(plain, workspace, platform=ARM64)


def manifest(image: VerifiedImage, **changes: str) -> Manifest:
    one = Manifest(
        platform=image.plan.spec.platform.name,
        digest=image.info.id,
        created=image.info.created,
        labels=labels.read(image.info.labels),
    )
    return dataclasses.replace(one, **changes)  # type: ignore[arg-type]


def target(*images: Manifest) -> TagTarget:
    digest = images[0].digest if len(images) == 1 else f"index of {len(images)}"
    return TagTarget(digest=digest, manifests=images)


def exact(image: VerifiedImage) -> str:
    return labels.read(image.info.labels).version


def registry(*images: VerifiedImage) -> Registry:
    """A registry with just these images, under their immutable names."""
    return {f"{REPOSITORY}:{exact(image)}": target(manifest(image)) for image in images}


@dataclasses.dataclass(frozen=True)
class Case:
    """A configuration and a workspace: what a push of an image would do."""

    config: Config
    workspace: Workspace

    def plan(
        self, image: VerifiedImage, published: Mapping[str, TagTarget], *, joins: bool = True
    ) -> tuple[Move, ...]:
        return plan(
            self.config,
            image,
            "r.io:5000/me",
            lookup=published.get,
            workspace=self.workspace,
            joins=joins,
        )


@pytest.fixture(scope="module")
def case(plain: Config, workspace: Workspace) -> Case:
    return Case(plain, workspace)


def tags(moves: Sequence[Move]) -> list[str]:
    return [move.reference.removeprefix(f"{REPOSITORY}:") for move in moves]


def states(moves: Sequence[Move]) -> list[str]:
    return [move.state for move in moves]


# --- the plan -------------------------------------------------------------------------------------


def test_plan_of_the_first_platform(case: Case, amd64: VerifiedImage) -> None:
    moves = case.plan(amd64, {})
    assert tags(moves) == [exact(amd64), *FLOATING]
    assert states(moves) == [NEW] * 4
    assert {move.digests for move in moves} == {(amd64.info.id,)}


def test_plan_of_an_image_whose_inputs_were_not_locked_has_its_own_tag_only(
    case: Case, amd64: VerifiedImage
) -> None:
    marked = {**amd64.info.labels, "io.github.torch-images.unlocked": "yes"}
    image = dataclasses.replace(amd64, info=dataclasses.replace(amd64.info, labels=marked))
    assert tags(case.plan(image, {})) == [exact(amd64)]


def test_plan_of_the_second_platform_joins_the_first(
    case: Case, amd64: VerifiedImage, arm64: VerifiedImage
) -> None:
    published = registry(amd64)
    published |= dict.fromkeys((f"{REPOSITORY}:{tag}" for tag in FLOATING), target(manifest(amd64)))
    first, *others = case.plan(arm64, published)
    assert first.digests == (arm64.info.id,)
    assert states(others) == [MOVES] * 3
    assert {move.digests for move in others} == {(amd64.info.id, arm64.info.id)}
    published |= registry(arm64)
    published |= dict.fromkeys(
        (f"{REPOSITORY}:{tag}" for tag in FLOATING), target(manifest(amd64), manifest(arm64))
    )
    for image in (amd64, arm64):
        moves = case.plan(image, published)
        assert states(moves) == [THERE] * 4
        assert indexes(moves) == (f"{REPOSITORY}:{T130}@index of 2",)


def test_plan_keeps_another_platform_until_it_is_pushed_anew(
    case: Case, amd64: VerifiedImage, arm64: VerifiedImage
) -> None:
    old = manifest(arm64, digest="sha256:old", created="2026-11-01T00:00:00Z")
    published = {f"{REPOSITORY}:{T130}": target(old)}
    assert case.plan(amd64, published)[1].digests == (amd64.info.id, "sha256:old")
    assert case.plan(amd64, {**published, **registry(arm64)})[1].digests[1] == arm64.info.id
    # An older torch does not join.
    older = dataclasses.replace(old, labels=dataclasses.replace(old.labels, torch="2.0.0"))
    published = {f"{REPOSITORY}:{T130}": target(older)}
    assert case.plan(amd64, published)[1].digests == (amd64.info.id,)


def test_plan_in_an_engine_leaves_shared_tags(
    case: Case, amd64: VerifiedImage, arm64: VerifiedImage
) -> None:
    moves = case.plan(amd64, registry(amd64, arm64), joins=False)
    assert states(moves) == [THERE, *[STAYS] * 3]


def test_plan_of_an_immutable_tag_with_another_image_is_refused(
    case: Case, amd64: VerifiedImage
) -> None:
    published = {f"{REPOSITORY}:{exact(amd64)}": target(manifest(amd64, digest="sha256:x"))}
    with pytest.raises(PublishError, match="never moves: it is sha256:x"):
        case.plan(amd64, published)


def test_latest_joins_the_image_with_compat_and_one_without_for_another_platform(
    config: Config, workspace: Workspace
) -> None:
    case = Case(config, workspace)
    amd64, compat = (verified(config, workspace, compat=word) for word in ("without", "with"))
    arm64 = verified(config, workspace, platform=ARM64)
    assert sisters(config, compat.plan.spec) == (arm64.plan.spec,)
    published = registry(amd64, compat, arm64)

    def joined(image: VerifiedImage) -> dict[str, set[str]]:
        moves = case.plan(image, published)[1:]
        return {tag: set(move.digests) for tag, move in zip(tags(moves), moves, strict=True)}

    both, mixed = {amd64.info.id, arm64.info.id}, {compat.info.id, arm64.info.id}
    assert joined(amd64) == {T130: both, M130: both}
    own = {tag: {compat.info.id} for tag in (f"{T130}-compat", f"{M130}-compat", "compat")}
    assert joined(compat) == {**own, "latest": mixed}
    assert joined(arm64) == {T130: both, M130: both, "latest": mixed}


def test_unpublished_are_images_that_their_tags_lack(
    case: Case, amd64: VerifiedImage, arm64: VerifiedImage
) -> None:
    specs = [amd64.plan.spec, arm64.plan.spec]
    floating = f"{REPOSITORY}:{T130}"

    def lacking(published: Registry, *, small: bool = False) -> list[str]:
        missing = unpublished(
            *(case.config, specs, "r.io:5000/me"),
            lookup=published.get,
            workspace=case.workspace,
            small=small,
        )
        return [name.removeprefix(f"{REPOSITORY}:") for _, name in missing]

    both, published = [exact(amd64), exact(arm64)], registry(amd64, arm64)
    assert lacking({}) == lacking(published) == both
    assert lacking({**published, floating: target(manifest(amd64))}) == both[1:]
    everything = {**published, floating: target(manifest(amd64), manifest(arm64))}
    assert lacking(everything) == []
    assert lacking(everything, small=True) == [f"{name}-small" for name in both]


def test_unpublished_asks_no_more_once_the_registry_does_not_answer(
    case: Case, amd64: VerifiedImage
) -> None:
    asked: list[str] = []

    def silent(name: str) -> None:
        asked.append(name)
        time.sleep(0.1)
        raise NoAnswerError("no answer")

    specs = [amd64.plan.spec] * 60
    with pytest.raises(NoAnswerError):
        unpublished(case.config, specs, "r.io", lookup=silent, workspace=case.workspace)
    assert len(asked) <= 16  # eight at once, and those begun meanwhile


# --- carrying it out ------------------------------------------------------------------------------


class Shelf:
    """A registry to which another machine pushes `late`, after `after` of our own names."""

    def __init__(self, case: Case, image: VerifiedImage, *images: Manifest) -> None:
        self.case, self.image, self.images = case, image, {m.digest: m for m in images}
        self.published: Registry = {}
        self.late: Registry = {}
        self.after = 0
        self.did: list[str] = []

    def look(self) -> tuple[Move, ...]:
        return self.case.plan(self.image, self.published)

    def send(self, move: Move) -> None:
        self.did += tags([move])
        self.published[move.reference] = target(*(self.images[digest] for digest in move.digests))
        if len(self.did) == self.after:
            self.published |= self.late


@pytest.fixture
def shelf(case: Case, amd64: VerifiedImage, arm64: VerifiedImage) -> Shelf:
    return Shelf(case, amd64, manifest(amd64), manifest(arm64))


def test_push_moves_the_immutable_name_first_and_latest_last(shelf: Shelf) -> None:
    moves, now = push(shelf.look, shelf.send)
    assert shelf.did == [exact(shelf.image), *FLOATING]
    assert (states(moves), states(now)) == ([NEW] * 4, [THERE] * 4)
    again, _ = push(shelf.look, shelf.send)
    assert states(again) == [THERE] * 4
    assert len(shelf.did) == 4


@pytest.mark.parametrize(("after", "transfers"), [(1, 4), (4, 7)])
def test_push_joins_a_platform_that_comes_meanwhile(
    shelf: Shelf, arm64: VerifiedImage, after: int, transfers: int
) -> None:
    shelf.late, shelf.after = registry(arm64), after
    moves, now = push(shelf.look, shelf.send)
    assert len(shelf.did) == transfers
    assert states(moves) == [NEW] * 4
    assert shelf.published[f"{REPOSITORY}:latest"].digests == (shelf.image.info.id, arm64.info.id)
    assert indexes(now) == (f"{REPOSITORY}:{T130}@index of 2",)


def test_push_of_an_image_that_does_not_arrive_moves_no_floating_name(shelf: Shelf) -> None:
    did: list[str] = []
    with pytest.raises(VerifyError, match="is not in the registry after its push"):
        push(shelf.look, lambda move: did.append(move.reference))
    assert did == [f"{REPOSITORY}:{exact(shelf.image)}"]


class Docker(FakeRunner):
    """Docker's client, which fails with a message, or does not."""

    def __init__(self, message: str = "") -> None:
        super().__init__()
        self.message = message

    def stream(self, command: Sequence[str], **_: Any) -> Completed:
        self.commands.append(list(command))
        return Completed(int(bool(self.message)), self.message)


class Tagging(FakeEngine):
    """Records the names that it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.tagged: list[tuple[str, str, str]] = []

    def tag(self, image: str, repository: str, tag: str) -> None:
        self.tagged.append((image, repository, tag))


def test_send_pushes_one_image_and_joins_several() -> None:
    engine, docker = Tagging(), Docker()
    send(Move(reference=f"{REPOSITORY}:a", state=NEW, digests=("sha256:1",)), engine, docker)
    assert engine.tagged == [("sha256:1", REPOSITORY, "a")]
    send(
        Move(reference=f"{REPOSITORY}:b", state=NEW, digests=("sha256:1", "sha256:2")),
        engine,
        docker,
    )
    assert len(engine.tagged) == 1
    create = f"docker buildx imagetools create --tag={REPOSITORY}:b"
    assert [" ".join(command) for command in docker.commands] == [
        f"docker push {REPOSITORY}:a",
        f"{create} {REPOSITORY}@sha256:1 {REPOSITORY}@sha256:2",
    ]


@pytest.mark.parametrize(
    ("message", "error"), [("denied: no right", UsageError), ("x\nunexpected EOF", NetworkError)]
)
def test_send_that_fails(message: str, error: type[Exception]) -> None:
    move = Move(reference=f"{REPOSITORY}:a", state=NEW, digests=("sha256:1",))
    with pytest.raises(error):
        send(move, Tagging(), Docker(message))


class Broken(Docker):
    """It is broken off."""

    def stream(self, *_: Any, **__: Any) -> Completed:
        raise KeyboardInterrupt


@pytest.mark.parametrize("docker", [Docker("denied: no right"), Broken()])
def test_a_push_that_fails_leaves_no_name_behind(docker: Docker) -> None:
    """Nor does it take the one that another image had, or the only one of this image."""
    ours, name = stored("1", "torch-cu130:a"), f"{REPOSITORY}:a"
    move = Move(reference=name, state=NEW, digests=(ours.id,))
    for before in ([ours], [ours, stored("2", name)], [stored("1", name, "torch-cu130:a")]):
        engine = FakeEngine(*before)
        with pytest.raises((UsageError, KeyboardInterrupt)):
            send(move, engine, docker)
        assert {i.id: {*i.tags} for i in engine.images} == {i.id: {*i.tags} for i in before}
    engine = FakeEngine(stored("1"))
    with pytest.raises((UsageError, KeyboardInterrupt)):
        send(move, engine, docker)
    assert engine.digest(ours.id)
