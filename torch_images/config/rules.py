"""Rules of images.yaml that involve several fields. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from torch_images.config.types import Config

# Parts of identifiers and tags that no name may look like.
_RESERVED = re.compile(r"latest|compat|amd64|arm64|(?:cu|sm|torch|py)[0-9].*")
# A place of the file; what is wrong, which follows the name of the place; what to change.
Problem = tuple[tuple[str | int, ...], str, str]


def problems(config: Config) -> Iterator[Problem]:
    """All problems of a configuration."""
    yield from _names(config)
    yield from _gpus(config)
    for extra in config.extras:
        if bool(extra.wheels) == bool(extra.pins):
            yield ("extras", extra.name), "must have either wheels or pins", ""
    for variant in config.variants:
        for place, extra in enumerate(variant.extras):
            for other in variant.extras[:place]:
                if text := extra.conflict(other):
                    hint = "choose one of them, or put them into separate variants"
                    yield ("variants", variant.name, "extras", place), text, hint
    yield from _removals(config)


def _names(config: Config) -> Iterator[Problem]:
    """Identifiers and tags join names of these three axes, so each name must be unique."""
    seen: dict[str, str] = {}
    for axis in ("source", "base", "variant"):
        for name in config.names(axis):
            path = (f"{axis}s", name, "")
            if name in seen:
                yield path, f"has the name of a {seen[name]}", "rename one of them"
            if _RESERVED.fullmatch(name):
                yield path, "has a name that tags use for something else", "rename it"
            seen[name] = axis


def _gpus(config: Config) -> Iterator[Problem]:
    """A GPU has one compute capability, and other sections name GPUs that have one."""
    known = Counter(name for arch in config.architectures for name in (*arch.gpus, *arch.geforce))
    known.update(name for _, names in config.other_gpus for name in names)
    for name in (name for name, count in known.items() if count > 1):
        yield ("architectures",), f"and other-gpus have '{name}' more than once", "keep one of them"
    aliases = dict(config.gpu_aliases)
    for section, names in (("arm64-gpus", config.arm64_gpus), ("gpu-aliases", aliases)):
        for name in (name for name in names if name not in known):
            yield (section,), f"has '{name}', which is no GPU of architectures", "correct the name"


def _removals(config: Config) -> Iterator[Problem]:
    for kind, narrowed in (("always", False), ("arch", True)):
        removals = [removal for removal in config.removals if removal.narrowed == narrowed]
        for place, removal in enumerate(removals):
            changed = next((k for k in ("code", "symbols", "lists") if getattr(removal, k)), "")
            for number, wheel in enumerate(removal.wheels if changed else ()):
                if wheel.startswith(("nvidia-", "cuda-")):
                    text = f"cannot lose '{changed}': NVIDIA's licence forbids changed copies"
                    hint = "leave whole files out, or nothing"
                    yield ("removals", kind, place, "of", number), text, hint
