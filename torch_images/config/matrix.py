"""Config -> the images of the catalogue, and any other that its axes allow. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, TypeVar

from torch_images.arch import Capability
from torch_images.config.extras import Variant
from torch_images.config.release import Release
from torch_images.config.types import Architecture, Base, Config, Cuda, Source, target_range
from torch_images.errors import ConfigError, UsageError, shown, suggest
from torch_images.platforms import AMD64, Platform, native

LATEST = "latest"
_EACH = "each"  # in a row of the catalogue: every release of torch, or every architecture, alone
_ARCHES = re.compile(r"sm[0-9]{2,3}(?:_sm[0-9]{2,3})*")


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """One image: what it is built from, and the architectures that it is checked to have code for.

    `whole`: whether nobody named architectures. Then torch has code for all that it was published
        or compiled for; else only what GPUs of `architectures` load.
    `release`: the published torch that it has; for a source that is compiled, the one whose CUDA
        libraries it has.
    `platform`: what it runs on.
    """

    cuda: Cuda
    release: Release
    architectures: tuple[Architecture, ...]
    whole: bool
    source: Source
    base: Base
    variant: Variant
    platform: Platform = AMD64

    @property
    def narrowed(self) -> bool:
        """Whether code for other architectures is left out of a published torch."""
        return not self.whole and not self.source.compiled

    @property
    def arch_name(self) -> str:
        """The part of the identifier: "sm120", several as "sm90_sm120"; "" for a whole image."""
        return "" if self.whole else "_".join(a.capability.sm for a in self.architectures)

    @property
    def arches(self) -> tuple[str, ...]:
        """The architectures as TORCH_CUDA_ARCH_LIST has them: "9.0", "12.0"."""
        return tuple(a.name for a in self.architectures)

    @property
    def id(self) -> str:
        """The stable identifier: "cu130-torch2.14.1-trixie-runtime", "cu130-sm120-torch2.14.1-...".

        That of an image for linux/arm64 ends in "-arm64". Each word in it changes files.
        """
        words = (self.cuda.short, self.arch_name, self.origin, self.base.name, self.variant.name)
        return "-".join(word for word in words if word) + self.platform.suffix

    @property
    def origin(self) -> str:
        """The part of the identifier that says which torch: "torch2.14.1", or a source: "fork"."""
        return self.source.name if self.source.compiled else f"torch{self.release.version}"

    @classmethod
    def parse(cls, identifier: str, config: Config) -> ImageSpec:
        """The image with this identifier, in the catalogue or not. The inverse of `id`.

        Raises UsageError for text that is no identifier, with suggestions, and for an image that is
        not built, with the reason.
        """
        words = identifier.split("-")
        platform = next((p for p in config.platforms if p.suffix == f"-{words[-1]}"), AMD64)
        words = words if platform == AMD64 else words[:-1]
        arches = words.pop(1) if len(words) == 5 and _ARCHES.fullmatch(words[1]) else ""  # noqa: PLR2004
        cuda = next((c for c in config.cudas if c.short == words[0]), None)
        by_sm = {a.capability.sm: a.name for a in config.architectures}
        names = [by_sm.get(word, "") for word in arches.split("_") if word]
        if len(words) == 4 and cuda and all(names):  # noqa: PLR2004  cuda, torch, base, variant
            _, origin, base, variant = words
            compiled = origin in (s.name for s in config.sources if s.compiled)
            spec = choose(
                config,
                cuda=cuda.name,
                torch=None if compiled else origin.removeprefix("torch"),
                arch=",".join(names),
                source=origin if compiled else _published(config),
                base=base,
                variant=variant,
                platform=platform.name,
            )
            if spec.id == identifier:
                return spec
        known = (spec.id for spec in matrix(config))
        raise UsageError(f"'{shown(identifier)}' names no image", suggest(identifier, known))

    @property
    def arch_list(self) -> tuple[str, ...]:
        """What torch.cuda.get_arch_list() must say, such as ("sm_90",); () if it is not known.

        It is the code of the release that GPUs of the architectures load; of a whole image, all.
        """
        facts = self.release.facts
        if self.source.compiled or not facts:
            return ()
        loaded = facts.arches
        if not self.whole:
            wanted = (a.capability for a in self.architectures)
            loaded = tuple({max(c for c in facts.arches if own.runs(c)) for own in wanted})
        return tuple(code.sm.replace("sm", "sm_") for code in sorted(loaded))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words after `invoke build` that build this image, whatever the defaults are."""
        return (
            *("--cuda", self.cuda.name),
            *([] if self.whole else ["--arch", ",".join(self.arches)]),
            *([] if self.source.compiled else ["--torch", self.release.version]),
            *("--source", self.source.name, "--base", self.base.name),
            *("--variant", self.variant.name, "--platform", self.platform.name),
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
    """The images of the catalogue, in its order.

    Raises ConfigError for a row with an image that cannot be built, with the reason.
    """
    found: dict[ImageSpec, None] = {}
    for row in config.catalogue:
        try:
            for axes in combinations(replace(config, catalogue=(row,))):
                found |= dict.fromkeys(_listed(config, axes))
        except UsageError as error:
            raise ConfigError(
                f"{row.where}: the catalogue lists an image that cannot be built: {error.message}",
                error.hint or "correct the row, or remove it",
            ) from None
    return tuple(found)


def combinations(config: Config) -> Iterator[dict[str, str]]:
    """The axes of each combination of values that the catalogue lists, defaults included.

    `torch` and `arch` are there only where a row names them.
    """
    for row in config.catalogue:
        for values in itertools.product(*(values for _, values in row.values)):
            named = dict(zip((axis for axis, _ in row.values), values, strict=True))
            cuda = _named("cuda", config.cudas, named.get("cuda", config.defaults.cuda))
            yield {
                "cuda": cuda.version,
                "source": config.defaults.source,
                "base": cuda.base,
                "variant": config.defaults.variant,
                "platform": config.platforms[0].name,
                **named,
            }


def _listed(config: Config, named: Mapping[str, str]) -> tuple[ImageSpec, ...]:
    """The images of one combination of values. Raises UsageError."""
    axes = {axis: value for axis, value in named.items() if value != _EACH}
    newest = choose(config, **axes)
    torches = [newest]
    if named.get("torch") == _EACH:
        there = releases(config, newest.cuda, newest.source, newest.base, newest.platform)
        stable = (r.version for r in there if not r.prerelease)
        torches = [choose(config, **axes, torch=version) for version in stable]
    if named.get("arch") != _EACH:
        return tuple(torches)
    return tuple(
        replace(spec, architectures=(arch,), whole=False)
        for spec in torches
        for arch in spec.architectures
    )


def of_the_project(config: Config, spec: ImageSpec) -> bool:
    """Whether the catalogue has an image. All others are built by arguments only."""
    return any(spec.id == listed.id for listed in matrix(config))


def kin(config: Config, spec: ImageSpec) -> tuple[ImageSpec, ...]:
    """The images of the catalogue that differ from one in platform or release of torch only."""

    def kind(image: ImageSpec) -> tuple[str, ...]:
        origin = image.origin if image.source.compiled else ""
        return (image.cuda.version, image.arch_name, origin, image.base.name, image.variant.name)

    return tuple(image for image in matrix(config) if kind(image) == kind(spec))


def sisters(config: Config, spec: ImageSpec) -> tuple[ImageSpec, ...]:
    """The images of the catalogue that differ from one in platform only."""
    alike = (image for image in kin(config, spec) if image.release.version == spec.release.version)
    return tuple(image for image in alike if image.platform != spec.platform)


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

    Without `arch` it has code for all that its torch serves. The default base is that of the CUDA
    version. `torch` is a release, or a minor version that stands for its newest release; the
    default is the newest release that the image is built with. Neither means a pre-release. The
    default platform is this machine's own; where images.yaml lacks it, the first one. Raises
    UsageError for a value that is unknown, a pair that is impossible and an image that is excluded,
    with the reason.
    """
    defaults = config.defaults
    cuda_ = _named("cuda", config.cudas, cuda or defaults.cuda)
    source_ = _named("source", config.sources, source or defaults.source)
    base_ = _named("base", config.bases, base or cuda_.base)
    variant_ = _named("variant", config.variants, variant or defaults.variant)
    platform_ = _named("platform", config.platforms, platform or default_platform(config).name)
    architectures = _architectures(config, cuda_, arch or "")
    candidates = [
        ImageSpec(
            cuda=cuda_,
            release=release,
            architectures=architectures,
            whole=not arch,
            source=source_,
            base=base_,
            variant=variant_,
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


def _architectures(config: Config, cuda: Cuda, named: str) -> tuple[Architecture, ...]:
    """The architectures that a user named, such as "9.0,12.0"; all for "". Raises UsageError."""
    if not named:
        return config.architectures
    if named == "all":
        raise UsageError(
            "'all' is no architecture", "leave --arch out: the image then has code for all of them"
        )
    names = dict.fromkeys(name for name in named.replace(";", ",").split(",") if name)
    if not names:
        raise UsageError(f"no architecture in '{shown(named)}'", "give one like 12.0")
    return tuple(sorted((_arch(config, cuda, n) for n in names), key=lambda a: a.capability))


def _published(config: Config) -> str:
    """The source of the published wheels."""
    return next(source.name for source in config.sources if not source.compiled)


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
    """A whole image with the architectures that it serves; any other as it is.

    Raises UsageError if one of those that a user named is not built, or none is.
    """
    refusals = {a: refusal(config, spec, a) for a in spec.architectures}
    architectures = spec.architectures
    if spec.whole:  # where that leaves nothing, the reason is due
        architectures = tuple(a for a in architectures if refusals[a] is None) or architectures
    for architecture in architectures:
        if refusals[architecture] is not None:
            raise UsageError(
                f"CUDA {spec.cuda.version}, torch {spec.torch}{_for(spec, architecture)}, source "
                f"{spec.source.name}, base {spec.base.name}, variant {spec.variant.name}"
                f"{_on(spec)} cannot be built: {refusals[architecture]}"
            )
    return replace(spec, architectures=architectures)


def _for(spec: ImageSpec, architecture: Architecture) -> str:
    """The architecture as a part of a message; "" for an image that names none."""
    return "" if spec.whole else f", arch {architecture.name}"


def _on(spec: ImageSpec) -> str:
    """The platform as a part of a message; "" for linux/amd64."""
    return "" if spec.platform == AMD64 else f", platform {spec.platform}"


def unusual(config: Config, spec: ImageSpec) -> tuple[str, ...]:
    """What is not the default of source, variant and base, in the order that tags have."""
    values = (
        (spec.source.name, config.defaults.source),
        (spec.variant.name, config.defaults.variant),
        (spec.base.name, spec.cuda.base),
    )
    return tuple(name for name, default in values if name != default)


def short(config: Config, spec: ImageSpec) -> str:
    """The shortest tag: "sm120", "sm120-devel" where something is not the default, "latest".

    That of an image for linux/arm64 ends in "-arm64".
    """
    words = (spec.arch_name, *unusual(config, spec))
    return ("-".join(word for word in words if word) or LATEST) + spec.platform.suffix


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
    published = None if source.compiled else spec.release
    lacking = (x.refusal(cuda.version, published, (arch.name,)) for x in spec.variant.extras)
    return (
        _impossible(cuda, arch.capability)
        or config.excluded(arch=arch.name, **_axes(spec))
        or in_no_host(config, spec.platform, arch)
        or (published and published.lacks(arch.capability))
        or next((reason for reason in lacking if reason), None)
        or spec.variant.empty(cuda.version)
    )
