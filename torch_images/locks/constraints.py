"""Files and variables that keep pip, uv and Poetry from changing packages of an image. Pure.

The newest release of a package that is compiled for torch requires the newest torch. Without
constraints, `pip install timm` in an image would silently replace torch and its CUDA libraries.
Format: https://pip.pypa.io/en/stable/user_guide/#constraints-files
"""

from __future__ import annotations

import json

from torch_images.config.image import ImageSpec
from torch_images.config.indexes import origin
from torch_images.config.types import Config
from torch_images.locks.image_lock import ImageLock

# The build constraints are for packages that are compiled against torch during installation.
VARIABLES = ("PIP_BUILD_CONSTRAINT", "PIP_CONSTRAINT", "UV_BUILD_CONSTRAINT", "UV_CONSTRAINT")

_PROJECT = """\
# Lines for the pyproject.toml of a project that uv installs on this image:
# https://docs.astral.sh/uv/reference/settings/
[tool.uv]
# What the image has: `uv venv --system-site-packages` makes an environment that sees it.
exclude-dependencies = {has}
# What is compiled for the image's torch.
constraint-dependencies = {fits}
"""
_HEADER = """\
# pip and uv keep to these versions: {variables} name this file,
# the Python of /opt/venv adds it to pip's command line, and /etc/uv/uv.toml repeats it.
# It pins torch, Triton and the CUDA libraries as they are installed{more}.
# "0+not.beside.X": this package would replace files of X, so no release of it fits.
# To install others: PIP_CONSTRAINT= pip install ...
# or: UV_CONSTRAINT= UV_NO_CONFIG=1 uv pip install ...
"""
_UV = """\
# uv keeps to these versions, whatever its environment: see {file}.
# uv joins them with your own. To install others: UV_CONSTRAINT= UV_NO_CONFIG=1 uv pip install ...
constraint-dependencies = {pins}
build-constraint-dependencies = {pins}
"""
_COMPANIONS = ", and the releases\n# of other packages that are compiled for this torch"
_ELSEWHERE = """\
# Another index has {names}:
# pip install --extra-index-url {url} ...
"""


def constraints(config: Config, spec: ImageSpec, lock: ImageLock) -> str:
    """The text of an image's constraints: a line "name==version" for each package, sorted."""
    others, has = companions(config, spec), {wheel.name: wheel.version for wheel in lock.all_wheels}
    # A variant can have another release than the one that fits best: vLLM pins a torchvision.
    versions = {n: has.get(n, v) for n, v in others.items()} | rivals(lock) | installed(lock)
    header = _HEADER.format(variables=" ".join(VARIABLES), more=_COMPANIONS if others else "")
    index = spec.cuda.index(spec.release.version)
    if index and (names := [name for name in sorted(versions) if origin(name, index)]):
        header += _ELSEWHERE.format(names=", ".join(names), url=index.url)
    return header + "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


def uv_settings(text: str, file: str) -> str:
    """The text of uv's settings for all users, from that of the constraints and their path.

    uv reads them where the environment lacks UV_CONSTRAINT, or has a user's own.
    """
    pins = [line for line in text.splitlines() if not line.startswith("#")]
    return _UV.format(file=file, pins=json.dumps(pins, indent=4))


def rivals(lock: ImageLock) -> dict[str, str]:
    """A version that does not exist, by name, for NVIDIA's wheels for another CUDA.

    nvidia-nccl-cu12 and nvidia-nccl-cu13 both install nvidia/nccl/lib/libnccl.so.2, and `pip check`
    finds no conflict. The version says why pip and uv refuse the package.
    """
    split = {name: name.rpartition("-cu") for name in installed(lock)}
    return {
        f"{stem}-cu{other}": f"0+not.beside.{name.replace('-', '.')}"
        for name, (stem, _, cuda) in split.items()
        for other in ("11", "12", "13")
        if cuda.isdigit() and cuda != other
    }


def project(config: Config, spec: ImageSpec, lock: ImageLock) -> str:
    """Settings for a uv project that uses the image's packages. uv's locks ignore constraints."""
    fitting = companions(config, spec)
    has = {wheel.name for wheel in lock.all_wheels}
    return _PROJECT.format(
        has=json.dumps(sorted(installed(lock).keys() | (fitting.keys() & has)), indent=4),
        fits=json.dumps(
            [f"{n}=={v}" for n, v in sorted(fitting.items()) if n not in has], indent=4
        ),
    )


def refusals(lock: ImageLock) -> dict[str, str]:
    """Variables that keep projects of uv and Poetry from installing their own torch.

    Both tools install a project by its lock alone, without constraints. torch has no published
    source. uv checks all packages before it downloads one; Poetry downloads those that it can.
    """
    names = ",".join(sorted(installed(lock)))
    return {"POETRY_INSTALLER_NO_BINARY": names, "UV_NO_BINARY_PACKAGE": "torch"}


def installed(lock: ImageLock) -> dict[str, str]:
    """Version by name of the packages that must not change: torch, Triton and the CUDA libraries.

    Not NVIDIA's packages of Python code (bindings, CUTLASS), which can change without torch.
    """
    kept = {
        wheel.name: wheel.version
        for wheel in lock.all_wheels
        if wheel.name in ("torch", "triton", "cuda-toolkit")
        or (wheel.name.startswith("nvidia-") and not wheel.name.startswith("nvidia-cutlass"))
    }
    return kept | lock.compiled


def companions(config: Config, spec: ImageSpec) -> dict[str, str]:
    """Version by name of the packages that are compiled for this release of torch.

    They are the pins of the image's own extras, and of the companions in images.yaml. A compiled
    torch has none: packages are published for published releases.
    """
    if spec.source.compiled:
        return {}
    extras = {*config.companions, *spec.variant.extras}
    pins = (pin for extra in extras for pin in extra.pinned(spec.release.version) or ())
    versions = dict(pin.split("==") for pin in pins)
    # Some extras also include NVIDIA's Python packages, which do not depend on torch.
    return {name: v for name, v in versions.items() if not name.startswith(("cuda-", "nvidia-"))}
