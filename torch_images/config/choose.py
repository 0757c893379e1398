"""Choosing images: by values of axes, by identifier, by a glob of identifiers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from packaging.version import Version

from torch_images.config.combine import combine, default_platform, value
from torch_images.config.image import LATEST, ImageSpec, short
from torch_images.config.matrix import matrix
from torch_images.config.types import WITH, WITHOUT, Config
from torch_images.errors import UsageError, shown, suggest
from torch_images.platforms import AMD64

ALL = "all"  # every platform
# CUDA, architectures, torch or source, base, variant, compat, platform.
_ID = re.compile(
    r"(cu[0-9]+)(?:-(sm[0-9]{2,3}(?:_sm[0-9]{2,3})*))?-(NAME)-(NAME)-(NAME)(-compat)?(-NAME)?".replace(
        "NAME", "[^-*?[]+"
    )  # a glob is no identifier
)


def choose(config: Config, **axes: str) -> ImageSpec:
    """The image with these values of axes, see `combine`."""
    return combine(config, axes)


def choose_own(config: Config) -> ImageSpec:
    """The image of the user's own project. Raises UsageError as `combine` does."""
    assert config.own
    own, spec = config.own, combine(config, config.own.axes)
    variant = replace(
        spec.variant,
        folder=own.folder or spec.variant.folder,
        ports=tuple(dict.fromkeys((*spec.variant.ports, *own.ports))),
    )
    return replace(spec, own=own, variant=variant)


def choose_id(config: Config, identifier: str) -> ImageSpec:
    """The image with this identifier, in the catalogue or not. The inverse of `id`.

    Raises UsageError, with suggestions, for text that is not an identifier, and, with the reason,
    for an image that cannot be built.
    """
    if config.own and (spec := choose_own(config)).id == identifier:
        return spec
    sms = {arch.capability.sm: arch.name for arch in config.architectures}
    cudas = {cuda.short: cuda.name for cuda in config.cudas}
    platforms = {platform.suffix: platform.name for platform in config.platforms}
    compiled = {source.name for source in config.sources if source.compiled}
    published = next((s.name for s in config.sources if not s.compiled), "")
    if match := _ID.fullmatch(identifier):
        cuda, arches, origin, base, variant, compat, suffix = match.groups("")
        names = [sms.get(sm, "") for sm in arches.split("_") if sm]
        if cuda in cudas and suffix in platforms and all(names):
            spec = choose(
                config,
                cuda=cudas[cuda],
                arch=",".join(names),
                base=base,
                variant=variant,
                compat=WITH if compat else WITHOUT,
                platform=platforms[suffix],
                source=origin if origin in compiled else published,
                torch="" if origin in compiled else origin.removeprefix("torch"),
            )
            if spec.id == identifier:
                return spec
    known = (spec.id for spec in matrix(config))
    raise UsageError(f"'{shown(identifier)}' names no image", suggest(identifier, known))


def choose_named(config: Config, name: str) -> ImageSpec:
    """The image with an identifier, or with the tag of a build, such as "torch-cu130:sm120".

    Raises UsageError as `choose_id` does.
    """
    if config.own and name in (config.own.repository, f"{config.own.repository}:{LATEST}"):
        return choose_own(config)
    tagged = [s for s in matrix(config) if name == f"{s.repository}:{short(config, s)}"]
    return max(tagged, key=lambda s: Version(s.torch)) if tagged else choose_id(config, name)


def choose_glob(config: Config, glob: str, platform: str = ALL) -> tuple[ImageSpec, ...]:
    """The images of the matrix whose identifier matches one of several globs, by commas.

    An identifier may name an image outside the matrix. `platform` is their platform, or ALL; "" is
    this machine's own, and any that a glob ends in, such as "*-arm64". Raises UsageError if no
    image matches, and as `choose_id` does.
    """
    name = platform or default_platform(config).name
    own = None if platform == ALL else value("platform", config.platforms, name)

    def fits(spec: ImageSpec, glob: str) -> bool:
        by_suffix = not platform and spec.platform != AMD64 and glob.endswith(spec.platform.suffix)
        return fnmatchcase(spec.id, glob) and (own in (None, spec.platform) or by_suffix)

    globs = glob.split(",")
    named = (choose_id(config, one) for one in globs if _ID.fullmatch(one))
    known = dict.fromkeys((*matrix(config), *named))
    images = tuple(spec for spec in known if any(fits(spec, one) for one in globs))
    if not images:
        ids = (spec.id for spec in known if own in (None, spec.platform))
        of = f" for {own}" if own else ""
        raise UsageError(f"no image matches '{shown(glob)}'{of}", suggest(glob, ids))
    return images


def choose_images(config: Config, glob: str, axes: Mapping[str, str]) -> tuple[ImageSpec, ...]:
    """The images that match a glob or, without a glob, the image with these values of axes.

    A value "" is the default. The platform may be ALL, and is allowed with a glob. Raises
    UsageError for a glob with other axes, and as `choose_glob` and `choose` do. Where the user's
    own project has an image, it is that one, and its axes are in its table.
    """
    if config.own and not glob:
        if given := next((axis for axis, text in axes.items() if text), ""):
            raise UsageError(
                f"--{given} has no effect on the image of this folder, {config.own.repository}",
                f"set {given} in its table",
            )
        return (choose_own(config),)
    platform = axes.get("platform", "")
    if not glob:
        platforms = config.names("platform") if platform == ALL else (platform,)
        return tuple(combine(config, {**axes, "platform": name}) for name in platforms)
    if any(text for axis, text in axes.items() if axis != "platform"):
        raise UsageError("--select and single axes exclude each other", "give one or the other")
    return choose_glob(config, glob, platform)
