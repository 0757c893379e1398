"""Selecting and describing images of the matrix, for the verbs. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from torch_images.config.choose import choose, default_platform
from torch_images.config.image import COMPAT, ImageSpec
from torch_images.config.matrix import matrix
from torch_images.config.types import WITH, WITHOUT, Config
from torch_images.errors import UsageError, shown, suggest
from torch_images.platforms import AMD64

ALL = "all"  # every platform
_ARCHES = re.compile(r"sm[0-9]{2,3}(?:_sm[0-9]{2,3})*")


def find_image(config: Config, identifier: str) -> ImageSpec:
    """The image with this identifier, in the catalogue or not. The inverse of `id`.

    Raises UsageError, with suggestions, for text that is not an identifier, and, with the reason,
    for an image that cannot be built.
    """
    words = identifier.split("-")
    platform = next((p for p in config.platforms if p.suffix == f"-{words[-1]}"), AMD64)
    words = words if platform == AMD64 else words[:-1]
    compat = words[-1:] == [COMPAT]
    words = words[:-1] if compat else words
    arches = words.pop(1) if len(words) == 5 and _ARCHES.fullmatch(words[1]) else ""  # noqa: PLR2004
    cuda = next((c for c in config.cudas if words[:1] == [c.short]), None)
    by_sm = {a.capability.sm: a.name for a in config.architectures}
    names = [by_sm.get(word, "") for word in arches.split("_") if word]
    if len(words) == 4 and cuda and all(names):  # noqa: PLR2004  cuda, torch, base, variant
        _, origin, base, variant = words
        compiled = origin in (s.name for s in config.sources if s.compiled)
        published = next((s.name for s in config.sources if not s.compiled), "")
        spec = choose(
            config,
            cuda=cuda.name,
            torch=None if compiled else origin.removeprefix("torch"),
            arch=",".join(names),
            source=origin if compiled else published,
            base=base,
            variant=variant,
            compat=WITH if compat else WITHOUT,
            platform=platform.name,
        )
        if spec.id == identifier:
            return spec
    known = (spec.id for spec in matrix(config))
    raise UsageError(f"'{shown(identifier)}' names no image", suggest(identifier, known))


def select(config: Config, pattern: str, platform: str = ALL) -> tuple[ImageSpec, ...]:
    """The images of the matrix whose identifier matches one of several globs, by commas.

    `platform` is their platform, or ALL; "" is this machine's own, and any that a glob ends in,
    such as "*-arm64". Raises UsageError if no image matches.
    """
    specs, globs = matrix(config), pattern.split(",")
    platform_ = platform or default_platform(config).name

    def fits(spec: ImageSpec, glob: str) -> bool:
        by_suffix = not platform and spec.platform != AMD64 and glob.endswith(spec.platform.suffix)
        return fnmatchcase(spec.id, glob) and (platform_ in (ALL, spec.platform.name) or by_suffix)

    if platform_ not in (ALL, *config.names("platform")):
        raise unknown_platform(config, platform_)
    chosen = tuple(spec for spec in specs if any(fits(spec, glob) for glob in globs))
    if not chosen:
        known = (spec.id for spec in specs if platform_ in (ALL, spec.platform.name))
        of = "" if platform_ == ALL else f" for {platform_}"
        raise UsageError(f"no image matches '{shown(pattern)}'{of}", suggest(pattern, known))
    return chosen


def chosen(config: Config, pattern: str, axes: Mapping[str, str]) -> tuple[ImageSpec, ...]:
    """The images that match a glob or, without a glob, the image with these values of axes.

    A value "" is the default. The platform may be ALL, and is allowed with a glob. Raises
    UsageError for a glob with other axes, and as `select` and `choose` do.
    """
    named = {axis: value for axis, value in axes.items() if value and axis != "platform"}
    platform = axes.get("platform", "")
    if pattern and named:
        raise UsageError("--select and single axes exclude each other", "give one or the other")
    if pattern:
        return select(config, pattern, platform)
    if platform == ALL:
        return tuple(choose(config, **named, platform=p) for p in config.names("platform"))
    if platform and platform not in config.names("platform"):
        raise unknown_platform(config, platform)
    return (choose(config, **named, platform=platform or None),)


def unknown_platform(config: Config, named: str) -> UsageError:
    """The error for a platform that images.yaml does not have."""
    hint = suggest(named, (*config.names("platform"), ALL))
    return UsageError(f"unknown platform '{shown(named)}'", hint)


def describe(spec: ImageSpec) -> dict[str, str | bool | list[str]]:
    """The image as plain data for JSON, which CI matrices read."""
    return {
        "id": spec.id,
        "cuda": spec.cuda.version,
        "arch": [a.name for a in spec.architectures],
        "source": spec.source.name,
        "base": spec.base.name,
        "variant": spec.variant.name,
        "compat": spec.compat,
        "platform": spec.platform.name,
        "python": spec.base.python,
        "torch": spec.torch,
        "repository": spec.repository,
    }
