"""A verified image -> its names in a registry.

The immutable name goes first, with all layers, and must have the built digest in the registry
before any floating name moves. Each name is one manifest, put last, so an interrupted push leaves
no partial image; repeating the push sends what is missing.

A floating name that images for several platforms share is that of an index of the published ones,
or of the image itself while it is the only one. Each push looks for the others after pushing its
own image, and again after moving a name; so of two concurrent pushes, the last one sees both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch_images.build import labels
from torch_images.build.plan import ImagePlan, plan_images, version
from torch_images.config.image import ImageSpec
from torch_images.config.types import Config
from torch_images.errors import NetworkError, PublishError, PushError, UsageError, VerifyError
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.workers import workers
from torch_images.host.workspace import Workspace
from torch_images.jsondoc import member, optional
from torch_images.publish import registry
from torch_images.publish.index import Index
from torch_images.publish.joint import join, shared
from torch_images.publish.tag_rules import (
    STAYS,
    TAKEN,
    Manifest,
    Move,
    TagTarget,
    floating,
    observed,
    plan_moves,
)
from torch_images.verify.identify import VerifiedImage

# How often a push looks for sisters pushed meanwhile. Each sister's push looks too.
_ROUNDS = 4
_DONE = ("Pushed", "Layer already exists", "Mounted from")


class Transfer:
    """Follows the events of a push; `done` only grows, so a retry can detect progress."""

    def __init__(self, show: Callable[[int, int], None]) -> None:
        self._show = show
        self._sent: dict[str, int] = {}
        self._size: dict[str, int] = {}
        self._finished: set[str] = set()

    @property
    def done(self) -> int:
        """The number of layers that the registry has."""
        return len(self._finished)

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Handle one event, and show the bytes sent and the total. Raises MalformedError."""
        layer, status = str(event.get("id", "")), str(event.get("status", ""))
        if status.startswith(_DONE):
            self._finished.add(layer)
            self._sent[layer] = self._size.get(layer, 0)
        detail = optional(event, "progressDetail", kind=dict)
        if "total" in detail:
            self._size[layer] = member(detail, "total", kind=int)
            self._sent[layer] = optional(detail, "current", kind=int)
        self._show(sum(self._sent.values()), sum(self._size.values()))


@dataclass(frozen=True, kw_only=True)
class Joint:
    """An index of an image and its sisters for other platforms, and the moves of its names."""

    index: Index
    moves: tuple[Move, ...]


@dataclass(frozen=True, kw_only=True)
class Preview:
    """The moves of tagging or pushing: `own` of the image's names, `joint` of names of indexes.

    `alone` says whether no image for another platform shares a name.
    """

    own: tuple[Move, ...]
    joint: tuple[Joint, ...] = ()
    alone: bool = False

    @property
    def moves(self) -> tuple[Move, ...]:
        """The move of each name, the image's own first."""
        return self.own + tuple(move for joint in self.joint for move in joint.moves)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the image afterwards, the immutable one first."""
        return tuple(move.reference for move in self.moves if move.state != STAYS)

    @property
    def indexes(self) -> tuple[str, ...]:
        """The most specific name of each index, with its digest."""
        return tuple(f"{one.moves[0].reference}@{one.index.digest}" for one in self.joint)


def preview(
    config: Config,
    image: VerifiedImage,
    namespace: str,
    *,
    lookup: Callable[[str], TagTarget | None],
    workspace: Workspace,
    in_registry: bool = True,
) -> Preview:
    """The move of each name by tagging or pushing; `lookup(name)`: its current target, or None.

    Without `in_registry` the names are an engine's, which has no index.
    Raises VerifyError if the image does not match its tags, PublishError if its immutable tag, or
    that of a sister, names another image.
    """
    info, found, spec = image.info, labels.read(image.info.labels), image.plan.spec
    names = observed(config, spec, found, image.report.observed)
    ours = TagTarget.of(info.id, info.created, found)
    moved = partial(plan_moves, namespace=namespace, lookup=lookup)
    own, joint = _free(moved(replace(names, floating=()), ours)), list[Joint]()
    groups = shared(config, spec, names.floating)
    for others, tags in groups.items():
        floating_names = replace(names, immutable="", floating=tags)
        if not others:
            own += moved(floating_names, ours)
            continue
        if not in_registry:
            waits = "images for several platforms share it, and `invoke push` moves it"
            own += moved(floating_names, ours, waits=waits)
            continue
        repository = f"{namespace}/{names.repository}"
        manifest = _manifest(image, lookup(f"{repository}:{names.immutable}"))
        first = f"{repository}:{tags[0]}"
        manifests = join(
            *(config, others, manifest, first),
            lookup=lookup,
            workspace=workspace,
            small=image.plan.small,
        )
        if len(manifests) == 1:
            own += moved(floating_names, replace(ours, manifests=manifests))
        else:
            index = Index(repository=spec.repository, version=tags[0], manifests=manifests)
            joint.append(Joint(index=index, moves=moved(floating_names, index.target)))
    return Preview(own=own, joint=tuple(joint), alone=not any(groups))


def _free(moves: tuple[Move, ...]) -> tuple[Move, ...]:
    """The same moves. Raises PublishError if an immutable tag is taken."""
    for move in moves:
        if move.state == TAKEN:
            raise PublishError(
                f"{move.reference} names another image and never moves: {move.reason}",
                "the inputs are the same, so use that image; `invoke reproduce` compares the two",
            )
    return moves


def _manifest(image: VerifiedImage, held: TagTarget | None) -> Manifest:
    """The manifest of an image: from the registry, else with the facts of the engine."""
    platform, info = image.plan.spec.platform.name, image.info
    published = held.of_platform(platform) if held else None
    return published or Manifest(
        platform=platform,
        digest=info.id,
        media_type="",
        size=0,
        created=info.created,
        labels=labels.read(info.labels),
    )


def unpublished(
    config: Config,
    specs: Sequence[ImageSpec],
    namespace: str,
    *,
    lookup: Callable[[str], TagTarget | None],
    workspace: Workspace,
    small: bool = False,
) -> list[tuple[ImageSpec, str]]:
    """The images not yet published with their inputs, each with its future name.

    `small` as in `LockedImage`: such images have names of their own.

    Includes a published image that its floating tag with the version of torch does not name: its
    push was interrupted, and another push repairs that.
    """
    plans = [
        replace(plan, small=small)
        for plan in plan_images(config, specs, workspace.root, workspace.locks)
    ]
    names = [f"{namespace}/{p.spec.repository}:{version(config, p)}" for p in plans]

    def lacks(plan: ImagePlan, name: str) -> bool:
        platform, held = plan.spec.platform.name, lookup(name)
        if held is None:
            return True
        if not held.of_platform(platform):  # the name is taken: nothing can be pushed to it
            return False
        exact = () if plan.lock.unlocked else floating(config, plan.spec)[:1]
        tagged = [lookup(f"{name.rpartition(':')[0]}:{tag}") for tag in exact]
        return not all(target and target.of_platform(platform) for target in tagged)

    with workers(8) as pool:
        lacking = pool.map(lacks, plans, names)
    return [(s, name) for s, name, lacks_ in zip(specs, names, lacking, strict=True) if lacks_]


def in_engine(reference: str, engine: Engine) -> TagTarget | None:
    """The image with a name in the engine; None if there is none."""
    try:
        info = engine.inspect(reference)
    except UsageError:
        return None
    return TagTarget.of(info.id, info.created, labels.read(info.labels))


def publish(
    look: Callable[[], Preview],
    digest: str,
    engine: Engine,
    *,
    run: Runner,
    retries: int,
    transfer: Transfer,
    say: Callable[[str], None],
) -> Preview:
    """Push an image under its immutable name, then move the floating names, also of an index.

    `look()` is `preview`. It is called again after each step, to see sisters that other machines
    push meanwhile. Returns the moves made. Raises as `push` does.
    """
    planned, done = look(), dict[str, Move]()
    first = planned.own[:1]
    push(digest, first, engine, retries=retries, transfer=transfer, say=say)
    for _ in range(_ROUNDS):
        if first[0].changes or done:
            planned = look()
        moving = [m for m in planned.moves if m.reference != first[0].reference and m.changes]
        if not moving:
            break
        push(digest, planned.own[1:], engine, retries=retries, transfer=transfer, say=say)
        for joint in planned.joint:
            if any(move.changes for move in joint.moves):
                push_index(joint.index, joint.moves, engine, run=run, retries=retries, say=say)
        done = {**{move.reference: move for move in moving}, **done}
        if planned.alone:
            break

    def made(moves: tuple[Move, ...]) -> tuple[Move, ...]:
        return tuple(done.get(move.reference, move) for move in moves)

    return replace(
        planned,
        own=first + made(planned.own[1:]),
        joint=tuple(replace(joint, moves=made(joint.moves)) for joint in planned.joint),
    )


def push(
    digest: str,
    moves: Sequence[Move],
    engine: Engine,
    *,
    retries: int,
    transfer: Transfer,
    say: Callable[[str], None],
) -> None:
    """Carry out the moves of the image's own names, in order.

    Raises NetworkError after `retries` failures in a row, UsageError if the registry refuses,
    VerifyError if the registry has another digest afterwards. The remaining names are then
    unchanged.
    """
    retry = partial(registry.retry, retries=retries, say=say, progress=lambda: transfer.done)
    for move in moves:
        if move.changes:
            engine.tag(digest, *move.reference.rsplit(":", 1))
            retry(partial(_send, move.reference, engine, transfer))
            _arrived(move.reference, digest, engine, retry, say)


def push_index(
    index: Index,
    moves: Sequence[Move],
    engine: Engine,
    *,
    run: Runner,
    retries: int,
    say: Callable[[str], None],
) -> None:
    """Carry out the moves of the names of an index, in order.

    Its images are in the registry already, so this sends only the index, once. Raises as `push`
    does, and NetworkError if the registry does not show one of the images yet.
    """
    if not index.digest:
        raise NetworkError(
            f"{moves[0].reference}: the registry does not show its images yet", "push again"
        )
    retry = partial(registry.retry, retries=retries, say=say)
    source = partial(registry.make_index, index=index)
    for move in moves:
        if move.changes:
            retry(partial(source, move.reference, run=run))
            _arrived(move.reference, index.digest, engine, retry, say)
            source = partial(registry.name_index, digest=index.digest)


def _arrived(
    reference: str,
    digest: str,
    engine: Engine,
    retry: Callable[[Callable[[], str]], str],
    say: Callable[[str], None],
) -> None:
    """Raise VerifyError unless the registry has exactly this digest under a name."""
    say(f"pushed {reference}")
    pushed = retry(partial(engine.registry_digest, reference, missing_ok=True))
    if pushed != digest:
        raise VerifyError(f"{reference} is {pushed or 'nothing'}, expected {digest}")


def _send(reference: str, engine: Engine, transfer: Transfer) -> None:
    """Push the image with a name in the engine. Raises UsageError or NetworkError."""
    try:
        engine.push(reference, transfer)
    except PushError as error:
        raise registry.problem(reference, error.message) from None
