"""A published release of torch, and the facts that `invoke lock` reads from its wheel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from packaging.version import Version

from torch_images.arch import Capability
from torch_images.config.fields import Arch
from torch_images.config.schema import FILLED, Section
from torch_images.platforms import AMD64


@dataclass(frozen=True, kw_only=True)
class Facts(Section):
    """Facts read from a published wheel of torch.

    `cuda`, `torch`, `python`: versions of the wheel, such as "13.0", "2.14.1" and "3.11".
    `platform`: of the wheel, such as "linux/arm64".
    `arches`: the architectures that torch's main library, libtorch_cuda.so, has machine code for.
    `features`: the names of the features that it was built with, in alphabetical order.
    `lacks`: other libraries with machine code, each with those of `arches` that run none of it.
    `single`: further architectures that only some kernels of the main library have code for.
    """

    cuda: str
    torch: str
    python: str
    arches: Annotated[tuple[Arch, ...], FILLED]
    features: tuple[str, ...]
    platform: str = AMD64.name
    lacks: tuple[tuple[str, tuple[Arch, ...]], ...] = ()
    single: tuple[Arch, ...] = ()

    def lacking(self, arch: Capability) -> tuple[str, ...]:
        """The libraries without code for a GPU that runs the main library's."""
        code = max((own for own in self.arches if arch.runs(own)), default=None)
        return tuple(library for library, arches in self.lacks if code in arches)


@dataclass(frozen=True, kw_only=True)
class Release:
    """A published release of torch for a CUDA version and a Python.

    `version`: its public version, such as "2.14.1".
    `facts`: its facts; None before `invoke lock` found them.
    """

    version: str
    facts: Facts | None = None

    @property
    def prerelease(self) -> bool:
        """Whether it is a nightly build or another pre-release, which is never a default."""
        return Version(self.version).is_prerelease

    def same_code(self, arch: Capability) -> Capability | None:
        """The older architecture whose code an architecture loads, if it has no own kernel.

        None if it has some, or if that is unknown.
        """
        known = (*self.facts.arches, *self.facts.single) if self.facts else ()
        loaded = max((code for code in known if arch.runs(code)), default=arch)
        return None if loaded == arch else loaded

    def lacks(self, arch: Capability) -> str | None:
        """Why it cannot run on an architecture, as a message; None if it can, or if unknown."""
        if self.facts is None or any(arch.runs(code) for code in self.facts.arches):
            return None
        known = ", ".join(str(code) for code in self.facts.arches)
        return f"the wheel of torch {self.version} has code for {known} only"
