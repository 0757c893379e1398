"""A verified image -> its names in a registry.

The immutable name goes first, with all layers, and must have the built digest in the registry
before any floating one is touched. Each name is a single manifest put at the end, so what is cut
off leaves no half of one; the same push again sends what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from torch_images.build import labels
from torch_images.build.build import revision
from torch_images.build.plan import plan_images, version
from torch_images.config.matrix import ImageSpec
from torch_images.config.types import Config
from torch_images.errors import PublishError, PushError, UsageError, VerifyError
from torch_images.host import git
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.publish import registry
from torch_images.publish.tag_rules import TAKEN, Move, TagTarget, observed, plan_moves
from torch_images.verify.identify import VerifiedImage

_DONE = ("Pushed", "Layer already exists", "Mounted from")


class Transfer:
    """Follows the events of a push; `done` only grows, so a retry can tell whether it got on."""

    def __init__(self, show: Callable[[int, int], None]) -> None:
        self._show = show
        self._sent: dict[str, int] = {}
        self._size: dict[str, int] = {}
        self._finished: set[str] = set()

    @property
    def done(self) -> int:
        """How many layers the registry has."""
        return len(self._finished)

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Take in one event, and show the bytes sent and to send so far."""
        layer, status = str(event.get("id", "")), str(event.get("status", ""))
        if status.startswith(_DONE):
            self._finished.add(layer)
            self._sent[layer] = self._size.get(layer, 0)
        detail = event.get("progressDetail") or {}
        if "total" in detail:
            self._size[layer] = int(detail["total"])
            self._sent[layer] = int(detail.get("current", 0))
        self._show(sum(self._sent.values()), sum(self._size.values()))


def preview(
    config: Config,
    image: VerifiedImage,
    namespace: str,
    *,
    lookup: Callable[[str], TagTarget | None],
    workspace: Workspace,
    run: Runner,
) -> tuple[Move, ...]:
    """What tagging, or pushing, would do to each name; `lookup(name)`: its current target, or None.

    Raises VerifyError where the image is not what its tags would say, PublishError where its
    immutable tag names another image.
    """
    info, said = image.info, labels.read(image.info.labels)
    names = observed(config, image.plan.spec, said, image.report.observed)
    ours = TagTarget.of(info.id, info.created, said)
    moves = plan_moves(
        names, ours, namespace, lookup, partial(_descends, workspace=workspace, run=run)
    )
    for move in moves:
        if move.state == TAKEN:
            raise PublishError(
                f"{move.reference} names another image and never moves: {move.reason}",
                "the inputs are the same, so use that one; to publish anew, change an input "
                "(`invoke lock`)",
            )
    return moves


def unpublished(
    config: Config,
    specs: Sequence[ImageSpec],
    namespace: str,
    *,
    lookup: Callable[[str], TagTarget | None],
    workspace: Workspace,
) -> list[tuple[ImageSpec, str]]:
    """The images whose inputs nobody has published yet, each with the name it will have."""
    plans = plan_images(config, specs, workspace.root, workspace.locks)
    names = [f"{namespace}/{p.spec.repository}:{version(config, p)}" for p in plans]
    with ThreadPoolExecutor(max_workers=8) as pool:
        held = pool.map(lookup, names)
    return [(s, name) for s, name, h in zip(specs, names, held, strict=True) if h is None]


def in_engine(reference: str, engine: Engine) -> TagTarget | None:
    """The image that has a name in the engine; None for none."""
    try:
        info = engine.inspect(reference)
    except UsageError:
        return None
    return TagTarget.of(info.id, info.created, labels.read(info.labels))


def push(
    digest: str,
    moves: Sequence[Move],
    engine: Engine,
    *,
    retries: int,
    transfer: Transfer,
    say: Callable[[str], None],
) -> None:
    """Carry out what `preview` found, in its order.

    Raises NetworkError once it has failed `retries` times in a row, UsageError where the registry
    refuses, VerifyError where the registry has another digest afterwards. Names that were not
    reached are as before.
    """
    retry = partial(registry.retry, retries=retries, say=say, progress=lambda: transfer.done)
    for move in moves:
        if move.changes:
            engine.tag(digest, *move.reference.rsplit(":", 1))
            retry(partial(_send, move.reference, engine, transfer))
            say(f"pushed {move.reference}")
            pushed = retry(partial(engine.registry_digest, move.reference, missing_ok=True))
            if pushed != digest:
                raise VerifyError(f"{move.reference} is {pushed or 'nothing'}, built was {digest}")


def _send(reference: str, engine: Engine, transfer: Transfer) -> None:
    try:
        engine.push(reference, transfer)
    except PushError as error:
        raise registry.problem(reference, error.message) from None


def _descends(ours: str, theirs: str, *, workspace: Workspace, run: Runner) -> bool:
    """Whether one revision follows another, as far as this checkout knows."""
    if (
        not theirs
        or theirs.startswith("-")
        or ours == theirs
        or revision(workspace.root, run) is None
    ):
        return False
    words = ["merge-base", "--is-ancestor", *(r.removesuffix("-dirty") for r in (theirs, ours))]
    command = ["git", "-C", str(workspace.root), *words]
    return not run.run(command, env=git.environment(), check=False).code
