"""One image -> the same image for other platforms. Pure."""

from __future__ import annotations

from dataclasses import replace

from torch_images.config.matrix import ImageSpec, refusal, releases
from torch_images.config.types import Config
from torch_images.platforms import Platform


def sisters(config: Config, spec: ImageSpec) -> tuple[ImageSpec, ...]:
    """The same image for each other platform of images.yaml that it is built for.

    An image for all architectures has those that are built for its platform. Of any other image a
    sister has the same ones: where one of them is refused, there is no sister.
    """
    others = (p for p in config.platforms if p != spec.platform)
    found = (image for platform in others for image in kin(config, spec, platform))
    return tuple(image for image in found if image.release.version == spec.release.version)


def kin(config: Config, spec: ImageSpec, platform: Platform) -> tuple[ImageSpec, ...]:
    """The images for a platform that differ from one in that, or in torch, only.

    The newest torch comes first.
    """
    there = releases(config, spec.cuda, spec.source, spec.base, platform)
    found = (_built(config, replace(spec, platform=platform, release=r)) for r in there)
    return tuple(image for image in found if image)


def _built(config: Config, spec: ImageSpec) -> ImageSpec | None:
    """An image with the architectures that are built; None where it is not built."""
    wanted = config.architectures if spec.every_arch else spec.architectures
    built = tuple(a for a in wanted if refusal(config, spec, a) is None)
    whole = bool(built) and (spec.every_arch or built == wanted)
    return replace(spec, architectures=built) if whole else None
