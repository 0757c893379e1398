"""The labels of an image: written by the build, and read back. Pure.

Standard keys: https://github.com/opencontainers/image-spec/blob/v1.1.0/annotations.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_images.build.plan import ImagePlan, version
from torch_images.config.image import ImageSpec
from torch_images.config.types import Config
from torch_images.oci.compression import Compression

_STANDARD = "org.opencontainers.image"
_OURS = "io.github.torch-images"
# Labels that queries to an engine filter by: every image of this project has both.
ID, LOCK = f"{_OURS}.id", f"{_OURS}.lock"
LICENSES = "BSD-3-Clause AND MIT AND LicenseRef-NVIDIA-Proprietary"
_NONE = "none"  # a label cannot be empty in every client


def write(config: Config, image: ImagePlan) -> dict[str, str]:
    """The labels that follow from the matrix, the lock and the context."""
    spec, lock = image.spec, image.lock
    trees = lock.sources.trees if lock.sources else ()
    return {
        f"{_STANDARD}.title": spec.repository,
        f"{_STANDARD}.description": spec.description,
        f"{_STANDARD}.version": version(config, image),
        f"{_STANDARD}.source": config.homepage,
        f"{_STANDARD}.url": config.homepage,
        f"{_STANDARD}.licenses": LICENSES,
        f"{_STANDARD}.base.name": spec.base.image(spec.cuda.version) or spec.base.name,
        ID: spec.id,
        f"{_OURS}.cuda": spec.cuda.version,
        f"{_OURS}.torch": spec.torch,
        f"{_OURS}.triton": lock.triton,
        f"{_OURS}.python": spec.base.python,
        f"{_OURS}.arches": " ".join(_arches(spec)),
        **{f"{_OURS}.{tree.name}.commit": tree.commit for tree in trees},
        f"{_OURS}.source": spec.source.name,
        f"{_OURS}.variant": spec.variant.name,
        f"{_OURS}.compat": lock.compat_version or _NONE,
        LOCK: f"sha256:{lock.digest}",
        f"{_OURS}.inputs": f"sha256:{image.identity}",
        **({f"{_OURS}.unlocked": "yes"} if lock.unlocked else {}),
    }


def _arches(spec: ImageSpec) -> tuple[str, ...]:
    """The architectures of the image's code; for a whole published torch, those of its wheel."""
    facts = spec.release.facts
    if facts and spec.whole and not spec.source.compiled:
        return tuple(str(code) for code in facts.arches)
    return spec.arches


def write_found(
    *,
    base_digest: str,
    compat_note: str,
    revision: str | None,
    compression: Compression = Compression.FAST,
) -> dict[str, str]:
    """The labels that only a build knows.

    `base_digest` is the base's, `compat_note` the ELF note of the compat library ("" without one),
    `revision` the commit of this project (None without git).
    """
    return {
        **({f"{_STANDARD}.revision": revision} if revision else {}),
        f"{_STANDARD}.base.digest": base_digest,
        f"{_OURS}.compat.note": compat_note or _NONE,
        **({} if compression is Compression.FAST else {f"{_OURS}.compression": str(compression)}),
    }


@dataclass(frozen=True, kw_only=True)
class ImageLabels:
    """The labels of an image; "" for a missing one. `id` is "" if the image is not this project's.

    `lock` and `inputs` are digests as "sha256:...". `compat` is the version of NVIDIA's compat
    package, `compat_note` the note of its library as JSON; both are "" for an image without it.
    """

    id: str
    version: str
    description: str
    url: str
    revision: str
    torch: str
    lock: str
    inputs: str
    compat: str
    compat_note: str
    unlocked: bool
    compression: str


def read(labels: Mapping[str, str]) -> ImageLabels:
    """The labels of any image in an engine or a registry, ours or not."""

    def ours(name: str) -> str:
        text = labels.get(f"{_OURS}.{name}", "")
        return "" if text == _NONE else text

    def standard(name: str) -> str:
        return labels.get(f"{_STANDARD}.{name}", "")

    return ImageLabels(
        id=labels.get(ID, ""),
        version=standard("version"),
        description=standard("description"),
        url=standard("url"),
        revision=standard("revision"),
        torch=ours("torch"),
        lock=labels.get(LOCK, ""),
        inputs=ours("inputs"),
        compat=ours("compat"),
        compat_note=ours("compat.note"),
        unlocked=bool(ours("unlocked")),
        compression=ours("compression"),
    )
