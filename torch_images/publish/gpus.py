"""A GPU by its name -> what it is, and the platform of a host with it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU: its name, compute capability, and the architecture of images.yaml that serves it.

    `arm64`: whether only hosts with Arm processors have it.
    """

    name: str
    capability: Capability
    architecture: Architecture
    geforce: bool
    arm64: bool = False


def find_gpu(config: Config, named: str) -> Gpu:
    """A GPU by its name, as nvidia-smi prints it or shorter, or by its compute capability.

    Raises UsageError for one that no image serves.
    """
    try:
        capability = Capability.parse(named.strip())
    except ValueError:
        return _by_name(config, named)
    having = [name for name, own in _capabilities(config).items() if own == capability]
    arm64 = bool(having) and set(having) <= set(config.arm64_gpus)
    return Gpu(
        name=f"GPU {capability}",
        capability=capability,
        architecture=_serving(config, capability, "this GPU", arm64=arm64),
        geforce=False,
        arm64=arm64,
    )


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


def _by_name(config: Config, named: str) -> Gpu:
    geforce = {name for architecture in config.architectures for name in architecture.geforce}
    known = _capabilities(config)
    name = gpu_names.find(named, known)
    arm64 = name in config.arm64_gpus
    return Gpu(
        name=f"GeForce {name}" if name in geforce else name,
        capability=known[name],
        architecture=_serving(config, known[name], name, arm64=arm64),
        geforce=name in geforce,
        arm64=arm64,
    )


def _capabilities(config: Config) -> dict[str, Capability]:
    return {
        **{name: a.capability for a in config.architectures for name in (*a.geforce, *a.gpus)},
        **{name: other.capability for other in config.other_gpus for name in other.names},
    }


def _serving(config: Config, capability: Capability, name: str, *, arm64: bool) -> Architecture:
    """The architecture whose code a GPU runs best. Raises UsageError where no image has any.

    One that only hosts with Arm processors have is for a GPU of such a host, `arm64`.
    """
    served = [a for a in config.architectures if capability.runs(a.capability)]
    served = [a for a in served if arm64 or not config.foreign(a, AMD64)] or served
    if served:
        return max(served, key=lambda a: a.capability)
    known = ", ".join(config.names("arch"))
    oldest = min(a.capability for a in config.architectures)
    raise UsageError(
        f"no image serves compute capability {capability}, which {name} has; they serve {known}",
        _OLDER if _OLDEST <= capability < oldest else "",
    )
