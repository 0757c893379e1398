"""Config -> the images that exist, and the choice among them. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, TypeVar

from torch_images.arch import Capability
from torch_images.config.extras import Variant
from torch_images.config.release import Release
from torch_images.config.types import Architecture, Base, Config, Cuda, Source, target_range
from torch_images.errors import UsageError, shown, suggest
from torch_images.platforms import AMD64, Platform, native

# What an identifier has after its architectures.
_PTX, _PRUNED = "_ptx", "_pruned"


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """One image: what it is built from and the architectures that it is checked to have code for.

    With `ptx`, it also has PTX for the newest of them, which later ones run; with `prune`, nothing
    for other ones. `release` is the published torch that it has; for a source that is compiled, the
    one whose CUDA libraries it has. `platform` is what it runs on.
    """

    cuda: Cuda
    release: Release
    architectures: tuple[Architecture, ...]
    every_arch: bool
    source: Source
    base: Base
    variant: Variant
    ptx: bool = False
    prune: bool = False
    platform: Platform = AMD64

    @property
    def arch_name(self) -> str:
        """The part of the identifier: "all", "sm120", several as "sm90_sm120", "sm90_pruned"."""
        names = "all" if self.every_arch else "_".join(a.capability.sm for a in self.architectures)
        return names + (_PTX if self.ptx else "") + (_PRUNED if self.prune else "")

    @property
    def arches(self) -> tuple[str, ...]:
        """The architectures as TORCH_CUDA_ARCH_LIST has them: "9.0", "12.0+PTX"."""
        names = [a.name for a in self.architectures]
        return (*names[:-1], f"{names[-1]}+PTX") if self.ptx else tuple(names)

    @property
    def id(self) -> str:
        """The stable identifier, such as "cu130-sm120-torch2.14.1-bookworm-runtime".

        That of an image for linux/arm64 ends in "-arm64".
        """
        parts = (self.cuda.short, self.arch_name, self.origin, self.base.name)
        return "-".join((*parts, self.variant.name)) + self.platform.suffix

    @property
    def origin(self) -> str:
        """The part of the identifier that says which torch: "torch2.14.1", or a source: "fork"."""
        return self.source.name if self.source.compiled else f"torch{self.release.version}"

    @classmethod
    def parse(cls, identifier: str, config: Config) -> ImageSpec:
        """The image with this identifier, also one of several architectures, with PTX, or pruned.

        The inverse of `id`. Raises UsageError for text that is no identifier, with suggestions, and
        for an image that is not built, with the reason.
        """
        short, _, rest = identifier.partition("-")
        arches, _, rest = rest.partition("-")
        cuda = next((c for c in config.cudas if c.short == short), None)
        names = _arch_names(config, arches)
        for source, base, variant, platform in itertools.product(
            config.sources, config.bases, config.variants, config.platforms
        ):
            origin = rest.removesuffix(f"-{base.name}-{variant.name}{platform.suffix}")
            torch = origin.removeprefix("torch") if not source.compiled else None
            if torch and "-" in torch:  # no release: the base's name begins within `origin`
                continue
            if cuda and names and origin != rest and origin in (source.name, f"torch{torch}"):
                spec = choose(
                    config,
                    cuda=cuda.name,
                    torch=torch,
                    arch=names,
                    source=source.name,
                    base=base.name,
                    variant=variant.name,
                    platform=platform.name,
                )
                spec = replace(spec, prune=arches.endswith(_PRUNED))
                if spec.id == identifier:
                    return spec
        known = (spec.id for spec in matrix(config))
        raise UsageError(
            f"no image '{shown(identifier)}' in the matrix", suggest(identifier, known)
        )

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words after `invoke build` that build this image, whatever the defaults are."""
        arches = "all" if self.every_arch else ",".join(a.name for a in self.architectures)
        return (
            *("--cuda", self.cuda.name, "--arch", f"{arches}+PTX" if self.ptx else arches),
            *([] if self.source.compiled else ["--torch", self.release.version]),
            *("--source", self.source.name, "--base", self.base.name),
            *("--variant", self.variant.name, *(["--prune"] if self.prune else [])),
            *("--platform", self.platform.name),
        )

    @property
    def repository(self) -> str:
        """The name of the image without registry and tag, such as "torch-cu130"."""
        return self.cuda.repository

    @property
    def torch(self) -> str:
        """The public version of torch."""
        return self.source.torch.version if self.source.torch else self.release.version

    @property
    def description(self) -> str:
        """What it is in one line: "PyTorch 2.11.0 for CUDA 13.0 on 9.0 (Hopper: H100, H200)"."""
        arches = ", ".join(
            f"{a.name} ({a.family}: {', '.join(a.examples)})" for a in self.architectures
        )
        return f"PyTorch {self.torch} for CUDA {self.cuda.version} on {arches}"

    @property
    def features(self) -> tuple[str, ...]:
        """What torch must have been built with, by name; () where no lock says so yet."""
        if not self.source.compiled:
            return self.release.facts.features if self.release.facts else ()
        served = {a.capability for a in self.architectures}
        return tuple(f.name for f in self.source.features if f.arch is None or f.arch in served)


@lru_cache(maxsize=4)
def matrix(config: Config) -> tuple[ImageSpec, ...]:
    """Every image that is not excluded: for each combination all architectures, then each alone.

    The newest release of torch comes first.
    """
    specs: list[ImageSpec] = []
    axes = (config.platforms, config.cudas, config.sources, config.bases, config.variants)
    for platform, cuda, source, base, variant in itertools.product(*axes):
        for release in releases(config, cuda, source, base, platform):
            one = ImageSpec(
                cuda=cuda,
                release=release,
                architectures=config.architectures,
                every_arch=True,
                source=source,
                base=base,
                variant=variant,
                platform=platform,
            )
            if config.excluded(**_axes(one)):  # most are, whatever the architecture: ask once
                continue
            served = tuple(a for a in config.architectures if refusal(config, one, a) is None)
            choices = [(True, served), *((False, (arch,)) for arch in served)]
            specs += [
                replace(one, architectures=architectures, every_arch=every)
                for every, architectures in choices
                if served
            ]
    return tuple(specs)


def releases(
    config: Config, cuda: Cuda, source: Source, base: Base, platform: Platform = AMD64
) -> tuple[Release, ...]:
    """The releases of torch that images of a source can have, the newest first.

    For one that is compiled it is the release whose CUDA libraries it has; () for a CUDA version
    that it is not compiled for.
    """
    if source.compiled:
        names = tuple(torch for version, torch in source.beside if version == cuda.version)
    else:
        names = cuda.torch[::-1]
    return tuple(config.release(cuda, name, base, platform) for name in names)


def choose(
    config: Config,
    *,
    cuda: str | None = None,
    torch: str | None = None,
    arch: str | None = None,
    source: str | None = None,
    base: str | None = None,
    variant: str | None = None,
    platform: str | None = None,
) -> ImageSpec:
    """The image with these values, defaults for the rest; `arch` may list several ("9.0,12.0").

    "+PTX" at its end asks for PTX for the newest, too, which only a compiled source can have.
    `torch` is a release, or a minor version that stands for its newest release; the default is the
    newest release that the image is built with. Neither means a pre-release. The default platform
    is this machine's own; where images.yaml lacks it, the first one. Raises UsageError for a value
    that is unknown, a pair that is impossible and an image that is excluded, with the reason.
    """
    defaults = config.defaults
    cuda_ = _named("cuda", config.cudas, cuda or defaults.cuda)
    source_ = _named("source", config.sources, source or defaults.source)
    base_ = _named("base", config.bases, base or defaults.base)
    variant_ = _named("variant", config.variants, variant or defaults.variant)
    platform_ = _named("platform", config.platforms, platform or default_platform(config).name)
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
        architectures = config.architectures
    else:
        names = dict.fromkeys(name for name in wanted.replace(";", ",").split(",") if name)
        if not names:
            raise UsageError(f"no architecture in '{wanted}'", "give one like 12.0, or all")
        architectures = tuple(
            sorted((_arch(config, cuda_, n) for n in names), key=lambda a: a.capability)
        )
    candidates = [
        ImageSpec(
            cuda=cuda_,
            release=release,
            architectures=architectures,
            every_arch=every,
            source=source_,
            base=base_,
            variant=variant_,
            ptx=bool(plus),
            platform=platform_,
        )
        for release in _releases(config, cuda_, torch or "", source_, base_, platform_)
    ]
    refused: list[UsageError] = []
    for spec in candidates:
        try:
            return _served(config, spec)
        except UsageError as error:
            refused.append(error)
    if not torch or source_.compiled:
        raise refused[0]
    try:
        other = choose(
            config,
            cuda=cuda,
            arch=arch,
            source=source,
            base=base,
            variant=variant,
            platform=platform_.name,
        )
    except UsageError:
        raise refused[0] from None
    raise UsageError(refused[0].message, f"it is built with --torch {other.torch}")


def default_platform(config: Config) -> Platform:
    """The platform that nobody named: this machine's own, else the first of images.yaml."""
    return native() if native() in config.platforms else config.platforms[0]


def _releases(
    config: Config, cuda: Cuda, torch: str, source: Source, base: Base, platform: Platform
) -> tuple[Release, ...]:
    """The releases of torch that a user's word means, the newest first; "" means all.

    Raises UsageError for a word that means none.
    """
    known = releases(config, cuda, source, base, platform)
    if not known:
        able = ", ".join(version for version, _ in source.beside)
        raise UsageError(
            f"source {source.name} is not compiled for CUDA {cuda.version}", f"it is for {able}"
        )
    stable = tuple(release for release in known if not release.prerelease)
    if source.compiled and not torch:
        return known
    if not torch and not stable:
        raise UsageError(
            f"CUDA {cuda.version} has pre-releases of torch only",
            f"ask for one with --torch {known[0].version}",
        )
    if not torch:
        return stable
    if source.compiled:
        assert source.torch
        if torch == source.torch.version:
            return known
        raise UsageError(
            f"source {source.name} compiles torch {source.torch.version}, not {shown(torch)}",
            "leave --torch out, or take --source wheel",
        )
    meant = tuple(r for r in known if r.version == torch)
    meant += tuple(r for r in stable if r.version.startswith(f"{torch}."))
    if not meant:
        others = [c.version for c in config.cudas if torch in c.torch]
        hint = f"CUDA {' or '.join(others)} has it" if others else ""
        raise UsageError(
            f"CUDA {cuda.version} has no torch '{shown(torch)}'",
            hint or suggest(torch, (r.version for r in known)),
        )
    return meant[:1]


def _served(config: Config, spec: ImageSpec) -> ImageSpec:
    """An image with the architectures that are built, if it is for all; else it as it is.

    Raises UsageError if one of those that a user named is not built, or none is.
    """
    refusals = {a: refusal(config, spec, a) for a in spec.architectures}
    architectures = spec.architectures
    if spec.every_arch:  # the refused ones are left out; a reason is due if that are all
        reason = Counter(refusals.values()).most_common(1)[0][0]
        architectures = tuple(a for a in architectures if refusals[a] is None) or tuple(
            a for a in architectures if refusals[a] == reason
        )
    for architecture in architectures:
        if refusals[architecture] is not None:
            raise UsageError(
                f"CUDA {spec.cuda.version}, torch {spec.torch}, arch {architecture.name}, source "
                f"{spec.source.name}, base {spec.base.name}, variant {spec.variant.name}"
                f"{_on(spec)} is not built: {refusals[architecture]}"
            )
    return replace(spec, architectures=architectures)


def _on(spec: ImageSpec) -> str:
    """The platform as a part of a message; "" for linux/amd64."""
    return "" if spec.platform == AMD64 else f", platform {spec.platform}"


def unusual(config: Config, spec: ImageSpec) -> tuple[str, ...]:
    """What is not the default of source, variant and base, in the order that tags have."""
    values = ("source", spec.source), ("variant", spec.variant), ("base", spec.base)
    return tuple(v.name for axis, v in values if v.name != getattr(config.defaults, axis))


def short(config: Config, spec: ImageSpec) -> str:
    """The shortest tag: "sm120", or "sm120-devel" where something is not the default.

    That of an image for linux/arm64 ends in "-arm64".
    """
    return "-".join((spec.arch_name, *unusual(config, spec))) + spec.platform.suffix


def _arch_names(config: Config, text: str) -> str:
    """The architectures of an identifier as `--arch` has them; "" for what names none."""
    text = text.removesuffix(_PRUNED)
    words, plus = text.removesuffix(_PTX), "+PTX" if text.endswith(_PTX) else ""
    if words == "all":
        return f"all{plus}"
    by_sm = {a.capability.sm: a.name for a in config.architectures}
    names = [by_sm.get(word, "") for word in words.split("_")]
    return ",".join(names) + plus if all(names) else ""


class _Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_Named)


def _named(axis: str, values: tuple[T, ...], wanted: str) -> T:
    """The value of an axis with this name. Raises UsageError with a suggestion."""
    for value in values:
        if value.name == wanted:
            return value
    raise UsageError(f"unknown {axis} '{shown(wanted)}'", suggest(wanted, (v.name for v in values)))


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


def _axes(spec: ImageSpec) -> dict[str, str]:
    """The value of each axis but `arch`."""
    return {
        "cuda": spec.cuda.version,
        "torch": spec.torch,
        "source": spec.source.name,
        "base": spec.base.name,
        "variant": spec.variant.name,
        "platform": spec.platform.name,
    }


def in_no_host(config: Config, platform: Platform, arch: Architecture) -> str | None:
    """Why no host of a platform has an architecture; None if some have."""
    if not config.foreign(arch, platform):
        return None
    return f"{' and '.join(arch.examples)} are in hosts with Arm processors only: linux/arm64"


def refusal(config: Config, spec: ImageSpec, arch: Architecture) -> str | None:
    """Why an image is not built for an architecture; None if it is."""
    cuda, base, source = spec.cuda, spec.base, spec.source
    if base.images and not base.image(cuda.version):
        return f"base {base.name} names no image for CUDA {cuda.version}"
    excluded = config.excluded(arch=arch.name, **_axes(spec))
    published = None if source.compiled else spec.release
    lacking = (x.refusal(cuda.version, published, (arch.name,)) for x in spec.variant.extras)
    return (
        _impossible(cuda, arch.capability)
        or excluded
        or in_no_host(config, spec.platform, arch)
        or (published and published.lacks(arch.capability))
        or next((reason for reason in lacking if reason), None)
    )
