"""The CUDA versions of images.yaml, and the source of NVIDIA's compat libraries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from packaging.version import Version

from torch_images.config.fields import Arch, Branch, CudaVersion, Pairs, Pins, PlatformName, Url
from torch_images.config.indexes import Index
from torch_images.config.schema import FILLED, NAME, As, Section, known, matches, pairs
from torch_images.platforms import Platform


@dataclass(frozen=True, kw_only=True)
class Compat(Section, keys={"repositories": "repository"}):
    """The source of NVIDIA's compat packages.

    `repositories`: pairs of a platform and the URL of a flat apt repository.
    `key`: the fingerprint of the key that signs it, 40 upper-case hexadecimal digits.
    """

    repositories: Annotated[Pairs, pairs(PlatformName, Url), FILLED]
    key: Annotated[str, matches(r"[0-9A-F]{40}", "a full fingerprint of 40 hexadecimal digits")]

    def repository(self, platform: Platform) -> str:
        """The URL of the repository for a platform. Raises KeyError if there is none."""
        return dict(self.repositories)[platform.name]


@dataclass(frozen=True, kw_only=True)
class Cuda(Section, keys={"version": NAME}):
    """A CUDA version.

    `version`: major and minor, such as "13.0".
    `driver`: the oldest Linux driver that runs it natively, such as "580.65.06".
    `floor`: the oldest driver branch that runs it by minor-version compatibility, such as "580".
    `targets`: the compute capabilities that its compiler supports.
    `torch`: the releases of torch whose published wheels are for it, the oldest first.
    `indexes`: the package indexes with the releases that the main index lacks.
    `toolkit`: the parts of its compiler, such as "nvcc": extras of the package cuda-toolkit, whose
        version torch requires; () if there are no wheels of it.
    `release`, `archives`: without such wheels, NVIDIA's release, such as "12.8.1", and the names of
        its archives with the compiler.
    `nvcc_flags`: flags for compiling torch, such as "-compress-mode=size".
    `compat`: the older driver branches that NVIDIA's compat library for it supports.
    `base`: the name of the default base of its images.
    """

    version: Annotated[CudaVersion, matches(r"[0-9]{2}\.[0-9]", "a CUDA version like 12.8 or 13.0")]
    driver: Annotated[
        str,
        matches(r"[0-9]{3}\.[0-9]{1,3}(?:\.[0-9]{1,2})?", "a Linux driver version like 580.65.06"),
    ]
    floor: Branch
    targets: Annotated[tuple[Arch, ...], FILLED]
    torch: Pins = ()
    base: Annotated[str, known("base")]
    indexes: Annotated[tuple[Index, ...], FILLED] = ()
    toolkit: Annotated[tuple[str, ...], FILLED] = ()
    release: str = ""
    archives: Annotated[tuple[str, ...], FILLED] = ()
    nvcc_flags: str = ""
    compat: Annotated[tuple[Annotated[int, As(Branch, int)], ...], FILLED] = ()

    @property
    def name(self) -> str:
        """The name that users type, such as "13.0"."""
        return self.version

    @property
    def older_branch(self) -> str:
        """The oldest branch with minor-version compatibility; "" if it is the driver's own."""
        return "" if self.driver.startswith(f"{self.floor}.") else self.floor

    @property
    def short(self) -> str:
        """The name without dot that tags use, such as "cu130"."""
        return "cu" + self.version.replace(".", "")

    @property
    def repository(self) -> str:
        """The name of its images without registry and tag, such as "torch-cu130"."""
        return f"torch-{self.short}"

    def index(self, torch: str) -> Index | None:
        """The index of a release of torch; None for the main one."""
        return next((index for index in self.indexes if torch in index.torch), None)


def with_indexes(cuda: Cuda) -> Cuda:
    """A CUDA version with the releases of torch of all its indexes, the oldest first."""
    releases = {*cuda.torch, *(torch for index in cuda.indexes for torch in index.torch)}
    return replace(cuda, torch=tuple(sorted(releases, key=Version)))
