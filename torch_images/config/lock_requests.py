"""The lock files, and the inputs that each must contain.

There is one file for each set of inputs: the wheels of a CUDA version, the packages of a base, the
trees of a source, the programs for builds. `invoke lock` writes them. A build takes all its inputs
from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch_images.config.choose import choose
from torch_images.config.image import ImageSpec
from torch_images.config.indexes import Index
from torch_images.config.matrix import matrix
from torch_images.config.types import Base, Compat, Config, Cuda, Source
from torch_images.platforms import AMD64, Platform

# Programs for builds and checks: the requested packages by the name of the lock. `tools-build` and
# `tools-sbom` affect the content of images, so these locks are inputs of images. `tools-standalone`
# fetches and unpacks wheels in a standalone build. `tools-code` lists the machine code of an image
# for another platform.
TOOLS = {
    "tools-build": ("uv",),
    "tools-code": ("nvidia-cuda-cuobjdump",),
    "tools-sbom": ("cyclonedx-python-lib", "python-debian"),
    "tools-standalone": ("installer", "packaging", "pip"),
    "tools-verify": ("pytest",),
}
# Programs for one platform: the image's, or for `tools-code` this machine's.
_NATIVE_TOOLS = ("tools-build", "tools-code")
_TOOLS_PYTHON = "3.11"


@dataclass(frozen=True, kw_only=True)
class LockRequest:
    """One lock file: its name, and its requested content.

    `name`: the file's name without suffix, such as "wheel-cu130-torch2.14.1-py313".
    `request`: requirements or names of packages, sorted and without blanks.
    `platform`: of the wheels or packages. The name has its suffix, before a variant.
    """

    name: str
    request: tuple[str, ...]
    platform: Platform = AMD64

    def path(self, folder: Path) -> Path:
        """The file, in the folder of all locks."""
        return folder / f"{self.name}.json"


@dataclass(frozen=True, kw_only=True)
class WheelRequest(LockRequest):
    """Wheels.

    `python`: the version of Python they are for, such as "3.11".
    `within`: the name of another lock; its wheels keep their versions, except those in `replaces`.
        "" for none.
    `beside`: requirements that other locks add; the versions here must fit them too.
    `overrides`: versions that replace those that other wheels require.
    `alone`: whether to leave out the requirements of the wheels themselves.
    `runtime`: the CUDA version that torch among them must require, such as "13.0"; "" for any.
    `index`: the index of the release of torch among them; None for the main one.
    """

    python: str
    within: str = ""
    replaces: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    alone: bool = False
    runtime: str = ""
    index: Index | None = None


@dataclass(frozen=True, kw_only=True)
class FactsRequest(LockRequest):
    """The facts of a release of torch for a CUDA version, whose wheel is in the lock `within`."""

    cuda: Cuda
    python: str
    within: str
    index: Index | None = None


@dataclass(frozen=True, kw_only=True)
class BaseRequest(LockRequest):
    """The packages of a base."""

    base: Base


@dataclass(frozen=True, kw_only=True)
class CompatRequest(LockRequest):
    """One of NVIDIA's compat packages."""

    compat: Compat


@dataclass(frozen=True, kw_only=True)
class SourceRequest(LockRequest):
    """What a build compiles: the trees of a source, or the distributions of a variant's extras."""

    source: Source


@dataclass(frozen=True, kw_only=True)
class ToolkitRequest(LockRequest):
    """The archives of a compiler, below the root URL `archives`."""

    cuda: Cuda
    archives: str


def wheel_input(config: Config, spec: ImageSpec) -> WheelRequest:
    """The lock of an image's wheels.

    A compiled source uses the same lock, unless it overrides a version: its images have the CUDA
    libraries of the published torch, and share their layers.
    """
    python, overrides = spec.base.python, spec.source.overrides
    own = f"-{spec.source.name}" if overrides else ""
    return WheelRequest(
        name=f"wheel-{_release_name(spec)}{own}",
        platform=spec.platform,
        request=_request((f"torch=={spec.release.version}", *config.packages, *overrides)),
        python=python,
        overrides=overrides,
        beside=_toolkit(spec.cuda),
        runtime=spec.cuda.version,
        index=spec.cuda.index(spec.release.version),
    )


def facts_input(config: Config, spec: ImageSpec) -> FactsRequest:
    """The facts of an image's release of torch."""
    torch = spec.release.version
    return FactsRequest(
        name=f"release-{_release_name(spec)}",
        platform=spec.platform,
        request=(f"torch=={torch}",),
        python=spec.base.python,
        cuda=spec.cuda,
        within=wheel_input(config, spec).name,
        index=spec.cuda.index(torch),
    )


def locked_images(config: Config) -> tuple[ImageSpec, ...]:
    """The images whose inputs `invoke lock` keeps.

    These are the catalogue's images, and the default image of each compiled source. Any other image
    can be locked by its identifier.
    """
    compiled = (
        choose(config, cuda=cuda, source=source.name, platform=AMD64.name)
        for source in config.sources
        for cuda, _ in source.beside
        if source.compiled and not config.excluded(cuda=cuda, source=source.name)
    )
    return (*matrix(config), *compiled)


def base_input(spec: ImageSpec) -> BaseRequest:
    """The lock of an image's base."""
    base, platform = spec.base, spec.platform
    return BaseRequest(
        name=f"base-{base.name}{platform.suffix}",
        request=_request(base.packages),
        platform=platform,
        base=base,
    )


def variant_inputs(
    config: Config, spec: ImageSpec
) -> tuple[WheelRequest | None, BaseRequest | None]:
    """The locks of the wheels and of the packages that a variant adds; None if it adds none.

    Each also contains everything of the plain image, so that all is resolved together. A build uses
    only the inputs that the locks of the plain image lack.
    """
    variant, base = spec.variant, spec.base
    plain, debs = wheel_input(config, spec), base_input(spec)
    toolkit = _toolkit(spec.cuda) if variant.cuda_home else ()
    extras = (x for x in variant.extras if not x.unpack)
    version, torch = spec.cuda.version, spec.release.version
    wheels = (*variant.wheels, *(r for x in extras for r in x.requirements(version, torch)))
    more_wheels = replace(
        plain,
        name=f"{plain.name}-{variant.name}",
        request=_request((*plain.request, *wheels, *toolkit)),
        within=plain.name,
        replaces=variant.replaces,
        beside=(),
    )
    more_debs = _wider(debs, f"{debs.name}-{variant.name}", base, variant.packages)
    return more_wheels if wheels or toolkit else None, more_debs if variant.packages else None


def _wider(debs: BaseRequest, name: str, base: Base, packages: tuple[str, ...]) -> BaseRequest:
    """The lock of a base's packages and of additional ones."""
    wider = replace(base, packages=(*base.packages, *packages))
    return replace(debs, name=name, request=_request(wider.packages), base=wider)


def own_debs_input(spec: ImageSpec) -> BaseRequest:
    """The packages of an image together with those of the user's project."""
    own = spec.own.packages if spec.own else ()
    return _wider(base_input(spec), "own-debs", spec.base, (*spec.variant.packages, *own))


def unpacked_inputs(spec: ImageSpec) -> tuple[WheelRequest, ...]:
    """The locks of the extras that are unpacked, one each, sorted by name."""
    python = spec.base.python
    return tuple(
        WheelRequest(
            name=f"unpacked-{extra.name}-{spec.cuda.short}-py{python.replace('.', '')}"
            f"{spec.platform.suffix}",
            platform=spec.platform,
            request=_request(extra.requirements(spec.cuda.version, spec.release.version)),
            python=python,
            alone=True,
        )
        for extra in spec.variant.unpacked
    )


def tools_inputs(config: Config, spec: ImageSpec) -> tuple[WheelRequest | None, BaseRequest | None]:
    """The locks of the wheels and packages for compiling; None for an image that compiles nothing.

    Each also contains everything of the plain image, like the locks of a variant.
    """
    source, base = spec.source, spec.base
    if not spec.compiles:
        return None, None
    plain, debs = wheel_input(config, spec), base_input(spec)
    wheels = (*plain.request, *source.wheels, *_toolkit(spec.cuda))
    name = f"build-{source.name}-{_release_name(spec)}"
    debs_name = f"build-{source.name}-{base.name}{spec.platform.suffix}"
    return (
        replace(plain, name=name, request=_request(wheels), beside=()),
        _wider(debs, debs_name, base, source.packages),
    )


def source_input(spec: ImageSpec) -> SourceRequest | None:
    """The lock of what is compiled; None if nothing is."""
    source, extras = spec.source, spec.variant.sources
    trees = (("torch", source.torch), ("triton", source.triton))
    words = tuple(f"{name}@{tree.commit}" for name, tree in trees if tree)
    if not spec.compiles:
        return None
    return SourceRequest(
        name=f"source-{spec.variant.name if extras else source.name}",
        request=_request((*words, *(extra.source for extra in extras))),
        source=source,
    )


def toolkit_input(config: Config, spec: ImageSpec) -> ToolkitRequest | None:
    """The lock of NVIDIA's compiler; None if none is needed, or it comes as wheels."""
    cuda = spec.cuda
    if not cuda.archives or not (spec.variant.cuda_home or spec.compiles):
        return None
    words = (f"cuda=={cuda.release}", *cuda.archives)
    return ToolkitRequest(
        name=f"toolkit-{cuda.short}{spec.platform.suffix}",
        request=_request(words),
        platform=spec.platform,
        cuda=cuda,
        archives=config.archives,
    )


def compat_input(config: Config, cuda: Cuda, platform: Platform = AMD64) -> CompatRequest | None:
    """The lock of a CUDA version's compat package; None for a platform without a repository."""
    if platform.name not in dict(config.compat.repositories):
        return None
    package = f"cuda-compat-{cuda.version.replace('.', '-')}"
    return CompatRequest(
        name=f"compat-{cuda.short}{platform.suffix}",
        request=(package,),
        platform=platform,
        compat=config.compat,
    )


def tool_input(name: str, platform: Platform = AMD64) -> WheelRequest:
    """The lock of a set of tools. Pure Python tools have one lock for all platforms."""
    if name not in _NATIVE_TOOLS:
        platform = AMD64
    return WheelRequest(
        name=name + platform.suffix,
        request=_request(TOOLS[name]),
        platform=platform,
        python=_TOOLS_PYTHON,
    )


def image_inputs(config: Config, spec: ImageSpec) -> tuple[LockRequest, ...]:
    """Every lock file that an image needs, except those of the tools."""
    items = (
        wheel_input(config, spec),
        facts_input(config, spec),
        base_input(spec),
        compat_input(config, spec.cuda, spec.platform) if spec.compat else None,
        *variant_inputs(config, spec),
        *unpacked_inputs(spec),
        *tools_inputs(config, spec),
        source_input(spec),
        toolkit_input(config, spec),
    )
    return tuple(item for item in items if item)


def _release_name(spec: ImageSpec) -> str:
    python = f"py{spec.base.python.replace('.', '')}"
    return f"{spec.cuda.short}-torch{spec.release.version}-{python}{spec.platform.suffix}"


def _toolkit(cuda: Cuda) -> tuple[str, ...]:
    """The requirement of the wheels of CUDA's compiler; torch requires their version."""
    return (f"cuda-toolkit[{','.join(cuda.toolkit)}]",) if cuda.toolkit else ()


def _request(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted("".join(word.split()) for word in words))
