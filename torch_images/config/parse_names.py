"""Checks that names are unique: no two images share one, and no two different locks.

Identifiers, tags and locks join the names of several entries of images.yaml with "-". Such a name
can contain "-" itself, so base "bookworm" with variant "x-q" would be called like base "bookworm-x"
with variant "q".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch_images.config.image import ImageSpec, short
from torch_images.config.lock_requests import image_inputs
from torch_images.config.matrix import matrix
from torch_images.config.release import Release
from torch_images.config.types import Config
from torch_images.config.yaml_nodes import Record
from torch_images.errors import ConfigError

_SECTIONS = {"variant": "variants", "base": "bases", "source": "sources"}


def check_names(config: Config, top: Record) -> None:
    """Raise ConfigError if a name stands for two images, or for two different locks."""
    images: dict[str, ImageSpec] = {}
    locks: dict[str, tuple[Any, ImageSpec]] = {}
    asked = set()
    for spec in matrix(config):
        tag = short(config, spec)
        # Releases of torch may share the tags without a version: the newest has them. "all" is what
        # each of them can be for.
        served = () if spec.every_arch else spec.architectures
        any_release = replace(spec, release=Release(version=""), architectures=served)
        names = {f"identifier {spec.id}": spec, f"tag {spec.repository}:{tag}": any_release}
        for name, image in names.items():
            other = images.setdefault(name, image)
            if other != image:
                raise _clash(top, f"share the {name}", other, image)
        axes = (spec.cuda, spec.origin, spec.base.name, spec.variant.name, spec.platform)
        if axes in asked:  # a lock is for all architectures
            continue
        asked.add(axes)
        for item in image_inputs(config, spec):
            wanted = replace(item, source=None)  # sources that are alike share their locks
            first, other = locks.setdefault(item.name, (wanted, spec))
            if first != wanted:
                problem = f"share the lock {item.name}, but do not ask for the same"
                raise _clash(top, problem, other, spec)


def _clash(top: Record, problem: str, one: ImageSpec, two: ImageSpec) -> ConfigError:
    """An error at the first entry in which two images differ, that of the second image.

    Both can be the same image, which needs two locks of one name. Its base is blamed then, because
    the names of both locks contain it.
    """
    names = {axis: (getattr(one, axis).name, getattr(two, axis).name) for axis in _SECTIONS}
    differ = [axis for axis, (first, second) in names.items() if first != second] or ["base"]
    words = [" with ".join(f"{axis} '{names[axis][i]}'" for axis in differ) for i in (0, 1)]
    line = dict(top[_SECTIONS[differ[0]]].entries())[names[differ[0]][1]]
    return line.error(f"{words[0]} and {words[1]} {problem}", "rename one, or exclude it")
