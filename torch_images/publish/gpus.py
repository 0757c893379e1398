"""A GPU by its name -> what it is, and the platform of a host with it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_images.arch import Capability
from torch_images.config.types import Architecture, Config
from torch_images.errors import UsageError
from torch_images.platforms import AMD64, ARM64, Platform, find
from torch_images.publish import gpu_names

# What images of a platform were not tried for yet.
CAVEATS = {
    ARM64: "images for linux/arm64 are built under an emulator (QEMU); none has run on an Arm host "
    "with a GPU"
}
# The oldest capability that PyTorch's wheels of CUDA 12.6 have code for. The last release with such
# wheels is torch 2.14 (pytorch/pytorch#190355 and #190385).
_OLDEST = Capability(5, 0)
_OLDER = (
    "PyTorch's wheels of CUDA 12.6 (https://download.pytorch.org/whl/cu126) have code for it, "
    "up to torch 2.14"
)
# Modules of capabilities that no card has; their CUDA is that of JetPack.
_JETSON = (
    "for a Jetson take NVIDIA's own PyTorch "
    "(https://docs.nvidia.com/deeplearning/frameworks/install-pytorch-jetson-platform/)"
)
TITAN = "TITAN"  # in names, and the brand that NVML reports


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU: its name, compute capability, and the architecture of images.yaml that serves it.

    `geforce`: whether it is sold as GeForce or TITAN.
    `arm64`: whether only hosts with Arm processors have it.
    `named`: whether a model was named. A compute capability alone may be a GeForce or not.
    """

    name: str
    capability: Capability
    architecture: Architecture
    geforce: bool
    arm64: bool = False
    named: bool = True

    @property
    def line(self) -> str:
        """The product line whose GPUs compat libraries do not run on; "" for another one."""
        return (TITAN if self.name.startswith(TITAN) else "GeForce") if self.geforce else ""


def find_gpu(config: Config, named: str) -> Gpu:
    """A GPU by its name, see gpu_names.py, or by its compute capability.

    Raises UsageError for one that no image serves.
    """
    known = gpu_names.capabilities(config)
    capability = gpu_names.capability(named)
    if capability:
        having = [name for name, own in known.items() if own == capability]
        arm64 = bool(having) and set(having) <= set(config.arm64_gpus)
        serving = _serving(config, capability, "this GPU", arm64=arm64)
        return Gpu(
            name=f"GPU {capability}",
            capability=capability,
            architecture=serving,
            geforce=False,
            arm64=arm64,
            named=False,
        )
    name = gpu_names.find(config, named)
    arm64 = name in config.arm64_gpus
    geforce = any(name in architecture.geforce for architecture in config.architectures)
    return Gpu(
        name=f"GeForce {name}" if geforce and not name.startswith(TITAN) else name,
        capability=known[name],
        architecture=_serving(config, known[name], name, arm64=arm64),
        geforce=geforce,
        arm64=arm64,
    )


def known_gpus(config: Config) -> list[dict[str, Any]]:
    """Every GPU that a name can mean, by compute capability, the newest first, as plain data."""
    aliases = dict(config.gpu_aliases)
    rows = [
        (a.capability, (*a.geforce, *a.gpus), f"{a.family}, from driver {a.first_driver}")
        for a in config.architectures
    ]
    rows += [(other.capability, other.names, "no image") for other in config.other_gpus]
    return [
        {
            "capability": str(capability),
            "served": served,
            "names": list(names),
            "aliases": [alias for name in names for alias in aliases.get(name, ())],
        }
        for capability, names, served in sorted(rows, reverse=True)
    ]


def host_platform(config: Config, gpu: Gpu, named: str = "") -> Platform:
    """The platform of a host with a GPU: the one that was named, else the GPU's own.

    That is linux/arm64 for a GPU that is built together with an Arm processor, and linux/amd64 for
    any other. Raises UsageError for a platform that is unknown, that no host of the GPU is, or that
    images.yaml does not list.
    """
    own = ARM64 if gpu.arm64 else AMD64
    wanted = find(named) if named else own
    if gpu.arm64 and wanted != own:
        raise UsageError(
            f"{gpu.name} is built together with an Arm processor, so no host with it is {wanted}; "
            f"leave the platform out, or give {own}"
        )
    if wanted not in config.platforms:
        known = " and ".join(config.names("platform"))
        raise UsageError(
            f"no image is built for {wanted}; the platforms of images.yaml are {known}"
        )
    return wanted


def _serving(config: Config, capability: Capability, name: str, *, arm64: bool) -> Architecture:
    """The architecture whose code a GPU runs best. Raises UsageError where no image has any.

    One that only hosts with Arm processors have is for a GPU of such a host, `arm64`.
    """
    others = {other.capability: other.names for other in config.other_gpus}
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
        _JETSON if _is_jetson(others.get(capability, ())) else hint,
    )


def _is_jetson(names: tuple[str, ...]) -> bool:
    return any(name.startswith("Jetson") for name in names)
