"""Rules of images.yaml that involve several fields. Pure.

Each rule yields its problems, and `problems` runs all rules in order. A rule may rely on those
before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from torch_images.config.types import Config
from torch_images.errors import suggest

# Parts of identifiers and tags that no name may look like.
_RESERVED = re.compile(r"latest|compat|amd64|arm64|(?:cu|sm|torch|py)[0-9].*")
Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """A problem at a place of the file. The message is the place's name followed by `text`."""

    path: Place
    text: str
    hint: str = ""


def problems(config: Config) -> Iterator[Problem]:
    """All problems of a configuration."""
    for rule in _RULES:
        yield from rule(config)


def _names(config: Config) -> Iterator[Problem]:
    """Identifiers and tags join names of these three axes, so each name must be unique."""
    seen: dict[str, str] = {}
    for axis in ("source", "base", "variant"):
        for name in config.names(axis):
            path = (f"{axis}s", name, "")
            if name in seen:
                yield Problem(path, f"has the name of a {seen[name]}", "rename one of them")
            if _RESERVED.fullmatch(name):
                yield Problem(path, "has a name that tags use for something else", "rename it")
            seen[name] = axis


def _gpus(config: Config) -> Iterator[Problem]:
    known = {gpu for arch in config.architectures for gpu in (*arch.gpus, *arch.geforce)}
    known |= {gpu for _, names in config.other_gpus for gpu in names}
    named: list[tuple[Place, str]] = [
        *((("arm64-gpus", place), gpu) for place, gpu in enumerate(config.arm64_gpus)),
        *((("gpu-aliases", gpu, ""), gpu) for gpu, _ in config.gpu_aliases),
    ]
    for at, gpu in named:
        if gpu not in known:
            yield Problem(at, "is not in any list of GPUs", suggest(gpu, sorted(known)))


def _extras(config: Config) -> Iterator[Problem]:
    for extra in config.extras:
        path = ("extras", extra.name)
        if bool(extra.wheels) == bool(extra.pins):
            yield Problem(path, "must have either wheels or pins")


def _variants(config: Config) -> Iterator[Problem]:
    for variant in config.variants:
        path = ("variants", variant.name)
        for place, extra in enumerate(variant.extras):
            for other in variant.extras[:place]:
                both = {**dict(extra.conflicts), **dict(other.conflicts)}
                if reason := both.get(other.name) or both.get(extra.name):
                    text = f"cannot be in one image with {other.name}: {reason}"
                    hint = "choose one of them, or put them into separate variants"
                    yield Problem((*path, "extras", place), text, hint)


def _removals(config: Config) -> Iterator[Problem]:
    for kind, narrowed in (("always", False), ("arch", True)):
        removals = [removal for removal in config.removals if removal.narrowed == narrowed]
        for place, removal in enumerate(removals):
            path: Place = ("removals", kind, place)
            changed = next((k for k in ("code", "symbols", "lists") if getattr(removal, k)), "")
            for number, wheel in enumerate(removal.wheels if changed else ()):
                if wheel.startswith(("nvidia-", "cuda-")):
                    text = f"cannot lose '{changed}': NVIDIA's licence forbids changed copies"
                    hint = "leave whole files out, or nothing"
                    yield Problem((*path, "of", number), text, hint)


_RULES = (
    _names,
    _gpus,
    _extras,
    _variants,
    _removals,
)
