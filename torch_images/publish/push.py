"""A verified image -> its names in a registry.

The immutable name goes first, with all layers, and must have the built digest in the registry
before any floating name moves; "latest" moves last. Each name is one manifest, put last, so an
interrupted push leaves no partial image; repeating the push sends what is missing.

A floating name that images for several platforms share refers to an index of the published ones,
or to the image itself while it is the only one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from torch_images.build import labels
from torch_images.build.plan import ImagePlan, lock_image, plan_image, plan_images, version
from torch_images.config.image import ImageSpec
from torch_images.config.matrix import sisters
from torch_images.config.tags import floating
from torch_images.config.types import Config
from torch_images.errors import CommandError, LockError, PublishError, UsageError, VerifyError
from torch_images.host.diagnose import of_registry
from torch_images.host.engine import Engine
from torch_images.host.image_info import ImageInfo
from torch_images.host.runner import Runner
from torch_images.host.workers import workers
from torch_images.host.workspace import Workspace
from torch_images.publish import registry
from torch_images.publish.tag_rules import (
    STAYS,
    TAKEN,
    THERE,
    Manifest,
    Move,
    TagTarget,
    move,
)
from torch_images.verify.identify import VerifiedImage

# Of two pushes for different platforms at once, one may overtake the other between looking and
# writing. The look after writing sees both.
_ROUNDS = 2
_ANSWER = 600.0  # seconds; some registries need minutes to take in an index


def plan(
    config: Config,
    image: VerifiedImage,
    namespace: str,
    *,
    lookup: Callable[[str], TagTarget | None],
    workspace: Workspace,
    joins: bool = True,
) -> tuple[Move, ...]:
    """What pushing does to each name of an image, the immutable one first.

    `lookup(name)`: what a name refers to now, or None. A floating name joins the image with those
    for other platforms: the ones with today's inputs or, while the registry lacks one, that which
    the name has now, of the same torch. Without `joins`, such names stay: an engine has no index.
    Raises PublishError if its immutable tag refers to another image.
    """
    spec, image_labels = image.plan.spec, labels.read(image.info.labels)
    floats = () if image_labels.unlocked else floating(config, spec)
    ours = _manifest(image.info, spec.platform.name)
    others = _exact_tags(config, image.plan, workspace)
    tags = (image_labels.version, *floats, *filter(None, others.values()))
    references = {tag: f"{namespace}/{spec.repository}:{tag}" for tag in tags}
    with workers(len(tags)) as pool:
        current = dict(zip(tags, pool.map(lookup, references.values()), strict=True))
    alone = TagTarget(digest=ours.digest, manifests=(ours,))
    own = references[image_labels.version]
    moves = [move(own, alone, current[image_labels.version], immutable=True)]
    if moves[0].state == TAKEN:
        raise PublishError(
            f"{own} names another image and never moves: {moves[0].reason}",
            "the inputs are the same, so use that image; `invoke reproduce` compares the two",
        )
    for tag in floats:
        shared = {s: exact for s, exact in others.items() if tag in floating(config, s)}
        sharing = (_join(s, current.get(exact), current[tag]) for s, exact in shared.items())
        images = sorted((ours, *filter(None, sharing)), key=lambda one: one.platform)
        joint = alone if len(images) == 1 else TagTarget(digest="", manifests=tuple(images))
        planned = move(references[tag], joint, current[tag])
        if shared and not joins:
            waits = "images for several platforms share it, and `invoke push` moves it"
            planned = replace(planned, state=STAYS, reason=waits)
        moves.append(planned)
    return tuple(moves)


def _manifest(info: ImageInfo, platform: str = "") -> Manifest:
    return Manifest(
        platform=platform,
        digest=info.id,
        created=info.created,
        labels=labels.read(info.labels),
    )


def _exact_tags(config: Config, image: ImagePlan, workspace: Workspace) -> dict[ImageSpec, str]:
    """The same image for other platforms, each with its immutable tag; "" without locks."""
    tags = {}
    for sister in sisters(config, image.spec):
        tags[sister] = ""
        with contextlib.suppress(LockError):
            locked = replace(lock_image(config, sister, workspace.locks), small=image.small)
            tags[sister] = version(config, plan_image(config, locked, workspace.root))
    return tags


def _join(sister: ImageSpec, exact: TagTarget | None, shared: TagTarget | None) -> Manifest | None:
    """The image for another platform that a floating tag refers to, too; None without one."""
    platform = sister.platform.name
    current = exact.of_platform(platform) if exact else None
    if current or shared is None or shared.torch != sister.torch:
        return current
    return shared.of_platform(platform)


def push(
    look: Callable[[], tuple[Move, ...]], send: Callable[[Move], None]
) -> tuple[tuple[Move, ...], tuple[Move, ...]]:
    """Move the names: the immutable one, then the floating ones. Safe to repeat.

    `look()` is `plan`, and is called again after each step; `send` carries a move out. Returns the
    moves made, and a last look. Raises VerifyError if the registry lacks the image after its
    transfer.
    """
    planned, moved = look(), dict[str, Move]()
    exact = planned[0]
    if exact.changes:
        send(exact)
        moved[exact.reference], planned = exact, look()
        if planned[0].changes:
            raise VerifyError(f"{exact.reference} is not in the registry after its push")
    for _ in range(_ROUNDS):
        due = {each.reference: each for each in planned if each.changes}
        for each in due.values():
            send(each)
        moved = {**due, **moved}
        planned = look() if due else planned
    return tuple(moved.get(each.reference, each) for each in planned), planned


def send(move: Move, engine: Engine, run: Runner) -> None:
    """Push an image under a name, or join images of a registry there to an index.

    Raises UsageError if the registry refuses, NetworkError if it is unreachable.
    """
    reference = move.reference
    try:
        if len(move.digests) > 1:
            sources = (registry.at(reference, digest) for digest in move.digests)
            create = ["docker", "buildx", "imagetools", "create", f"--tag={reference}"]
            run.run([*create, *sources], seconds=_ANSWER)
            return
        with _named(reference, move.digests[0], engine):
            done = run.stream(["docker", "push", reference])
            if done.code:
                raise of_registry(reference, done.output)
    except CommandError as error:
        raise of_registry(reference, error.output) from None


@contextlib.contextmanager
def _named(reference: str, digest: str, engine: Engine) -> Iterator[None]:
    """Give an image of the engine a name; after an error, the name is as it was before."""
    before = engine.digest(reference)
    engine.tag(digest, *reference.rsplit(":", 1))
    try:
        yield
    except BaseException:
        if before:
            engine.tag(before, *reference.rsplit(":", 1))
        elif any(i.id == digest and len(i.tags) > 1 for i in engine.listed()):  # else it would go
            engine.untag(reference)
        raise


def indexes(moves: Sequence[Move]) -> tuple[str, ...]:
    """The most specific name of each index, with its digest, by a look after the push."""
    existing = [move for move in moves if move.state == THERE and len(move.digests) > 1]
    names = {move.current: move.reference for move in reversed(existing)}
    return tuple(f"{name}@{digest}" for digest, name in reversed(names.items()))


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
        platform, target = plan.spec.platform.name, lookup(name)
        if target is None:
            return True
        if not target.of_platform(platform):  # the name is taken: nothing can be pushed to it
            return False
        exact = () if plan.lock.unlocked else floating(config, plan.spec)[:1]
        targets = [lookup(f"{name.rpartition(':')[0]}:{tag}") for tag in exact]
        return not all(t and t.of_platform(platform) for t in targets)

    with workers(8) as pool:
        lacking = list(pool.map(lacks, plans, names))
    return [(s, name) for s, name, lacks_ in zip(specs, names, lacking, strict=True) if lacks_]


def in_engine(reference: str, engine: Engine) -> TagTarget | None:
    """The image with a name in the engine; None if there is none."""
    try:
        image = _manifest(engine.inspect(reference))
    except UsageError:
        return None
    return TagTarget(digest=image.digest, manifests=(image,))
