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
from torch_images.config.types import WITH, Architecture, Base, Config, Cuda, Source
from torch_images.errors import UsageError, shown, suggest
from torch_images.platforms import Platform, native


def releases(
    config: Config, cuda: Cuda, source: Source, base: Base, platform: Platform, *, variant: Variant
) -> tuple[Release, ...]:
    """The releases of torch that images of a source and a variant can have, the newest first.

    These are the CUDA version's and those of the variant's extras. For a compiled source it is
    the release whose CUDA libraries it uses; () for a CUDA version that it is not compiled for.
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
    variant = variant.of(cuda.version)
    own = default_platform(config).name
    platform = value("platform", config.platforms, given.get("platform", own))
    architectures = _architectures(config, arch)
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


def _architectures(config: Config, named: str) -> tuple[Architecture, ...]:
    """The architectures in a user's text, such as "9.0,12.0"; all for "". Raises UsageError."""
    if not named:
        return config.architectures
    chosen = {_arch(config, name) for name in named.replace(";", ",").split(",")}
    return tuple(sorted(chosen, key=lambda arch: arch.capability))


def default_platform(config: Config) -> Platform:
    """The default platform: this machine's own, else the first of images.yaml."""
    return native() if native() in config.platforms else config.platforms[0]


def _matching(
    config: Config, cuda: Cuda, torch: str, source: Source, known: tuple[Release, ...]
) -> tuple[Release, ...]:
    """The known releases of torch that a user's word matches; "" matches all.

    Raises UsageError for a word that matches none.
    """
    if source.torch:
        compiled = source.torch.version
        if known and torch in ("", compiled):
            return known
        able = ", ".join(version for version, _ in source.beside)
        raise UsageError(
            f"source {source.name} is torch {compiled} for CUDA {able}, not torch "
            f"{shown(torch or compiled)} for CUDA {cuda.version}",
            "choose one of these, or use --source wheel",
        )
    stable = tuple(release for release in known if not release.prerelease)
    exact = tuple(r for r in known if r.version == torch)
    matching = exact or tuple(r for r in stable if not torch or r.version.startswith(f"{torch}."))
    if not matching:
        others = [f"CUDA {c.version}" for c in config.cudas if torch in c.torch]
        others += [f"variant {v.name}" for v in config.variants if torch in v.torch(cuda.version)]
        hint = f"{' or '.join(others)} has it" if others else ""
        what = f"torch '{shown(torch)}'" if torch else "release of torch but pre-releases"
        raise UsageError(
            f"CUDA {cuda.version} has no {what}",
            hint or suggest(torch, (r.version for r in known)),
        )
    return matching


def _buildable(config: Config, spec: ImageSpec) -> ImageSpec:
    """A whole image with the architectures that it serves; any other image unchanged.

    Raises UsageError if an architecture that the user named cannot be built, or none can.
    """
    refusals = {a: refusal(config, spec, a) for a in spec.architectures}
    able = tuple(a for a in spec.architectures if refusals[a] is None)
    if able == spec.architectures or (spec.whole and able):
        return replace(spec, architectures=able)
    commonest = Counter(reason for reason in refusals.values() if reason).most_common(1)[0][0]
    raise UsageError(f"{spec.id} cannot be built: {commonest}")


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


def _arch(config: Config, text: str) -> Architecture:
    try:
        name = str(Capability.named(text))
    except ValueError as error:
        raise UsageError(str(error), suggest(text, config.names("arch"))) from None
    return value("arch", config.architectures, name)


def _untargeted(config: Config, cuda: Cuda, capability: Capability) -> str | None:
    """Why the compiler of a CUDA version cannot target an architecture; None if it can."""
    if capability in cuda.targets:
        return None
    able = " or ".join(c.version for c in config.cudas if capability in c.targets)
    return f"CUDA {cuda.version} cannot target {capability}{f'; CUDA {able} can' * bool(able)}"


def same_files(spec: ImageSpec) -> str | None:
    """Why an image would have the same files as for another architecture; None if it would not."""
    for arch in spec.architectures if spec.narrowed else ():
        if other := spec.release.same_code(arch.capability):
            return (
                f"torch {spec.torch} has no kernel for {arch.name} itself, which runs "
                f"the code for {other}"
            )
    return None


def refusal(config: Config, spec: ImageSpec, arch: Architecture) -> str | None:
    """Why an image is not built for an architecture; None if it is."""
    cuda, source = spec.cuda, spec.source
    if spec.compat and spec.platform.name not in dict(config.compat.repositories):
        return f"images.yaml names no repository with NVIDIA's compat library for {spec.platform}"
    if config.foreign(arch, spec.platform):
        return f"{' and '.join(arch.examples)} are in hosts with Arm processors only: linux/arm64"
    published = None if source.compiled else spec.release
    lacking = (x.refusal(cuda.version, published, (arch.name,)) for x in spec.variant.extras)
    return (
        _untargeted(config, cuda, arch.capability)
        or config.excluded(**{**spec.axes, "torch": spec.torch, "arch": arch.name})
        or (published and published.lacks(arch.capability))
        or next((reason for reason in lacking if reason), None)
        or spec.variant.empty(cuda.version, spec.release.version)
    )
