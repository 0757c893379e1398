"""Config -> the images that exist, and the choice among them. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

from torch_images.arch import Capability
from torch_images.config.types import (
    Architecture,
    Base,
    Config,
    Cuda,
    Source,
    Variant,
    target_range,
)
from torch_images.errors import UsageError, suggest


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """One image: what it is built from and the architectures it is proved to run on.

    With `ptx`, it also has PTX for the newest of them, which later ones run; with `prune`, nothing
    for other ones.
    """

    cuda: Cuda
    architectures: tuple[Architecture, ...]
    every_arch: bool
    source: Source
    base: Base
    variant: Variant
    ptx: bool = False
    prune: bool = False

    @property
    def arch_name(self) -> str:
        """The part of the identifier: "all", "sm120", several as "sm90_sm120", "sm90_pruned"."""
        names = "all" if self.every_arch else "_".join(a.capability.sm for a in self.architectures)
        return names + ("_ptx" if self.ptx else "") + ("_pruned" if self.prune else "")

    @property
    def arches(self) -> tuple[str, ...]:
        """The architectures as TORCH_CUDA_ARCH_LIST has them: "9.0", "12.0+PTX"."""
        names = [a.name for a in self.architectures]
        return (*names[:-1], f"{names[-1]}+PTX") if self.ptx else tuple(names)

    @property
    def id(self) -> str:
        """The stable identifier, such as "cu130-sm120-wheel-bookworm-runtime"."""
        parts = (self.cuda.short, self.arch_name, self.source.name, self.base.name)
        return "-".join((*parts, self.variant.name))

    @property
    def repository(self) -> str:
        """The name of the image without registry and tag, such as "torch-cu130"."""
        return self.cuda.repository

    @property
    def torch(self) -> str:
        """The public version of torch."""
        return self.source.torch.version if self.source.torch else self.cuda.wheel.torch

    @property
    def features(self) -> tuple[str, ...]:
        """What torch must have been built with, by name."""
        if not self.source.compiled:
            return self.cuda.wheel.features
        served = {a.capability for a in self.architectures}
        return tuple(f.name for f in self.source.features if f.arch is None or f.arch in served)


def matrix(config: Config) -> tuple[ImageSpec, ...]:
    """Every image that is not excluded: for each combination all architectures, then each alone."""
    specs: list[ImageSpec] = []
    axes = (config.cudas, config.sources, config.bases, config.variants)
    for cuda, source, base, variant in itertools.product(*axes):
        served = tuple(
            arch
            for arch in config.architectures
            if _refusal(config, cuda, arch, source, base, variant) is None
        )
        if not served:
            continue
        choices = [(True, served), *((False, (arch,)) for arch in served)]
        specs += [
            ImageSpec(
                cuda=cuda,
                architectures=architectures,
                every_arch=every,
                source=source,
                base=base,
                variant=variant,
            )
            for every, architectures in choices
        ]
    return tuple(specs)


def choose(
    config: Config,
    *,
    cuda: str | None = None,
    arch: str | None = None,
    source: str | None = None,
    base: str | None = None,
    variant: str | None = None,
) -> ImageSpec:
    """The image with these values, defaults for the rest; `arch` may list several ("9.0,12.0").

    "+PTX" at its end asks for PTX for the newest, too, which only a compiled source can have.
    Raises UsageError for a value that is unknown, a pair that is impossible and an image that is
    excluded, with the reason.
    """
    defaults = config.defaults
    cuda_ = _named("cuda", config.cudas, cuda or defaults.cuda)
    source_ = _named("source", config.sources, source or defaults.source)
    base_ = _named("base", config.bases, base or defaults.base)
    variant_ = _named("variant", config.variants, variant or defaults.variant)
    wanted, plus, suffix = (arch or defaults.arch).partition("+")
    if suffix not in ("", "PTX") or (plus and not suffix):
        raise UsageError(f"'+{suffix}' is no part of an architecture", "+PTX may end the last one")
    if plus and not source_.compiled:
        named = [s.name for s in config.sources if s.compiled]
        raise UsageError(
            f"source {source_.name} has no PTX: it is published without",
            f"leave +PTX out, or compile with --source {' or '.join(named)}",
        )
    every = wanted == "all"
    if every:
        found = config.architectures
    else:
        names = dict.fromkeys(name for name in wanted.replace(";", ",").split(",") if name)
        if not names:
            raise UsageError(f"no architecture in '{wanted}'", "give one like 12.0, or all")
        found = tuple(sorted((_arch(config, cuda_, n) for n in names), key=lambda a: a.capability))
    refusals = {a: _refusal(config, cuda_, a, source_, base_, variant_) for a in found}
    if every:  # leave out the refused ones, unless that leaves nothing and the reason is due
        found = tuple(a for a in found if refusals[a] is None) or found
    for architecture in found:
        if refusals[architecture] is not None:
            raise UsageError(
                f"CUDA {cuda_.version}, arch {architecture.name}, source {source_.name}, base "
                f"{base_.name}, variant {variant_.name} is not built: {refusals[architecture]}"
            )
    return ImageSpec(
        cuda=cuda_,
        architectures=found,
        every_arch=every,
        source=source_,
        base=base_,
        variant=variant_,
        ptx=bool(plus),
    )


def select(config: Config, pattern: str) -> tuple[ImageSpec, ...]:
    """The images of the matrix whose identifier matches a glob. Raises UsageError if none does."""
    specs = matrix(config)
    chosen = tuple(spec for spec in specs if fnmatchcase(spec.id, pattern))
    if not chosen:
        hint = suggest(pattern, (spec.id for spec in specs))
        raise UsageError(f"no image matches '{pattern}'", hint)
    return chosen


def find(config: Config, identifier: str) -> ImageSpec:
    """The image of the matrix with exactly this identifier. Raises UsageError with a suggestion."""
    specs = {spec.id: spec for spec in matrix(config)}
    if identifier not in specs:
        raise UsageError(f"no image '{identifier}' in the matrix", suggest(identifier, specs))
    return specs[identifier]


def unusual(config: Config, spec: ImageSpec) -> tuple[str, ...]:
    """What is not the default of source, variant and base, in the order that tags have."""
    values = ("source", spec.source), ("variant", spec.variant), ("base", spec.base)
    return tuple(v.name for axis, v in values if v.name != getattr(config.defaults, axis))


def describe(spec: ImageSpec) -> dict[str, str | list[str]]:
    """The image as plain data, for JSON: CI matrices read it."""
    return {
        "id": spec.id,
        "cuda": spec.cuda.version,
        "arch": [a.name for a in spec.architectures],
        "source": spec.source.name,
        "base": spec.base.name,
        "variant": spec.variant.name,
        "python": spec.base.python,
        "torch": spec.torch,
        "repository": spec.repository,
    }


class _Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_Named)


def _named(axis: str, values: tuple[T, ...], wanted: str) -> T:
    """The value of an axis with this name. Raises UsageError with a suggestion."""
    for value in values:
        if value.name == wanted:
            return value
    raise UsageError(f"unknown {axis} '{wanted}'", suggest(wanted, (v.name for v in values)))


def _arch(config: Config, cuda: Cuda, wanted: str) -> Architecture:
    try:
        capability = Capability.parse(wanted)
    except ValueError as error:
        raise UsageError(str(error), suggest(wanted, config.names("arch"))) from None
    reason = _impossible(cuda, capability)
    # An architecture that this CUDA dropped is impossible, whether images.yaml lists it or not.
    if reason and capability < max(cuda.targets) and _someone_can(config, capability):
        able = [c.version for c in config.cudas if capability in c.targets]
        hint = f"CUDA {' or '.join(able)} can" if wanted in config.names("arch") else ""
        known = suggest(wanted, config.names("arch"))
        raise UsageError(reason, hint or f"images.yaml does not list {wanted} either; {known}")
    return _named("arch", config.architectures, wanted)


def _someone_can(config: Config, capability: Capability) -> bool:
    return any(capability in cuda.targets for cuda in config.cudas)


def _impossible(cuda: Cuda, capability: Capability) -> str | None:
    if capability in cuda.targets:
        return None
    return f"CUDA {cuda.version} cannot target {capability}: {target_range(cuda)}"


def _refusal(
    config: Config, cuda: Cuda, arch: Architecture, source: Source, base: Base, variant: Variant
) -> str | None:
    """Why this image is not built; None if it is."""
    if base.images and not base.image(cuda.version):
        return f"base {base.name} names no image for CUDA {cuda.version}"
    excluded = config.excluded(
        cuda=cuda.version,
        arch=arch.name,
        source=source.name,
        base=base.name,
        variant=variant.name,
    )
    return excluded or _impossible(cuda, arch.capability)
