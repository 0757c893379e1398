"""The labels that follow from an image's inputs, and so belong to them. Pure.

Standard keys: https://github.com/opencontainers/image-spec/blob/v1.1.0/annotations.md
"""

from __future__ import annotations

from torch_images.config.image import ImageSpec
from torch_images.config.types import Config
from torch_images.locks.image_lock import ImageLock

STANDARD = "org.opencontainers.image"
OURS = "io.github.torch-images"
# Labels that queries to an engine filter by: every image of this project has both.
ID, LOCK = f"{OURS}.id", f"{OURS}.lock"
NONE = "none"  # a label cannot be empty in every client
_LICENSES = "BSD-3-Clause AND MIT AND LicenseRef-NVIDIA-Proprietary"


def input_labels(config: Config, spec: ImageSpec, lock: ImageLock) -> dict[str, str]:
    """All labels but those with the hash of the inputs, and those that only a build knows."""
    return {
        f"{STANDARD}.title": spec.repository,
        f"{STANDARD}.description": spec.description,
        **_publisher(config, spec),
        f"{STANDARD}.base.name": spec.base.name,
        ID: spec.id,
        f"{OURS}.cuda": spec.cuda.version,
        f"{OURS}.torch": spec.torch,
        f"{OURS}.triton": lock.triton,
        f"{OURS}.python": spec.base.python,
        f"{OURS}.arches": " ".join(_arches(spec)),
        **{f"{OURS}.{tree.name}.commit": tree.commit for tree in lock.trees},
        f"{OURS}.source": spec.source.name,
        f"{OURS}.variant": spec.variant.name,
        f"{OURS}.compat": lock.compat_version or NONE,
        LOCK: f"sha256:{lock.digest}",
        **({f"{OURS}.unlocked": "yes"} if lock.unlocked else {}),
    }


def _publisher(config: Config, spec: ImageSpec) -> dict[str, str]:
    """Labels about who publishes the image; for a user's own image only what its table says."""
    home = spec.own.homepage if spec.own else config.homepage
    labels = {f"{STANDARD}.source": home, f"{STANDARD}.url": home} if home else {}
    return labels if spec.own else {**labels, f"{STANDARD}.licenses": _LICENSES}


def _arches(spec: ImageSpec) -> tuple[str, ...]:
    """The architectures of the image's code; for a whole published torch, those of its wheel."""
    facts = spec.release.facts
    if facts and spec.whole and not spec.source.compiled:
        return tuple(str(code) for code in facts.arches)
    return spec.arches
