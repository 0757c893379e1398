"""The name of a GPU -> its facts, and the platform of a host with it. Pure."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace

from torch_images.arch import Capability
from torch_images.config.types import Architecture, Config
from torch_images.errors import UsageError
from torch_images.pick import gpu_names
from torch_images.platforms import AMD64, ARM64, Platform, find

# Caveats about images of a platform that were not tried on real hosts yet.
CAVEATS = {
    ARM64: "the project tested images for linux/arm64 in an emulator (QEMU); none has run on an "
    "Arm host with a GPU"
}
# The oldest compute capability in PyTorch's wheels for CUDA 12.6. The last release with these
# wheels is torch 2.14 (pytorch/pytorch#190355 and #190385).
_OLDEST = Capability(5, 0)
_OLDER = (
    "PyTorch's wheels of CUDA 12.6 (https://download.pytorch.org/whl/cu126) have code for it, "
    "up to torch 2.14"
)
# Jetson modules have compute capabilities that no card has; their CUDA is JetPack's.
_JETSON = (
    "for a Jetson use NVIDIA's own PyTorch "
    "(https://docs.nvidia.com/deeplearning/frameworks/install-pytorch-jetson-platform/)"
)
TITAN = "TITAN"  # in names, and the brand that NVML reports


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU: its name, compute capability, and the architecture of images.yaml that serves it.

    `geforce`: whether it is sold as GeForce or TITAN.
    `arm64`: whether only hosts with Arm processors have it.
    `named`: whether a model was named. A compute capability alone may be a GeForce or not.
    `others`: the other models of a host with several.
    """

    name: str
    capability: Capability
    architecture: Architecture
    geforce: bool
    arm64: bool = False
    named: bool = True
    others: tuple[Gpu, ...] = ()

    @property
    def all(self) -> tuple[Gpu, ...]:
        """All models, this one first."""
        return (self, *self.others)

    @property
    def architectures(self) -> tuple[Architecture, ...]:
        """Those of all models, each once, the lowest first."""
        found = dict.fromkeys(gpu.architecture for gpu in self.all)
        return tuple(sorted(found, key=lambda architecture: architecture.capability))

    @property
    def title(self) -> str:
        """The names of all models."""
        return " and ".join(gpu.name for gpu in self.all)

    @property
    def line(self) -> str:
        """The product line if compat libraries do not support it, "GeForce" or "TITAN"; else ""."""
        return (TITAN if self.name.startswith(TITAN) else "GeForce") if self.geforce else ""


def find_gpu(config: Config, named: str) -> Gpu:
    """A GPU by its name, see gpu_names.py, or by its compute capability; several by commas.

    Raises UsageError for a GPU that no image serves.
    """
    parts = [part for part in re.split(r"[,;\n+]| and ", named) if part.strip()]
    if len(parts) > 1:
        with contextlib.suppress(UsageError):  # "H100, 80GB" is one
            first, *others = {gpu.name: gpu for gpu in (_find(config, p) for p in parts)}.values()
            arm64 = any(gpu.arm64 for gpu in (first, *others))
            return replace(first, arm64=arm64, others=tuple(others))
    return _find(config, named)


def _find(config: Config, named: str) -> Gpu:
    known = gpu_names.capabilities(config)
    capability = gpu_names.capability(named)
    name = "" if capability else gpu_names.find(config, named)
    names = {name} if name else {one for one, own in known.items() if own == capability}
    capability = capability or known[name]
    arm64 = bool(names) and names <= {*config.arm64_gpus}
    geforce = any(name in architecture.geforce for architecture in config.architectures)
    line = "GeForce " if geforce and not name.startswith(TITAN) else ""
    return Gpu(
        name=f"{line}{name}" if name else f"GPU {capability}",
        capability=capability,
        architecture=_architecture(config, capability, name or "this GPU", arm64=arm64),
        geforce=geforce,
        arm64=arm64,
        named=bool(name),
    )


def host_platform(config: Config, gpu: Gpu, named: str = "") -> Platform:
    """The platform of a host with a GPU: the named one, else the GPU's own.

    The GPU's own is linux/arm64 if it is built together with an Arm processor, else linux/amd64.
    Raises UsageError if it is unknown, impossible for the GPU, or not in images.yaml.
    """
    own = ARM64 if gpu.arm64 else AMD64
    platform = find(named) if named else own
    if gpu.arm64 and platform != own:
        raise UsageError(
            f"{gpu.name} is built together with an Arm processor, so no host with it is "
            f"{platform}; leave the platform out, or give {own}"
        )
    if platform not in config.platforms:
        known = " and ".join(config.names("platform"))
        raise UsageError(
            f"no image is built for {platform}; the platforms of images.yaml are {known}"
        )
    return platform


def _architecture(
    config: Config, capability: Capability, name: str, *, arm64: bool
) -> Architecture:
    """The architecture whose code a GPU runs best. Raises UsageError if no image has code for it.

    `arm64`: the GPU is in a host with an Arm processor; some architectures serve only these.
    """
    others = dict(config.other_gpus)
    served = [a for a in config.architectures if capability.runs(a.capability)]
    served = [] if capability in others else served
    served = [a for a in served if arm64 or not config.foreign(a, AMD64)] or served
    if served:
        return max(served, key=lambda a: a.capability)
    known = ", ".join(config.names("arch"))
    oldest = min(a.capability for a in config.architectures)
    hint = _OLDER if _OLDEST <= capability < oldest else ""
    raise UsageError(
        f"no image serves compute capability {capability}, which {name} has; they serve {known}",
        _JETSON if any(n.startswith("Jetson") for n in others.get(capability, ())) else hint,
    )
