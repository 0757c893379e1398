"""A published release of torch, and the facts about it that `invoke lock` finds in its wheel."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

from torch_images.arch import Capability
from torch_images.platforms import AMD64


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Which wheels of an extra go with a release of torch.

    `extra`: the name of the extra.
    `wheels`: exact requirements, such as "torchvision==0.26.0"; () if nothing fits.
    `reason`: why nothing fits, or what shows that the wheels do.
    """

    extra: str
    wheels: tuple[str, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was found in a published wheel of torch, and in wheels that are compiled for it.

    `cuda`, `torch`, `python`: versions such as "13.0", "2.14.1" and "3.11"; the wheel is for them.
    `platform`: what the wheel is for, such as "linux/arm64".
    `arches`: the architectures that torch's main library, libtorch_cuda.so, has machine code for.
    `features`: the names of the features that it was built with, in alphabetical order.
    `fits`: for each extra that is compiled for one release of torch, what fits this one.
    `lacks`: other libraries with machine code, each with those of `arches` that run none of it.
    `single`: further architectures that the main library has machine code for in some kernels only.
    """

    cuda: str
    torch: str
    python: str
    arches: tuple[Capability, ...]
    features: tuple[str, ...]
    fits: tuple[Fit, ...]
    platform: str = AMD64.name
    lacks: tuple[tuple[str, tuple[Capability, ...]], ...] = ()
    single: tuple[Capability, ...] = ()

    def fit(self, extra: str) -> Fit | None:
        """What fits of an extra; None where that was not looked for."""
        return next((fit for fit in self.fits if fit.extra == extra), None)

    def lacking(self, arch: Capability) -> tuple[str, ...]:
        """The libraries without code for a GPU that runs the main library's."""
        code = max((found for found in self.arches if arch.runs(found)), default=None)
        return tuple(library for library, arches in self.lacks if code in arches)


@dataclass(frozen=True, kw_only=True)
class Release:
    """A published release of torch for a CUDA version and a Python.

    `version`: its public version, such as "2.14.1".
    `facts`: what is known of it; None before `invoke lock` found out.
    """

    version: str
    facts: Facts | None = None

    @property
    def prerelease(self) -> bool:
        """Whether it is a night's build or another pre-release, which nobody gets unasked."""
        return Version(self.version).is_prerelease

    def same_code(self, arch: Capability) -> Capability | None:
        """The older architecture whose code an architecture loads, with no kernel of its own.

        None where it has some, or where that is not known.
        """
        held = (*self.facts.arches, *self.facts.single) if self.facts else ()
        loaded = max((code for code in held if arch.runs(code)), default=arch)
        return None if loaded == arch else loaded

    def lacks(self, arch: Capability) -> str | None:
        """Why it cannot run on an architecture, as a message; None if it can, or is not known."""
        if self.facts is None or any(arch.runs(found) for found in self.facts.arches):
            return None
        known = ", ".join(str(found) for found in self.facts.arches)
        return f"the wheel of torch {self.version} has code for {known} only"
