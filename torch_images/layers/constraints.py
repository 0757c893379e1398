"""What pip and uv may not change in an image, as a file of constraints. Pure.

The newest release of a package that is compiled for torch wants the newest torch. Without
constraints, `pip install timm` in an image would replace torch and its CUDA libraries in silence.
Format: https://pip.pypa.io/en/stable/user_guide/#constraints-files
"""

from __future__ import annotations

import re

from torch_images.config.image import ImageSpec
from torch_images.config.indexes import origin
from torch_images.locks.image_lock import ImageLock

# The build constraints are for packages that are compiled against torch where they are installed.
VARIABLES = ("PIP_BUILD_CONSTRAINT", "PIP_CONSTRAINT", "UV_BUILD_CONSTRAINT", "UV_CONSTRAINT")

_HEADER = """\
# pip and uv keep to these versions: {variables} name this file.
# It pins torch, Triton and the CUDA libraries as they are installed{more}.
# To install others, set those variables to nothing: PIP_CONSTRAINT= pip install ...
"""
_COMPANIONS = ", and the releases\n# of other packages that are compiled for this torch"
_ELSEWHERE = """\
# Another index has {names}:
# pip install --extra-index-url {url} ...
"""
_PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[A-Za-z0-9.+!]+)")


def constraints(spec: ImageSpec, lock: ImageLock) -> str:
    """The text of an image's constraints: a line "name==version" for each package, sorted."""
    others = companions(spec)
    held = {**others, **installed(lock)}
    header = _HEADER.format(variables=" ".join(VARIABLES), more=_COMPANIONS if others else "")
    index = spec.cuda.index(spec.release.version)
    if index and (names := [name for name in sorted(held) if origin(name, index)]):
        header += _ELSEWHERE.format(names=", ".join(names), url=index.url)
    return header + "".join(f"{name}=={version}\n" for name, version in sorted(held.items()))


def installed(lock: ImageLock) -> dict[str, str]:
    """Version by name of what must stay as it is: torch, Triton and the CUDA libraries.

    Not NVIDIA's packages of Python code (bindings, CUTLASS), which can change without torch.
    """
    kept = {
        wheel.name: wheel.version
        for wheel in lock.all_wheels
        if wheel.name in ("torch", "triton", "cuda-toolkit")
        or (wheel.name.startswith("nvidia-") and not wheel.name.startswith("nvidia-cutlass"))
    }
    return kept | lock.compiled


def companions(spec: ImageSpec) -> dict[str, str]:
    """Version by name of the packages that are compiled for this release of torch.

    They are what fits of the extras that are compiled for one release. A torch that is compiled has
    none: packages are published for published releases.
    """
    if spec.source.compiled or not spec.release.facts:
        return {}
    versions = {}
    for fit in spec.release.facts.fits:
        for requirement in fit.wheels:
            if pinned := _PINNED.fullmatch(requirement):
                versions[pinned["name"].lower().replace("_", "-")] = pinned["version"]
    # NVIDIA's Python code is asked for beside some of them, and does not depend on torch.
    return {name: v for name, v in versions.items() if not name.startswith(("cuda-", "nvidia-"))}
