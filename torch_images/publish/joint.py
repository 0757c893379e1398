"""The image that is pushed, and its sisters for other platforms -> what floating tags name.

An image is pushed only once its checks passed, and its immutable name has the hash of its inputs in
it. So a sister that has that name in the registry is verified, and of this release. Whoever may
write to the registry can forge that, as every other name there.
"""

from __future__ import annotations

from collections.abc import Callable

from torch_images.build.plan import lock_image, plan_image, version
from torch_images.config.image import ImageSpec
from torch_images.config.matrix import sisters
from torch_images.config.types import Config
from torch_images.errors import LockError, PublishError
from torch_images.host.workspace import Workspace
from torch_images.publish.tag_rules import Manifest, TagTarget, floating

Lookup = Callable[[str], TagTarget | None]


def join(
    config: Config,
    spec: ImageSpec,
    ours: Manifest,
    *,
    repository: str,
    lookup: Lookup,
    workspace: Workspace,
) -> tuple[Manifest, ...]:
    """A complete image and those of its sisters that are there, by the names of their platforms.

    `repository` is such as "ghcr.io/me/torch-cu130". Of each other platform it is the image with
    the inputs of today; while the registry lacks that, the one that the floating tag with the same
    version of torch names now, such as "2.14.1". So it follows from the registry alone, whichever
    machine asks, and a platform that comes later joins. Raises PublishError for a sister that is
    not what its name says.
    """
    held = lookup(f"{repository}:{floating(config, spec)[0]}")
    found = [ours]
    for sister in sisters(config, spec):
        platform = sister.platform.name
        there = _today(config, sister, repository, lookup, workspace)
        if not there and held and held.torch == spec.torch:
            there = held.of_platform(platform)
        found += [there] if there else []
    return tuple(sorted(found, key=lambda manifest: manifest.platform))


def _today(
    config: Config, sister: ImageSpec, repository: str, lookup: Lookup, workspace: Workspace
) -> Manifest | None:
    """The complete image with the inputs of today, if the registry has it."""
    try:
        locked = lock_image(config, sister, workspace.locks)
    except LockError:
        return None
    if not locked.lock.complete:
        return None
    name = version(config, plan_image(config, locked, workspace.root))
    held = lookup(f"{repository}:{name}")
    if held is None:
        return None
    manifest = held.of_platform(sister.platform.name)
    said = manifest.labels if manifest else None
    if said is None or (said.id, said.version, said.torch) != (sister.id, name, sister.torch):
        raise PublishError(
            f"{repository}:{name} is not the image that its name says",
            f"it should be {sister.id}; find out who pushed it",
        )
    return manifest
