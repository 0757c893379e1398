"""What the bake file gives a Dockerfile besides its folder: contexts, arguments, secrets. Pure.

The Dockerfile lists them in its header, so people can read and build it without this project.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_images.locks.image_lock import ImageLock
from torch_images.platforms import AMD64


@dataclass(frozen=True, kw_only=True)
class Supply:
    """One input that bake supplies: `kind` is context, argument or secret, `text` its purpose."""

    kind: str
    name: str
    text: str


def supplies(lock: ImageLock) -> tuple[Supply, ...]:
    """All supplies of an image's Dockerfile."""
    contexts = {"parent": "wheels as layers on the base, see the stage `environment`"}
    if lock.sources and lock.trees:
        contexts["libraries"] = "the CUDA libraries as layers on the base"
        contexts |= {
            f"{tree.name}-tree": f"the tree {tree.repository}, see the stage `compile-{tree.name}`"
            for tree in lock.trees
        }
        contexts["archives"] = f"what the trees would download, locks/{lock.sources.name}.json"
    if lock.sources and lock.sdists:
        contexts["sdists"] = f"what is compiled for torch, locks/{lock.sources.name}.json"
    if lock.tool_debs:
        contexts["tool-debs"] = f"packages for compiling, locks/{lock.tool_debs.name}.json"
    if lock.toolkit:
        contexts["toolkit"] = f"NVIDIA's archives of CUDA, locks/{lock.toolkit.name}.json"
    if lock.extra_debs:
        contexts["added"] = f"packages of the variant, locks/{lock.extra_debs.name}.json"
    if lock.own_debs:
        contexts["own-debs"] = f"packages of the project, {lock.own_debs.name}.json"
    if lock.compat:
        contexts["compat"] = f"NVIDIA's driver libraries, locks/{lock.compat.name}.json"
    if lock.platform != AMD64:
        contexts["native"] = "a base for the processor of the builder, whose Python makes bytecode"
    contexts["tools"] = f"uv, which installs wheels, locks/{lock.build.name}.json"
    contexts["sbom"] = f"what writes the SBOM, locks/{lock.sbom.name}.json"
    arguments = {
        "SOURCE_DATE_EPOCH": "the date of the newest lock, in seconds since 1970",
    }
    secrets = {
        "ca": "certificates that the host trusts, for what passes a proxy; may be missing",
        "index": "the URL of a package index, which may have a password; may be missing",
    }
    if lock.sources:
        secrets["compile"] = "the number of compilers, and where a compile cache is"
    kinds = (("context", contexts), ("argument", arguments), ("secret", secrets))
    return tuple(
        Supply(kind=kind, name=name, text=text)
        for kind, texts in kinds
        for name, text in texts.items()
    )
