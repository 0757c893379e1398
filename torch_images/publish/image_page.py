"""What the site's page of an image says, as plain data for its template.

What no build has shown yet is None, and the template says that it is not known. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch_images.arch import Capability, coverage
from torch_images.build.plan import LockedImage
from torch_images.config.image import ImageSpec
from torch_images.config.types import Config
from torch_images.layers.plan import layer_plans
from torch_images.locks.image_lock import ImageLock
from torch_images.publish import pick
from torch_images.publish.datasheet import packages
from torch_images.publish.gpus import CAVEATS
from torch_images.publish.ledger import Proof, State
from torch_images.publish.sheets import Layer, Sheet, published


def describe(
    config: Config,
    image: LockedImage,
    *,
    state: State,
    proof: Proof | None,
    sheets: Sequence[Sheet],
    previous: LockedImage | None,
    namespace: str,
) -> dict[str, Any]:
    """Everything known about an image.

    `proof` is its line of the ledger, `sheets` its datasheets, the oldest first. `previous` is the
    same image with the release of torch before its own.
    """
    spec, lock = image.spec, image.lock
    sheet = sheets[-1] if sheets else None
    names = published(sheet, namespace) if sheet else ()
    return {
        "id": spec.id,
        "description": spec.description,
        "platform": spec.platform.name,
        "caveat": CAVEATS.get(spec.platform, ""),
        "state": state,
        "proof": proof,
        "sheet": sheet,
        "names": [f"{namespace}/{spec.repository}:{tag}" for tag in _tags(config, spec, sheet)],
        "published": bool(names),
        "run": pick.command(names[0]) if names else "",
        **pick.build_commands(config, spec),
        "versions": _versions(spec, lock),
        "seen": dict(sheet.versions) if sheet else {},
        "arches": _arches(spec, sheet),
        "compiled": spec.source.compiled,
        "planned": [
            {"title": plan.title, "size": plan.size}
            for plans in layer_plans(config, spec, lock).values()
            for plan in plans
        ],
        "wheels": sorted(_wheels(lock).items()),
        "debs": sorted(_debs(lock).items()),
        "whole": not spec.base.images,
        "base": spec.base.image(spec.cuda.version) or spec.base.name,
        "changes": changes(previous, image) if previous else None,
        "pulled": pulled(sheets[-2].layers, sheets[-1].layers) if len(sheets) > 1 else None,
    }


def changes(old: LockedImage, new: LockedImage) -> dict[str, Any]:
    """What differs in packages, by the locks: name, version before ("" for none), and after."""
    rows = []
    for kind, before, after in (
        ("wheel", _wheels(old.lock), _wheels(new.lock)),
        ("Debian package", _debs(old.lock), _debs(new.lock)),
    ):
        rows += [
            (kind, name, before.get(name, ""), after.get(name, ""))
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        ]
    return {"id": old.spec.id, "rows": rows}


def pulled(old: Sequence[Layer], new: Sequence[Layer]) -> dict[str, int]:
    """How many layers, and bytes to pull, an image does not share with the one before."""
    held = {layer.digest for layer in old}
    fresh = [layer for layer in new if layer.digest not in held]
    return {"layers": len(fresh), "of": len(new), "size": sum(layer.size for layer in fresh)}


def _tags(config: Config, spec: ImageSpec, sheet: Sheet | None) -> tuple[str, ...]:
    immutable = (sheet.version,) if sheet else ()
    return (*immutable, *pick.registry_tags(config, spec))


def _versions(spec: ImageSpec, lock: ImageLock) -> list[tuple[str, str]]:
    """What the image is locked to hold."""
    cuda = spec.cuda
    older = f"; from {cuda.older_branch} on it works without PTX that is compiled at run time"
    native = f"{cuda.driver} or newer"
    compat = lock.compat_version or "none is locked yet, so it gets no floating tag"
    return [
        ("CUDA", cuda.version),
        ("PyTorch", spec.torch),
        ("Triton", lock.triton),
        ("Python", spec.base.python),
        ("Base", f"{spec.base.name}: {spec.base.description}"),
        ("Variant", f"{spec.variant.name}: {spec.variant.description}"),
        ("Source", f"{spec.source.name}: {spec.source.description}"),
        ("Driver", native + (older if cuda.older_branch else "")),
        ("Compat library", compat),
        ("Features", ", ".join(spec.features) or "not known before it is locked"),
        ("Lock", f"sha256:{lock.digest}, of {lock.date.isoformat()}"),
    ]


def _arches(spec: ImageSpec, sheet: Sheet | None) -> list[dict[str, str]]:
    """Each architecture: how verification saw it served, else how the wheel's code serves it."""
    seen = dict(sheet.arches) if sheet else {}
    return [
        {
            "name": arch.name,
            "family": arch.family,
            "gpus": ", ".join((*arch.geforce, *arch.gpus)),
            "seen": seen.get(arch.name, ""),
            "expected": _expected(spec, arch.capability),
        }
        for arch in spec.architectures
    ]


def _expected(spec: ImageSpec, wanted: Capability) -> str:
    """By which machine code an architecture should be served; "" where that is not known."""
    if spec.source.compiled:
        held = [a.capability for a in spec.architectures]
    elif spec.release.facts:
        held = list(spec.release.facts.arches)
    else:
        return ""
    found = coverage(wanted, [f"sm_{c.major}{c.minor}" for c in held])
    return str(found) if found else ""


def _wheels(lock: ImageLock) -> Mapping[str, str]:
    """Version by name of each Python package."""
    held = packages(lock)
    return {**held["cuda"], **held["python"]}


def _debs(lock: ImageLock) -> Mapping[str, str]:
    """Version by name of each Debian package that is locked."""
    return packages(lock)["debian"]
