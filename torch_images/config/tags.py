"""The floating tags of an image in a registry. Pure."""

from __future__ import annotations

from dataclasses import replace

from packaging.version import Version

from torch_images.config.image import LATEST, ImageSpec, short
from torch_images.config.matrix import kin, of_the_project
from torch_images.config.types import Config
from torch_images.platforms import AMD64


def floating(config: Config, spec: ImageSpec) -> tuple[str, ...]:
    """The floating tags that an image gets once its checks passed.

    The one source for every promise of a tag: tables, pages, `invoke pick`, and the push itself.
    A tag with a minor version of torch names its newest release. A tag without a version names the
    newest release with an image of these axes in the catalogue, on any platform. Neither names a
    pre-release, such as a nightly build, which only has the tag with its whole version. Tags of an
    image with the compat library say so, except "latest", see `_is_latest`. A user's own image has
    "latest" alone.
    """
    if spec.own:
        return (LATEST,)
    name = short(config, replace(spec, platform=AMD64))
    minor = ".".join(spec.torch.split(".")[:2])
    newest, newest_of_minor = _newest(config, spec, ""), _newest(config, spec, f"{minor}.")
    end = "" if name == LATEST else f"-{name}"
    return (
        f"{spec.torch}{end}",
        *([f"{minor}{end}"] if newest_of_minor == spec.torch else []),
        *([name] if newest == spec.torch and name != LATEST else []),
        *([LATEST] if _is_latest(config, spec) else []),
    )


def _is_latest(config: Config, spec: ImageSpec) -> bool:
    """Whether "latest" in a registry is this image on its platform.

    It is the image of `invoke build --cuda VERSION`, with `--compat` if the catalogue lists that
    one: it starts on more hosts.
    """
    plain = replace(spec, compat=False)
    if short(config, replace(plain, platform=AMD64)) != LATEST:
        return False
    listed = of_the_project(config, replace(spec, compat=True))
    return listed == spec.compat and _newest(config, plain, "") == spec.torch


def _newest(config: Config, spec: ImageSpec, prefix: str) -> str:
    """The newest torch, with a version that begins with `prefix`, of the images of these axes.

    Pre-releases do not count; "" if there is no other release.
    """
    if spec.source.compiled:
        return spec.torch
    versions = [
        image.release.version
        for image in (spec, *kin(config, spec))
        if image.release.version.startswith(prefix) and not image.release.prerelease
    ]
    return max(versions, key=Version, default="")
