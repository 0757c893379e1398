"""The labels of an image: written by the build, and read back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_images.build.input_labels import ID, LOCK, NONE, OURS, STANDARD
from torch_images.build.plan import ImagePlan, version
from torch_images.config.types import Config
from torch_images.oci.compression import Compression

__all__ = ["ID", "LOCK", "ImageLabels", "read", "write", "write_built"]


def write(config: Config, image: ImagePlan) -> dict[str, str]:
    """The labels that follow from the matrix, the lock and the context."""
    return {
        **dict(image.context.labels),
        f"{STANDARD}.version": version(config, image),
        f"{OURS}.inputs": f"sha256:{image.identity}",
    }


def write_built(base_digest: str, compat_note: str, *, small: bool = False) -> dict[str, str]:
    """The labels that only a build knows.

    `base_digest` is the base's, `compat_note` the ELF note of the compat library ("" without one),
    `small` as in `LockedImage`.
    The commit of this project is in no label: equal inputs of two commits are the same image.
    """
    return {
        f"{STANDARD}.base.digest": base_digest,
        f"{OURS}.compat.note": compat_note or NONE,
        **({f"{OURS}.compression": str(Compression.SMALL)} if small else {}),
    }


@dataclass(frozen=True, kw_only=True)
class ImageLabels:
    """The labels of an image; "" for a missing one. `id` is "" if the image is not this project's.

    `lock` and `inputs` are digests as "sha256:...". `compat` is the version of NVIDIA's compat
    package, "" for an image without it.
    """

    id: str
    version: str
    torch: str
    lock: str
    inputs: str
    compat: str
    unlocked: bool
    compression: str


def read(labels: Mapping[str, str]) -> ImageLabels:
    """The labels of any image in an engine or a registry, ours or not."""
    ours = {name.removeprefix(f"{OURS}."): t for name, t in labels.items() if t != NONE}
    return ImageLabels(
        id=labels.get(ID, ""),
        version=labels.get(f"{STANDARD}.version", ""),
        torch=ours.get("torch", ""),
        lock=labels.get(LOCK, ""),
        inputs=ours.get("inputs", ""),
        compat=ours.get("compat", ""),
        unlocked=bool(ours.get("unlocked")),
        compression=ours.get("compression", ""),
    )
