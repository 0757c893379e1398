"""The pushed image and its sisters for other platforms -> the images of floating tags.

Tags are shared in groups: "latest" may name an image with the compat library for one platform, and
one without for another, while "2.14.1" names those without.

An image is pushed only after its checks passed, and its immutable name contains the hash of its
inputs. So a sister with that name in the registry is verified, and of this release. Whoever may
write to the registry can forge this, like every other name there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch_images.build.plan import lock_image, plan_image, version
from torch_images.config.image import ImageSpec
from torch_images.config.matrix import sisters
from torch_images.config.types import Config
from torch_images.errors import LockError, PublishError
from torch_images.host.workspace import Workspace
from torch_images.publish.tag_rules import Manifest, TagTarget, floating

Lookup = Callable[[str], TagTarget | None]


def shared(
    config: Config, spec: ImageSpec, tags: Sequence[str]
) -> dict[tuple[ImageSpec, ...], tuple[str, ...]]:
    """An image's floating tags by the images for other platforms that have them too."""
    groups: dict[tuple[ImageSpec, ...], tuple[str, ...]] = {}
    for tag in tags:
        others = tuple(one for one in sisters(config, spec) if tag in floating(config, one))
        groups[others] = (*groups.get(others, ()), tag)
    return groups


def join(
    config: Config,
    others: Sequence[ImageSpec],
    ours: Manifest,
    name: str,
    *,
    lookup: Lookup,
    workspace: Workspace,
    small: bool = False,
) -> tuple[Manifest, ...]:
    """An image, and those of `others` that are in the registry, sorted by platform.

    `name` is a floating name that they share, such as "ghcr.io/me/torch-cu130:2.14.1". The image
    for another platform is the one with the inputs of today. While the registry lacks that, it is
    the one of the same torch that `name` has now. So the result depends only on the registry, not
    on the machine, and a platform that comes later joins. `small` as in `LockedImage`: images with
    small layers join small ones. Raises PublishError for an image that does not match its name.
    """
    repository, current = name.rpartition(":")[0], lookup(name)
    images = [ours]
    for sister in others:
        platform = sister.platform.name
        sister_image = _today(config, sister, repository, lookup, workspace, small=small)
        if not sister_image and current and current.torch == sister.torch:
            sister_image = current.of_platform(platform)
        images += [sister_image] if sister_image else []
    return tuple(sorted(images, key=lambda manifest: manifest.platform))


def _today(
    config: Config,
    sister: ImageSpec,
    repository: str,
    lookup: Lookup,
    workspace: Workspace,
    *,
    small: bool,
) -> Manifest | None:
    """The sister with the inputs of today; None if the registry lacks it."""
    try:
        locked = lock_image(config, sister, workspace.locks)
    except LockError:
        return None
    if locked.lock.unlocked:
        return None
    name = version(config, plan_image(config, replace(locked, small=small), workspace.root))
    target = lookup(f"{repository}:{name}")
    if target is None:
        return None
    manifest = target.of_platform(sister.platform.name)
    found = manifest.labels if manifest else None
    if found is None or (found.id, found.version, found.torch) != (sister.id, name, sister.torch):
        raise PublishError(
            f"{repository}:{name} is not the image that its name promises",
            f"it should be {sister.id}; find out who pushed it",
        )
    return manifest
