"""Layers of wheels as an OCI layout, on top of a base or alone: what a Dockerfile starts from.

BuildKit takes it as a named context. The layers are unpacked once, into the engine, where both the
build's own steps and containers use them; nothing packs them again.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch_images import oci
from torch_images.cached import keep, used
from torch_images.layers import ReadyLayer


def foundations(
    groups: Mapping[str, Sequence[ReadyLayer]], base: Path | None, cache: Path, *, compiles: bool
) -> dict[str, str]:
    """The named contexts with the layers of an image, by group, for its Dockerfile.

    On a base they are one image, and what `compiles` starts from CUDA's libraries alone. Without,
    each group is for itself, to be copied onto an image.
    """
    if not base:
        return {f"wheels-{name}": foundation(None, ls, cache) for name, ls in groups.items()}
    found = {"wheels": foundation(base, [x for ls in groups.values() for x in ls], cache)}
    if compiles:
        found["libraries"] = foundation(base, groups.get("cuda", ()), cache)
    return found


def foundation(base: Path | None, layers: Sequence[ReadyLayer], cache: Path) -> str:
    """The context with the layers on top of the layout of a base, as a bake file names it."""
    facts = [oci.layout_digest(base) if base else ""]
    facts += [f"{ready.title} {ready.layer}" for ready in layers]
    key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    folder = cache / "foundations" / key
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{key}-") as scratch:
            made = Path(scratch, "layout")
            oci.extend_layout(base, ((r.title, r.layer, r.path) for r in layers), made)
            keep(made, folder)
    return f"oci-layout://{used(folder)}@{oci.layout_digest(folder)}"
