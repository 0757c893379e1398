"""Which tags an image gets, and which of them may move. Pure.

The immutable tag names all that makes an image, ends in the hash of its inputs and never moves. The
floating ones are for typing; each only ever moves forward, to a newer torch, then to newer inputs,
then to a later revision. An image that lacks something - a lock, NVIDIA's compat libraries - gets
no floating tag, because nobody who types "sm120" asks for less.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from packaging.version import Version

from torch_images.build.labels import ImageLabels
from torch_images.config.matrix import ImageSpec, refusal, releases, short, unusual
from torch_images.config.types import Config
from torch_images.errors import UsageError, VerifyError

LATEST = "latest"
NEW, MOVES, THERE, STAYS, TAKEN = "new", "moves", "there", "stays", "taken"
_NAMESPACE = re.compile(
    r"(?:[a-z0-9][a-z0-9.-]*(?::[0-9]+)?)(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)+|"
    r"(?:[a-z0-9][a-z0-9.-]*:[0-9]+)"
)


@dataclass(frozen=True, kw_only=True)
class Names:
    """The tags of one image in its repository, such as "torch-cu130"; the exactest come first."""

    repository: str
    immutable: str
    floating: tuple[str, ...]

    def references(self, namespace: str) -> tuple[str, ...]:
        """Every name in a registry, the immutable one first."""
        return tuple(
            f"{namespace}/{self.repository}:{tag}" for tag in (self.immutable, *self.floating)
        )


@dataclass(frozen=True, kw_only=True)
class TagTarget:
    """An image as the holder of a tag: its manifest's digest, and what decides which is newer.

    `created` is the date of its inputs (RFC 3339), `revision` the commit that it was built from.
    """

    digest: str
    torch: str
    created: str
    revision: str = ""

    @classmethod
    def of(cls, digest: str, created: str, labels: ImageLabels) -> TagTarget:
        """From what an engine or a registry says of an image."""
        return cls(
            digest=digest,
            torch=labels.torch or "0",
            created=created[:10],
            revision=labels.revision,
        )


@dataclass(frozen=True, kw_only=True)
class Move:
    """What happens to one tag: `state` is new, moves, there (already), stays or taken.

    `held` is the digest that has the tag now, "" for none; `reason` says why it stays or is taken.
    """

    reference: str
    state: str
    held: str = ""
    reason: str = ""

    @property
    def changes(self) -> bool:
        """Whether the tag will name another image than now."""
        return self.state in (NEW, MOVES)


def floating(config: Config, spec: ImageSpec) -> tuple[str, ...]:
    """The floating tags of a complete image.

    A tag with a minor version of torch is for its newest release, one without for the newest
    release that this image is built with. Neither ever names a pre-release, such as a night's
    build: that has the tag with its whole version only. "latest" is what
    `invoke build --cuda VERSION` builds with nothing else asked for.
    """
    name = short(config, spec)
    minor = ".".join(spec.torch.split(".")[:2])
    newest, newest_of_minor = _newest(config, spec, ""), _newest(config, spec, f"{minor}.")
    every = (
        f"{spec.torch}-{name}",
        *([f"{minor}-{name}"] if newest_of_minor == spec.torch else []),
        *([name] if newest == spec.torch else []),
    )
    usual = spec.every_arch and config.defaults.arch == "all" and newest == spec.torch
    usual = usual and not spec.ptx and not spec.prune
    return (*every, LATEST) if usual and not unusual(config, spec) else every


def _newest(config: Config, spec: ImageSpec, prefix: str) -> str:
    """The newest torch, of those whose version begins with a text, that such an image has.

    Pre-releases do not count; "" if there are no others.
    """
    if spec.source.compiled:
        return spec.torch
    return next(
        (
            release.version
            for release in releases(config, spec.cuda, spec.source, spec.base)
            if release.version.startswith(prefix)
            and not release.prerelease
            and all(
                refusal(config, replace(spec, release=release), a) is None
                for a in spec.architectures
            )
        ),
        "",
    )


def observed(
    config: Config, spec: ImageSpec, labels: ImageLabels, facts: Mapping[str, str]
) -> Names:
    """The tags that an image has earned; `facts` is what its verification observed in it.

    Raises VerifyError where the two do not say the same.
    """
    claims = {
        "CUDA": (facts.get("cuda", ""), spec.cuda.version),
        "torch": (_public(facts.get("torch", "")), spec.torch),
        **{f"arch {a.name}": (bool(facts.get(f"arch {a.name}")), True) for a in spec.architectures},
    }
    for name, (seen, claimed) in claims.items():
        if seen != claimed:
            raise VerifyError(f"verification saw {name} {seen or 'none'}, the tag says {claimed}")
    return Names(
        repository=spec.repository,
        immutable=labels.version,
        floating=floating(config, spec) if labels.complete else (),
    )


def plan_moves(
    names: Names,
    ours: TagTarget,
    namespace: str,
    lookup: Callable[[str], TagTarget | None],
    descends: Callable[[str, str], bool],
) -> tuple[Move, ...]:
    """What becomes of each tag.

    `lookup(reference)`: current target or None. `descends(a, b)`: whether commit a
    follows commit b. All names are looked up at once, because a registry may be far away.
    """
    references = names.references(namespace)
    with ThreadPoolExecutor(len(references)) as pool:
        targets = tuple(pool.map(lookup, references))
    moves = []
    for reference, held in zip(references, targets, strict=True):
        state, reason = NEW, ""
        if held and held.digest == ours.digest:
            state = THERE
        elif held and reference.endswith(f":{names.immutable}"):
            state = TAKEN
            reason = f"it is {held.digest}, built from revision {held.revision or 'unknown'}"
        elif held:
            reason = _obstacle(ours, held, descends)
            state = STAYS if reason else MOVES
        digest = held.digest if held else ""
        moves.append(Move(reference=reference, state=state, held=digest, reason=reason))
    return tuple(moves)


def namespace(config: Config, named: str) -> str:
    """Registry and owner to publish to: what was named, else those of images.yaml.

    Raises UsageError.
    """
    wanted = named.strip().rstrip("/") or f"{config.registry}/{config.owner}"
    if not _NAMESPACE.fullmatch(wanted):
        raise UsageError(
            f"'{re.sub('.*@', '***@', wanted)}' is not a registry to publish to",
            "give host and owner, such as ghcr.io/me or 127.0.0.1:5000/me",
        )
    return wanted


def _obstacle(ours: TagTarget, held: TagTarget, descends: Callable[[str, str], bool]) -> str:
    """Why a floating tag must not move from one image to another; "" if it may."""
    mine, theirs = Version(ours.torch), Version(held.torch)
    if mine != theirs:
        return "" if mine > theirs else f"it names a newer torch, {held.torch}"
    if ours.created != held.created:
        return "" if ours.created > held.created else f"it names newer inputs, of {held.created}"
    if descends(ours.revision, held.revision):
        return ""
    return f"revision {ours.revision or 'unknown'} is not known to follow {held.revision or 'its'}"


def _public(version: str) -> str:
    """A version of torch without "+cu130"."""
    return version.partition("+")[0]
