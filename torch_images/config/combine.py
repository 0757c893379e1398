"""Values of axes -> the image with them, or the reason why there is none. Pure."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

from packaging.version import Version

from torch_images.arch import Capability
from torch_images.config.extras import Variant
from torch_images.config.image import ImageSpec
from torch_images.config.release import Release
from torch_images.config.types import (
    WITH,
    WITHOUT,
    Architecture,
    Base,
    Config,
    Cuda,
    Source,
    target_range,
)
from torch_images.errors import UsageError, shown, suggest
from torch_images.platforms import AMD64, Platform, native


def releases(
    config: Config, cuda: Cuda, source: Source, base: Base, platform: Platform, *, variant: Variant
) -> tuple[Release, ...]:
    """The releases of torch that images of a source and a variant can have, the newest first.

    These are the CUDA version's, and those that extras of the variant add. For a compiled source it
    is the release whose CUDA libraries it uses; () for a CUDA version that it is not compiled for.
    """
    if source.compiled:
        names = [torch for version, torch in source.beside if version == cuda.version]
    else:
        names = sorted({*cuda.torch, *variant.torch(cuda.version)}, key=Version, reverse=True)
    return tuple(config.release(cuda, name, base, platform) for name in names)


def combine(config: Config, axes: Mapping[str, str]) -> ImageSpec:
    """The image with these values of axes, defaults for the rest and for "".

    `arch` may list several ("9.0,12.0"); without it, the image has code for every architecture of
    its torch. The default base is the CUDA version's. `torch` is a release, or a minor version for
    its newest release that the image is built with; the default is the newest of all these. Neither
    selects a pre-release. `compat` is WITH or WITHOUT, the default. The default platform is this
    machine's own, or the first one if images.yaml lacks it. Raises UsageError with the reason for
    an unknown value, an impossible pair and an excluded image.
    """
    defaults, given = config.defaults, {axis: text for axis, text in axes.items() if text}
    torch, arch = given.get("torch", ""), given.get("arch", "")
    cuda = value("cuda", config.cudas, given.get("cuda", defaults.cuda))
    source = value("source", config.sources, given.get("source", defaults.source))
    base = value("base", config.bases, given.get("base", cuda.base))
    variant = value("variant", config.variants, given.get("variant", defaults.variant))
    own = default_platform(config).name
    platform = value("platform", config.platforms, given.get("platform", own))
    architectures = _architectures(config, cuda, arch)
    known = releases(config, cuda, source, base, platform, variant=variant)
    images = [
        ImageSpec(
            cuda=cuda,
            release=release,
            architectures=architectures,
            whole=not arch,
            source=source,
            base=base,
            variant=variant,
            compat=given.get("compat") == WITH,
            platform=platform,
        )
        for release in _matching(config, cuda, torch, source, known)
    ]
    if problem := same_files(images[0]):
        raise UsageError(problem, "give that architecture, or none: the files are the same")
    refused: list[UsageError] = []
    for spec in images:
        try:
            return _buildable(config, spec)
        except UsageError as error:
            refused.append(error)
    hint = ""
    if torch and not source.compiled:
        with contextlib.suppress(UsageError):
            other = combine(config, {**given, "torch": ""})
            hint = f"--torch {other.torch} works" if other.release.facts else ""
    raise UsageError(refused[0].message, hint or refused[0].hint)


def _architectures(config: Config, cuda: Cuda, named: str) -> tuple[Architecture, ...]:
    """The architectures in a user's text, such as "9.0,12.0"; all for "". Raises UsageError."""
    if not named:
        return config.architectures
    if named == "all":
        raise UsageError(
            "'all' is not an architecture",
            "leave --arch out: the image then has code for all of them",
        )
    names = dict.fromkeys(name for name in named.replace(";", ",").split(",") if name)
    if not names:
        raise UsageError(f"no architecture in '{shown(named)}'", "give one like 12.0")
    return tuple(sorted((_arch(config, cuda, n) for n in names), key=lambda a: a.capability))


def default_platform(config: Config) -> Platform:
    """The default platform: this machine's own, else the first of images.yaml."""
    return native() if native() in config.platforms else config.platforms[0]


def _matching(
    config: Config, cuda: Cuda, torch: str, source: Source, known: tuple[Release, ...]
) -> tuple[Release, ...]:
    """The known releases of torch that a user's word matches; "" matches all.

    Raises UsageError for a word that matches none.
    """
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
            f"CUDA {cuda.version} only has pre-releases of torch",
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
            "leave --torch out, or use --source wheel",
        )
    exact = tuple(r for r in known if r.version == torch)
    matching = exact or tuple(r for r in stable if r.version.startswith(f"{torch}."))
    if not matching:
        others = [f"CUDA {c.version}" for c in config.cudas if torch in c.torch]
        others += [f"variant {v.name}" for v in config.variants if torch in v.torch(cuda.version)]
        hint = f"{' or '.join(others)} has it" if others else ""
        raise UsageError(
            f"CUDA {cuda.version} has no torch '{shown(torch)}'",
            hint or suggest(torch, (r.version for r in known)),
        )
    return matching


def _buildable(config: Config, spec: ImageSpec) -> ImageSpec:
    """A whole image with the architectures that it serves; any other image unchanged.

    Raises UsageError if an architecture that the user named cannot be built, or none can.
    """
    refusals = {a: refusal(config, spec, a) for a in spec.architectures}
    architectures = spec.architectures
    if spec.whole:  # leave out refused architectures; if all are, give the commonest reason
        reason = Counter(refusals.values()).most_common(1)[0][0]
        architectures = tuple(a for a in architectures if refusals[a] is None) or tuple(
            a for a in architectures if refusals[a] == reason
        )
    for architecture in architectures:
        if refusals[architecture] is not None:
            arch = "" if spec.whole else f", arch {architecture.name}"
            raise UsageError(
                f"CUDA {spec.cuda.version}, torch {spec.torch}{arch}, source "
                f"{spec.source.name}, base {spec.base.name}, variant {spec.variant.name}"
                f"{_with_compat(spec)}{_on(spec)} cannot be built: {refusals[architecture]}"
            )
    return replace(spec, architectures=architectures)


def _with_compat(spec: ImageSpec) -> str:
    """The compat library as a part of a message; "" without it."""
    return ", with the compat library" if spec.compat else ""


def _on(spec: ImageSpec) -> str:
    """The platform as a part of a message; "" for linux/amd64."""
    return "" if spec.platform == AMD64 else f", platform {spec.platform}"


class _Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_Named)


def value(axis: str, values: tuple[T, ...], name: str) -> T:
    """The value of an axis with this name. Raises UsageError with a suggestion."""
    for one in values:
        if one.name == name:
            return one
    raise UsageError(f"unknown {axis} '{shown(name)}'", suggest(name, (v.name for v in values)))


def _arch(config: Config, cuda: Cuda, wanted: str) -> Architecture:
    try:
        capability = Capability.named(wanted)
        wanted = str(capability)
    except ValueError as error:
        raise UsageError(str(error), suggest(wanted, config.names("arch"))) from None
    reason = _impossible(cuda, capability)
    # An architecture that this CUDA version dropped is impossible, in images.yaml or not.
    able = [c.version for c in config.cudas if capability in c.targets]
    if reason and able and capability < max(cuda.targets):
        hint = f"CUDA {' or '.join(able)} can" if wanted in config.names("arch") else ""
        known = suggest(wanted, config.names("arch"))
        raise UsageError(reason, hint or f"images.yaml does not list {wanted} either; {known}")
    return value("arch", config.architectures, wanted)


def _impossible(cuda: Cuda, capability: Capability) -> str | None:
    if capability in cuda.targets:
        return None
    return f"CUDA {cuda.version} cannot target {capability}: {target_range(cuda)}"


def _axes(spec: ImageSpec) -> dict[str, str]:
    return {
        "cuda": spec.cuda.version,
        "torch": spec.torch,
        "source": spec.source.name,
        "base": spec.base.name,
        "variant": spec.variant.name,
        "compat": WITH if spec.compat else WITHOUT,
        "platform": spec.platform.name,
    }


def in_no_host(config: Config, platform: Platform, arch: Architecture) -> str | None:
    """Why no host of a platform has an architecture; None if one may."""
    if not config.foreign(arch, platform):
        return None
    return f"{' and '.join(arch.examples)} are in hosts with Arm processors only: linux/arm64"


def same_files(spec: ImageSpec) -> str | None:
    """Why an image would have the same files as for another architecture; None if it would not."""
    for arch in spec.architectures if spec.narrowed else ():
        if other := spec.release.same_code(arch.capability):
            return (
                f"torch {spec.torch}{_on(spec)} has no kernel for {arch.name} itself, which runs "
                f"the code for {other}"
            )
    return None


def refusal(config: Config, spec: ImageSpec, arch: Architecture) -> str | None:
    """Why an image is not built for an architecture; None if it is."""
    cuda, source = spec.cuda, spec.source
    if spec.compat and spec.platform.name not in dict(config.compat.repositories):
        return f"images.yaml names no repository with NVIDIA's compat library for {spec.platform}"
    published = None if source.compiled else spec.release
    lacking = (x.refusal(cuda.version, published, (arch.name,)) for x in spec.variant.extras)
    return (
        _impossible(cuda, arch.capability)
        or config.excluded(arch=arch.name, **_axes(spec))
        or in_no_host(config, spec.platform, arch)
        or (published and published.lacks(arch.capability))
        or next((reason for reason in lacking if reason), None)
        or spec.variant.empty(cuda.version, spec.release.version)
    )
