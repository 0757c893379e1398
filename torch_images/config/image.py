"""One image, and the names derived from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch_images.config.extras import Extra, Variant
from torch_images.config.own import Own
from torch_images.config.release import Release
from torch_images.config.types import WITH, WITHOUT, Architecture, Base, Config, Cuda, Source
from torch_images.platforms import AMD64, Platform

LATEST, COMPAT = "latest", "compat"
POD = "pod-start"  # the command of variants that get scripts/image/pod


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """One image: the inputs of its build, and the architectures that checks require code for.

    `whole`: whether no architectures were named. Then torch has code for everything that it was
        published or compiled for; else only code that GPUs of `architectures` load.
    `compat`: whether it has NVIDIA's compat library.
    `release`: its published torch; for a compiled source, the one whose CUDA libraries it uses.
    `platform`: the platform that it runs on.
    `own`: what a user's project adds; None for an image of images.yaml.
    """

    cuda: Cuda
    release: Release
    architectures: tuple[Architecture, ...]
    whole: bool
    source: Source
    base: Base
    variant: Variant
    compat: bool = False
    platform: Platform = AMD64
    own: Own | None = None

    @property
    def narrowed(self) -> bool:
        """Whether code for other architectures is left out of a published torch."""
        return not self.whole and not self.source.compiled

    @property
    def compiles(self) -> bool:
        """Whether its build compiles torch, or an extra for it."""
        return self.source.compiled or bool(self.variant.sources)

    @property
    def arch_name(self) -> str:
        """The part of the identifier: "sm120", several as "sm90_sm120"; "" for a whole image."""
        return "" if self.whole else "_".join(a.capability.sm for a in self.architectures)

    @property
    def arches(self) -> tuple[str, ...]:
        """The architectures in the form of TORCH_CUDA_ARCH_LIST: "9.0", "12.0"."""
        return tuple(a.name for a in self.architectures)

    @property
    def id(self) -> str:
        """The stable identifier: "cu130-torch2.14.1-trixie-runtime", "cu130-sm120-torch2.14.1-...".

        It ends in "-compat" with NVIDIA's compat library, then in "-arm64" for linux/arm64. Each
        word in it changes files. That of a user's own image is its name.
        """
        if self.own:
            return self.own.repository + self.platform.suffix
        words = (self.cuda.short, self.arch_name, self.origin, self.base.name, self.variant.name)
        return "-".join(word for word in (*words, self.compat_word) if word) + self.platform.suffix

    @property
    def compat_word(self) -> str:
        """The part of identifiers and tags for NVIDIA's compat library: "compat", or ""."""
        return COMPAT if self.compat else ""

    @property
    def origin(self) -> str:
        """The part of the identifier that says which torch: "torch2.14.1", or a source: "fork"."""
        return self.source.name if self.source.compiled else f"torch{self.release.version}"

    @property
    def arch_list(self) -> tuple[str, ...]:
        """The expected torch.cuda.get_arch_list(), such as ("sm_90",); () if unknown.

        It is the release's code that GPUs of the architectures load; for a whole image, all code.
        """
        facts = self.release.facts
        if self.source.compiled or not facts:
            return ()
        loaded = facts.arches
        if not self.whole:
            served = (a.capability for a in self.architectures)
            loaded = tuple({max(c for c in facts.arches if own.runs(c)) for own in served})
        return tuple(code.sm.replace("sm", "sm_") for code in sorted(loaded))

    @property
    def axes(self) -> dict[str, str]:
        """The values of axes that mean this image, whatever the defaults are."""
        return {
            "cuda": self.cuda.name,
            **({} if self.whole else {"arch": ",".join(self.arches)}),
            **({} if self.source.compiled else {"torch": self.release.version}),
            "source": self.source.name,
            "base": self.base.name,
            "variant": self.variant.name,
            "compat": WITH if self.compat else WITHOUT,
            "platform": self.platform.name,
        }

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options of `invoke build` that build this image, whatever the defaults are.

        None for a user's own image: its table has its axes.
        """
        return () if self.own else options(self.axes)

    @property
    def repository(self) -> str:
        """The name of the image without registry and tag, such as "torch-cu130"."""
        return self.own.repository if self.own else self.cuda.repository

    @property
    def command(self) -> tuple[str, ...]:
        """The command that its containers run: a pod's starts its services, then a user's own."""
        own = self.own.command if self.own else ()
        first = () if own and self.variant.command != POD else (self.variant.command,)
        return (*first, *own)

    @property
    def torch(self) -> str:
        """The public version of torch."""
        return self.source.torch.version if self.source.torch else self.release.version

    @property
    def description(self) -> str:
        """What it is in one line: "PyTorch 2.14.1 for CUDA 13.0, compute capability 9.0 alone".

        An image with NVIDIA's compat library says so.

        It is a label, so it depends only on inputs of the files.
        """
        name = f"{self.own.repository}: " if self.own else ""
        alone = "" if self.whole else f", compute capability {' and '.join(self.arches)} alone"
        compat = ", with NVIDIA's compat library" if self.compat else ""
        compat += ", without nvcc" if self.cuda.version in self.variant.no_toolkit else ""
        return f"{name}PyTorch {self.torch} for CUDA {self.cuda.version}{alone}{compat}"

    @property
    def features(self) -> tuple[str, ...]:
        """The features that torch must have been built with, by name; () before it is locked."""
        if not self.source.compiled:
            return self.release.facts.features if self.release.facts else ()
        served = {a.capability for a in self.architectures}
        return tuple(f.name for f in self.source.features if f.arch is None or f.arch in served)


def with_extras(spec: ImageSpec, extras: tuple[Extra, ...]) -> ImageSpec:
    """The same image with more extras than its variant's own."""
    variant = replace(spec.variant, extras=(*spec.variant.extras, *extras))
    return replace(spec, variant=variant) if extras else spec


def options(axes: Mapping[str, str]) -> tuple[str, ...]:
    """The options of `invoke build` for values of axes. A build is without compat by default."""
    words: list[str] = []
    for axis, value in axes.items():
        if axis != "compat":
            words += [f"--{axis}", value]
        elif value == WITH:
            words.append("--compat")
    return tuple(words)


def describe(spec: ImageSpec) -> dict[str, str | bool | list[str]]:
    """The image as plain data for JSON, which CI matrices read."""
    return {
        "id": spec.id,
        "cuda": spec.cuda.version,
        "architectures": [a.name for a in spec.architectures],
        "source": spec.source.name,
        "base": spec.base.name,
        "variant": spec.variant.name,
        "compat": spec.compat,
        "platform": spec.platform.name,
        "python": spec.base.python,
        "torch": spec.torch,
        "repository": spec.repository,
    }


def version_text(config: Config, spec: ImageSpec, *ends: str) -> str:
    """A version of an image: its axes but the platform, except defaults, then `ends`."""
    source = spec.source.name if spec.source.name != config.defaults.source else ""
    base = spec.base.name if spec.base.name != spec.cuda.base else ""
    words = (spec.torch, spec.arch_name, source, spec.variant.name, base, spec.compat_word, *ends)
    return "-".join(word for word in words if word)


def short(config: Config, spec: ImageSpec) -> str:
    """The shortest tag: "sm120", "sm120-devel" with a value that is not a default, or "latest".

    With NVIDIA's compat library it is "compat", or ends in "-compat"; then in "-arm64" for
    linux/arm64. It is "latest" for each image of a user's own.
    """
    if spec.own:
        return LATEST + spec.platform.suffix
    values = (
        (spec.arch_name, ""),
        (spec.source.name, config.defaults.source),
        (spec.variant.name, config.defaults.variant),
        (spec.base.name, spec.cuda.base),
        (spec.compat_word, ""),
    )
    tag = "-".join(name for name, default in values if name != default)
    return (tag or LATEST) + spec.platform.suffix
