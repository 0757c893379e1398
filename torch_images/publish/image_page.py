"""The facts on an image's page of the site, as plain data for its template.

Unknown facts are None or empty, and the template says so. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_images.arch import Capability, coverage
from torch_images.build.plan import ImagePlan, version
from torch_images.config.image import ImageSpec
from torch_images.config.types import Config
from torch_images.layers.plan import layer_plans
from torch_images.locks.image_lock import ImageLock
from torch_images.publish import pick
from torch_images.publish.datasheet import packages
from torch_images.publish.gpus import CAVEATS
from torch_images.publish.ledger import Line, State
from torch_images.publish.tag_rules import Names, floating


def describe(
    config: Config, image: ImagePlan, *, state: State, lines: Sequence[Line], namespace: str
) -> dict[str, Any]:
    """Everything known about an image; `lines` are its lines of the ledger."""
    spec, lock = image.spec, image.lock
    names = Names(
        repository=spec.repository,
        immutable=version(config, image),
        floating=floating(config, spec),
    )
    versions = packages(lock)
    return {
        "id": spec.id,
        "description": spec.description,
        "platform": spec.platform.name,
        "caveat": CAVEATS.get(spec.platform, ""),
        "state": state,
        "lines": lines,
        "names": list(names.references(namespace)),
        **pick.build_commands(config, spec),
        "versions": _versions(spec, lock),
        "arches": [
            {
                "name": arch.name,
                "family": arch.family,
                "gpus": ", ".join((*arch.geforce, *arch.gpus)),
                "expected": _expected(spec, arch.capability),
            }
            for arch in spec.architectures
        ],
        "compiled": spec.source.compiled,
        "planned": [
            {"title": plan.title, "size": plan.size}
            for plans in layer_plans(config, spec, lock).values()
            for plan in plans
        ],
        "wheels": sorted({**versions["cuda"], **versions["python"]}.items()),
        "debs": sorted(versions["debian"].items()),
    }


def _versions(spec: ImageSpec, lock: ImageLock) -> list[tuple[str, str]]:
    cuda = spec.cuda
    older = f"; from {cuda.older_branch} on it works without PTX that is compiled at run time"
    native = f"{cuda.driver} or newer"
    return [
        ("CUDA", cuda.version),
        ("PyTorch", spec.torch),
        ("Triton", lock.triton),
        ("Python", spec.base.python),
        ("Base", f"{spec.base.name}: {spec.base.description}"),
        ("Variant", f"{spec.variant.name}: {spec.variant.description}"),
        ("Source", f"{spec.source.name}: {spec.source.description}"),
        ("Driver", native + (older if cuda.older_branch else "")),
        ("Compat library", lock.compat_version or "none"),
        ("Features", ", ".join(spec.features) or "not known before it is locked"),
        ("Lock", f"sha256:{lock.digest}, of {lock.date.isoformat()}"),
    ]


def _expected(spec: ImageSpec, wanted: Capability) -> str:
    """The machine code that should serve an architecture; "" if unknown."""
    if spec.source.compiled:
        code = [a.capability for a in spec.architectures]
    elif spec.release.facts:
        code = list(spec.release.facts.arches)
    else:
        return ""
    served_by = coverage(wanted, [f"sm_{c.major}{c.minor}" for c in code])
    return str(served_by) if served_by else ""
