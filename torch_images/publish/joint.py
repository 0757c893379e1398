"""The image that is pushed, and its sisters for other platforms -> the index that they are due.

An image is pushed only once its checks passed, and its immutable name has the hash of its inputs in
it. So a sister that has that name in the registry is verified, and of this release. Whoever may
write to the registry can forge that, as every other name there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch_images.build.plan import LockedImage, lock_image, plan_image, version, version_text
from torch_images.config.image import ImageSpec
from torch_images.config.matrix import sisters
from torch_images.config.types import Config
from torch_images.errors import LockError, PublishError
from torch_images.host.workspace import Workspace
from torch_images.publish.index import Index, digits
from torch_images.publish.tag_rules import Manifest, TagTarget

Lookup = Callable[[str], TagTarget | None]


@dataclass(frozen=True, kw_only=True)
class Joint:
    """What becomes of an image's platforms: an index, None while there is none.

    `waits` is why floating tags stay, "" for no reason.
    """

    index: Index | None
    waits: str


def versions(config: Config, spec: ImageSpec, workspace: Workspace) -> tuple[str, ...]:
    """The immutable tags that an image can have with the inputs of today, the complete one first.

    The other one is that of its twin without NVIDIA's compat libraries. Raises LockError for an
    image without locks.
    """
    whole = lock_image(config, spec, workspace.locks)
    twin = LockedImage(spec=whole.spec, lock=replace(whole.lock, compat=None))
    images = (whole, twin) if whole.lock.compat else (whole,)
    return tuple(version(config, plan_image(config, one, workspace.root)) for one in images)


def join(
    config: Config,
    spec: ImageSpec,
    ours: Manifest,
    *,
    repository: str,
    lookup: Lookup,
    workspace: Workspace,
) -> Joint:
    """The index of an image and its sisters in a repository, such as "ghcr.io/me/torch-cu130".

    Of each platform it has the complete image if the registry has that, else the twin without
    compat libraries. So it follows from the registry alone, whichever machine asks. It is none
    while a sister is missing, for an image whose complete twin is there, and for an unlocked one,
    whose inputs no sister can be known to share.
    Raises PublishError for a sister that is not what its name says.
    """
    if ours.labels.unlocked or (
        not ours.labels.complete
        and any(lookup(f"{repository}:{name}") for name in versions(config, spec, workspace)[:-1])
    ):
        return Joint(index=None, waits="")
    found, missing = [ours], []
    for sister in sisters(config, spec):
        try:
            names = versions(config, sister, workspace)
        except LockError:
            missing.append(f"{sister.platform} is not locked yet")
            continue
        held = _first(sister, names, repository, lookup)
        if held:
            found.append(held)
        else:
            missing.append(f"{sister.platform} is not pushed yet")
    if missing:
        return Joint(index=None, waits=" and ".join(missing))
    lacking = [m.platform for m in found if not m.labels.complete]
    waits = f"{' and '.join(lacking)} is there without compat libraries only" if lacking else ""
    ordered = tuple(sorted(found, key=lambda m: m.platform))
    tag = index_version(config, spec, ordered)
    index = Index(repository=spec.repository, version=tag, manifests=ordered)
    return Joint(index=index, waits=waits)


def index_version(config: Config, spec: ImageSpec, manifests: tuple[Manifest, ...]) -> str:
    """The immutable tag of an index of these manifests: "2.14.1-sm120-runtime-<digits>"."""
    lacks = not all(m.labels.complete for m in manifests)
    return version_text(config, spec, digits(manifests), *(["nocompat"] if lacks else []))


def _first(
    sister: ImageSpec, names: tuple[str, ...], repository: str, lookup: Lookup
) -> Manifest | None:
    """The first of some immutable tags that the registry has, as a manifest of the platform."""
    for name in names:
        held = lookup(f"{repository}:{name}")
        if held is None:
            continue
        manifest = held.of_platform(sister.platform.name)
        said = manifest.labels if manifest else None
        if said is None or (said.id, said.version, said.torch) != (sister.id, name, sister.torch):
            raise PublishError(
                f"{repository}:{name} is not the image that its name says",
                f"it should be {sister.id}; find out who pushed it",
            )
        return manifest
    return None
