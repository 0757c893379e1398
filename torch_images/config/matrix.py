"""Config -> the images of the catalogue. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from torch_images.config.combine import combine, releases, same_files
from torch_images.config.image import ImageSpec
from torch_images.config.types import Config
from torch_images.errors import ConfigError, UsageError

_EACH = "each"  # in the catalogue: each release of torch, or each architecture in its own image


@lru_cache(maxsize=4)
def matrix(config: Config) -> tuple[ImageSpec, ...]:
    """The images of the catalogue, in its order.

    Raises ConfigError, with the reason, for a row with an image that cannot be built.
    """
    specs: dict[ImageSpec, None] = {}
    for place, row in enumerate(config.catalogue):
        try:
            for values in itertools.product(*row.named.values()):
                axes = dict(zip(row.named, values, strict=True))
                axes.setdefault("platform", config.platforms[0].name)
                specs |= dict.fromkeys(_listed(config, axes))
        except UsageError as error:
            raise ConfigError(
                f"images.yaml: 'catalogue[{place}]' lists an image that cannot be built: "
                f"{error.message}",
                error.hint or "correct the row, or remove it",
            ) from None
    return tuple(specs)


def _listed(config: Config, named: Mapping[str, str]) -> tuple[ImageSpec, ...]:
    """The images of one combination of values. Raises UsageError."""
    axes = {axis: value for axis, value in named.items() if value != _EACH}
    newest = combine(config, axes)
    torches = [newest]
    if named.get("torch") == _EACH:
        same = (newest.cuda, newest.source, newest.base, newest.platform)
        known = releases(config, *same, variant=newest.variant)
        stable = (r.version for r in known if not r.prerelease)
        torches = [combine(config, {**axes, "torch": version}) for version in stable]
    if named.get("arch") != _EACH:
        return tuple(torches)
    alone = (
        replace(spec, architectures=(arch,), whole=False)
        for spec in torches
        for arch in spec.architectures
    )
    return tuple(spec for spec in alone if same_files(spec) is None)


def of_the_project(config: Config, spec: ImageSpec) -> bool:
    """Whether an image is in the catalogue. All others are only built by arguments."""
    return any(spec.id == listed.id for listed in matrix(config))


def kin(config: Config, spec: ImageSpec) -> tuple[ImageSpec, ...]:
    """The images of the catalogue that differ from `spec` only in platform or release of torch."""
    alike = (image for image in matrix(config) if image.compat == spec.compat)
    return tuple(image for image in alike if _kind(image) == _kind(spec))


def sisters(config: Config, spec: ImageSpec) -> tuple[ImageSpec, ...]:
    """The images of the catalogue for other platforms that may share a tag with `spec`.

    They have the same torch and axes, except that one may have the compat library.
    """
    others = (image for image in matrix(config) if image.platform != spec.platform)
    alike = (image for image in others if _kind(image) == _kind(spec))
    return tuple(image for image in alike if image.release.version == spec.release.version)


def _kind(image: ImageSpec) -> tuple[str, ...]:
    """What images have in common that differ only in platform, release of torch and compat."""
    if image.own:
        return (image.own.name,)
    origin = image.origin if image.source.compiled else ""
    return (image.cuda.version, image.arch_name, origin, image.base.name, image.variant.name)


def compat_sister(spec: ImageSpec, listed: Iterable[ImageSpec]) -> ImageSpec | None:
    """The listed image with NVIDIA's compat library to name on a host that needs it, if any.

    It is for the CUDA version and platform of `spec`: the same image with the library, or else one
    for all architectures.
    """
    same = replace(spec, compat=True)
    fitting = (
        other
        for other in listed
        if other.compat
        and (other.cuda, other.platform) == (spec.cuda, spec.platform)
        and (other == same or other.whole)
    )
    return max(
        fitting, key=lambda other: (other == same, other.variant == spec.variant), default=None
    )
