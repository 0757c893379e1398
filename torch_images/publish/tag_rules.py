"""The tags that an image gets, and which of them may move. Pure.

The immutable tag names the axes of an image, ends in the hash of its inputs and never moves. The
floating tags are short. Each only moves forward: to a newer torch, then to inputs of the same or a
later day. An image that is not built from locked inputs alone gets no floating tag.

A floating tag names no platform. It points to an index once images for several platforms exist.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.version import Version

from torch_images.config.types import Config
from torch_images.errors import UsageError

if TYPE_CHECKING:  # it imports what builds need
    from torch_images.build.labels import ImageLabels

NEW, MOVES, THERE, STAYS, TAKEN = "new", "moves", "there", "stays", "taken"
_NAMESPACE = re.compile(
    r"(?:[a-z0-9][a-z0-9.-]*(?::[0-9]+)?)(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)+|"
    r"(?:[a-z0-9][a-z0-9.-]*:[0-9]+)"
)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """An image for one platform, e.g. "linux/arm64", "" for an unknown one.

    `created` is the time of its inputs (RFC 3339).
    """

    platform: str
    digest: str
    created: str
    labels: ImageLabels


@dataclass(frozen=True, kw_only=True)
class TagTarget:
    """What a tag refers to: one image, or an index of images for several platforms.

    `digest` is that of the manifest or index, "" for an index that does not exist yet.
    """

    digest: str
    manifests: tuple[Manifest, ...]

    @property
    def torch(self) -> str:
        """The version of torch; "0" for images that are not this project's."""
        return self.manifests[0].labels.torch or "0"

    @property
    def created(self) -> str:
        """The day of the oldest inputs."""
        return min(image.created for image in self.manifests)[:10]

    @property
    def digests(self) -> tuple[str, ...]:
        """The digests of the images."""
        return tuple(image.digest for image in self.manifests)

    def of_platform(self, platform: str) -> Manifest | None:
        """Its image for a platform; None if it has none."""
        return next((m for m in self.manifests if m.platform == platform), None)


@dataclass(frozen=True, kw_only=True)
class Move:
    """What happens to one tag: `state` is new, moves, there (already), stays or taken.

    `digests` are the images that it refers to afterwards. `current` is the digest that the tag has
    now, "" for none; `reason` says why it stays or is taken.
    """

    reference: str
    state: str
    digests: tuple[str, ...]
    current: str = ""
    reason: str = ""

    @property
    def changes(self) -> bool:
        """Whether the tag will refer to another image than now."""
        return self.state in (NEW, MOVES)


def move(
    reference: str, ours: TagTarget, current: TagTarget | None, *, immutable: bool = False
) -> Move:
    """What happens to a tag that refers to `current` now, None for a new one."""
    new = Move(reference=reference, state=NEW, digests=ours.digests)
    if current is None:
        return new
    state, reason = MOVES, ""
    if set(current.digests) == set(ours.digests):
        state = THERE
    elif immutable:
        state, reason = TAKEN, f"it is {current.digest}"
    elif reason := _obstacle(ours, current):
        state = STAYS
    return replace(new, state=state, current=current.digest, reason=reason)


def namespace(config: Config, given: str) -> str:
    """Registry and owner to publish to: `given`, else those of images.yaml, in lower case.

    Owners on GitHub may have capitals, repositories of registries may not. Raises UsageError for an
    invalid name.
    """
    where = (given.strip().rstrip("/") or f"{config.registry}/{config.owner}").lower()
    if not _NAMESPACE.fullmatch(where):
        raise UsageError(
            f"'{re.sub('.*@', '***@', where)}' is not a registry to publish to",
            "give host and owner, such as ghcr.io/me or 127.0.0.1:5000/me",
        )
    return where


def _obstacle(ours: TagTarget, current: TagTarget) -> str:
    """Why a floating tag must not move from one image to another; "" if it may.

    With the same torch, images for the same platform are compared. An index is newer if none of its
    images is older, and one is newer or for a new platform.
    """
    mine, theirs = Version(ours.torch), Version(current.torch)
    if mine != theirs:
        return "" if mine > theirs else f"it names a newer torch, {current.torch}"
    pairs = [(m, t) for m in ours.manifests if (t := current.of_platform(m.platform))]
    if not pairs:
        return _older(ours.created, current.created)
    different = [(m, t) for m, t in pairs if m.digest != t.digest]
    if not different:
        more = len(ours.manifests) > len(current.manifests)
        return "" if more else "it names an index with this image"
    reasons = (_older(m.created[:10], t.created[:10]) for m, t in different)
    return next((reason for reason in reasons if reason), "")


def _older(ours: str, current: str) -> str:
    """Why a tag stays at an image, by the dates of the inputs of both; "" if it may move.

    Of one day, the pushed image wins: it is what the checkout of the push builds.
    """
    return f"it names newer inputs, of {current}" if current > ours else ""
