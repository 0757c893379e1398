"""From a verified image to its names in a registry, with an engine and a registry of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.releases import M130, T130
from torch_images.build import labels
from torch_images.build.plan import plan_images
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import NetworkError, PublishError, PushError, UsageError, VerifyError
from torch_images.host.engine import Engine
from torch_images.host.image_info import ImageInfo
from torch_images.host.network import Network
from torch_images.host.workspace import Workspace
from torch_images.publish import registry
from torch_images.publish.push import Transfer, in_engine, preview, push, unpublished
from torch_images.publish.tag_rules import MOVES, NEW, STAYS, THERE, Move, TagTarget
from torch_images.verify.identify import VerifiedImage
from torch_images.verify.verify import VerifyReport

DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
IMMUTABLE = f"{T130}-sm120-devel-"


@pytest.fixture
def image(config: Config, root: Path) -> VerifiedImage:
    """An image that is built for linux/amd64 only."""
    spec = choose(config, arch="12.0", variant="devel", platform="linux/amd64")
    [plan] = plan_images(config, [spec], root, root / "locks")
    told = labels.write(config, plan)
    info = ImageInfo(id=DIGEST, size=1, labels=told, config={}, created="2026-11-02T00:00:00Z")
    seen = {"cuda": "13.0", "torch": f"{T130}+cu130", "arch 12.0": "native sm_120"}
    report = VerifyReport(
        digest=DIGEST, id=plan.spec.id, suite="", checks=(), observed=seen, seconds=1
    )
    return VerifiedImage(plan=plan, info=info, report=report)


def previewed(
    config: Config,
    image: VerifiedImage,
    held: Mapping[str, TagTarget],
    folder: Path,
) -> dict[str, Move]:
    workspace = Workspace(root=folder, cache=folder, network=Network(), locks=folder)
    found = preview(config, image, "r.io/me", lookup=held.get, workspace=workspace)
    assert found.alone
    return {move.reference.removeprefix("r.io/me/torch-cu130:"): move for move in found.moves}


def target(**changes: str) -> TagTarget:
    return TagTarget(
        digest=changes.get("digest", OTHER),
        torch=T130,
        created=changes.get("created", "2026-11-01"),
    )


def test_what_a_push_would_do(config: Config, image: VerifiedImage, tmp_path: Path) -> None:
    held = {
        "r.io/me/torch-cu130:sm120-devel": target(),
        f"r.io/me/torch-cu130:{M130}-sm120-devel": target(created="2026-11-03"),
        f"r.io/me/torch-cu130:{T130}-sm120-devel": target(digest=DIGEST),
    }
    found = previewed(config, image, held, tmp_path)
    [first, *others] = found
    assert first.startswith(IMMUTABLE)
    assert others == [f"{T130}-sm120-devel", f"{M130}-sm120-devel", "sm120-devel"]
    assert [move.state for move in found.values()] == [NEW, THERE, STAYS, MOVES]
    assert found["sm120-devel"].held == OTHER
    assert found[f"{M130}-sm120-devel"].reason == "it names newer inputs, of 2026-11-03"


def test_an_immutable_tag_of_another_image_stops_everything(
    config: Config, image: VerifiedImage, tmp_path: Path
) -> None:
    tag = image.info.labels["org.opencontainers.image.version"]
    held = {f"r.io/me/torch-cu130:{tag}": target()}
    with pytest.raises(
        PublishError,
        match=rf"^r.io/me/torch-cu130:{IMMUTABLE}[0-9a-f]+ names another image and never moves: "
        rf"it is {OTHER}; the inputs are the same, so use that image",
    ):
        previewed(config, image, held, tmp_path)


def test_tags_that_verification_did_not_see_are_refused(
    config: Config, image: VerifiedImage, tmp_path: Path
) -> None:
    image.report.observed["torch"] = "2.10.0+cu130"  # type: ignore[index]
    with pytest.raises(VerifyError, match=rf"saw torch 2\.10\.0, but the tag says {T130}"):
        previewed(config, image, {}, tmp_path)


def test_what_nobody_has_published(config: Config, root: Path, tmp_path: Path) -> None:
    specs = [choose(config, arch=arch) for arch in ("9.0", "12.0", "8.0")]
    workspace = Workspace(root=root, cache=tmp_path, network=Network(), locks=root / "locks")
    asked: list[str] = []

    def lookup(name: str) -> TagTarget | None:
        asked.append(name)
        return target() if f":{T130}-sm120-" in name else None

    found = unpublished(config, specs, "r.io/me", lookup=lookup, workspace=workspace)
    images = plan_images(config, specs, root, root / "locks")
    names = [
        f"r.io/me/{p.spec.repository}:"
        + labels.write(config, p)["org.opencontainers.image.version"]
        for p in images
    ]
    assert sorted(asked) == sorted(names)
    assert found == [(specs[0], names[0]), (specs[2], names[2])]
    # Small layers are other bytes, and so have names of their own.
    small = partial(unpublished, lookup=lambda _: None, workspace=workspace, small=True)
    assert small(config, specs[:1], "r.io/me") == [(specs[0], f"{names[0]}-small")]


class Stub(Engine):
    """An engine with a registry, which has and refuses what it is told."""

    def __init__(self, problems: list[Exception] | None = None, becomes: str = DIGEST) -> None:
        self.problems, self.becomes = problems or [], becomes
        self.did: list[str] = []
        self.pushed: set[str] = set()
        self.tagged: dict[str, str] = {}

    def inspect(self, image: str) -> ImageInfo:
        if image != "here":
            raise UsageError("no image")
        told = {"io.github.torch-images.torch": "2.9.0"}
        return ImageInfo(id=DIGEST, size=1, labels=told, config={}, created="2026-01-02T03:04:05Z")

    def tag(self, image: str, repository: str, tag: str) -> None:
        assert ":" not in tag
        assert "/" not in tag
        self.tagged[f"{repository}:{tag}"] = image

    def push(self, reference: str, report: Callable[[Mapping[str, Any]], None]) -> None:
        assert self.tagged[reference] == DIGEST
        report({"id": str(len(self.did)), "status": "Pushed"})
        self.did.append(reference)
        if self.problems:
            raise self.problems.pop(0)
        self.pushed.add(reference)

    def registry_digest(self, image: str, *, missing_ok: bool = False) -> str:
        assert missing_ok
        return self.becomes if image in self.pushed else ""


def test_the_holder_of_a_name_in_the_engine() -> None:
    assert in_engine("gone", Stub()) is None
    assert in_engine("here", Stub()) == TagTarget(
        digest=DIGEST, torch="2.9.0", created="2026-01-02"
    )


NAMES = ("r.io:5000/me/t:exact", "r.io:5000/me/t:a", "r.io:5000/me/t:b", "r.io:5000/me/t:c")
PLAN = tuple(
    Move(reference=name, state=state)
    for name, state in zip(NAMES, (NEW, THERE, MOVES, STAYS), strict=True)
)


def pushed(
    engine: Stub, monkeypatch: pytest.MonkeyPatch, retries: int = 0
) -> tuple[list[str], list[float]]:
    said: list[str] = []
    waits: list[float] = []
    monkeypatch.setattr(registry, "retry", partial(registry.retry, sleep=waits.append))
    transfer = Transfer(lambda _sent, _size: None)
    push(DIGEST, PLAN, engine, retries=retries, transfer=transfer, say=said.append)
    return said, waits


def test_what_changes_is_pushed_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Stub()
    said, waits = pushed(engine, monkeypatch)
    assert engine.did == [NAMES[0], NAMES[2]]
    assert said == [f"pushed {NAMES[0]}", f"pushed {NAMES[2]}"]
    assert waits == []


@pytest.mark.parametrize(("becomes", "words"), [(OTHER, OTHER), ("", "nothing")])
def test_another_digest_in_the_registry_stops_before_the_next_name(
    monkeypatch: pytest.MonkeyPatch, becomes: str, words: str
) -> None:
    engine = Stub(becomes=becomes)
    with pytest.raises(VerifyError, match=f"^{NAMES[0]} is {words}, expected {DIGEST}$"):
        pushed(engine, monkeypatch)
    assert engine.did == [NAMES[0]]


def test_a_transfer_that_breaks_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as told in a row, and on as long as layers arrive: the engine's stub sends one each
    time.
    """
    engine = Stub([PushError("EOF"), PushError("EOF"), PushError("EOF")])
    said, waits = pushed(engine, monkeypatch, retries=1)
    assert engine.did == [NAMES[0]] * 4 + [NAMES[2]]
    assert len(waits) == 3
    assert said[-1] == f"pushed {NAMES[2]}"
    assert any("EOF" in line for line in said)


def test_a_refusal_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Stub([PushError("denied: no right")])
    with pytest.raises(UsageError, match=r"^r.io:5000 refuses: denied: no right; `docker login"):
        pushed(engine, monkeypatch, retries=5)
    assert engine.did == [NAMES[0]]
    assert engine.pushed == set()


def test_without_retries_the_first_problem_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Stub([PushError("EOF")])
    with pytest.raises(NetworkError, match=r"r.io:5000 could not be reached: EOF"):
        pushed(engine, monkeypatch, retries=0)


def test_events_without_details() -> None:
    shown: list[tuple[int, int]] = []
    transfer = Transfer(lambda sent, size: shown.append((sent, size)))
    for event in (
        {},
        {"id": "a"},
        {"status": "Waiting"},
        {"id": "a", "status": "Pushing", "progressDetail": {"total": 9}},
        {"id": "", "status": "Pushing", "progressDetail": {"current": 1, "total": 4}},
        {"status": "Pushing", "progressDetail": {"current": 2, "total": 4}},
    ):
        transfer(event)
    assert shown == [(0, 0), (0, 0), (0, 0), (0, 9), (1, 13), (2, 13)]
    assert transfer.done == 0
