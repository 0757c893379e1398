"""Which lock files there are, and what each is asked to hold.

There is one file for each set of inputs: the wheels of a CUDA version, the packages of a base, the
trees of a source, the programs that build. `invoke lock` writes them. A build takes all its inputs
from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from torch_images.config.matrix import ImageSpec, matrix
from torch_images.config.types import Base, Compat, Config, Cuda, Source
from torch_images.errors import UsageError, suggest

# Programs that builds and checks use: what is asked for, by the name of the lock. What the images
# hold depends on the first two, so their locks count among an image's inputs.
TOOLS = {
    "tools-build": ("uv",),
    "tools-sbom": ("cyclonedx-python-lib", "python-debian"),
    "tools-verify": ("pytest",),
}
_TOOLS_PYTHON = "3.11"


@dataclass(frozen=True, kw_only=True)
class LockRequest:
    """One lock file: its name, and what it is asked to hold.

    `name`: the file's name without suffix, such as "wheel-cu130-py311".
    `request`: what is asked for, sorted and without blanks: requirements, or names of packages.
    At most one of these four is set; if none is, the lock holds wheels:
    `base`: the packages of a base; with `image`, they are added to that image with its tag.
    `compat`: one of NVIDIA's compat packages.
    `source`: the trees of a source.
    `cuda`: the archives of a compiler, below the root URL `archives`.
    Of wheels:
    `python`: the version of Python they are for, such as "3.11".
    `within`: the name of another lock; its wheels keep the versions that they have there, except
        those that `replaces` names. "" for none.
    `alone`: whether to leave out what the wheels themselves require.
    """

    name: str
    request: tuple[str, ...]
    python: str = ""
    base: Base | None = None
    image: str = ""
    compat: Compat | None = None
    source: Source | None = None
    cuda: Cuda | None = None
    archives: str = ""
    within: str = ""
    replaces: tuple[str, ...] = ()
    alone: bool = False

    @property
    def by_apt(self) -> bool:
        """Whether apt resolves it in an empty root file system, which mmdebstrap makes."""
        return bool(self.compat or (self.base and self.base.suite))

    def path(self, folder: Path) -> Path:
        """The file, in the folder of all locks."""
        return folder / f"{self.name}.txt"


def wheel_input(config: Config, spec: ImageSpec) -> LockRequest:
    """The lock of an image's wheels.

    It is the same for a source that is compiled: such an image has the CUDA libraries of the
    published torch, and shares their layers.
    """
    python = spec.base.python
    return LockRequest(
        name=f"wheel-{spec.cuda.short}-py{python.replace('.', '')}",
        request=_request((f"torch=={spec.cuda.wheel.torch}", *config.packages)),
        python=python,
    )


def base_input(base: Base, cuda: Cuda) -> LockRequest:
    """The lock of an image's base."""
    image = base.image(cuda.version)
    name = f"base-{base.name}-{cuda.short}" if image else f"base-{base.name}"
    return LockRequest(name=name, request=_request(base.packages), base=base, image=image)


def variant_inputs(
    config: Config, spec: ImageSpec
) -> tuple[LockRequest | None, LockRequest | None]:
    """The locks of the wheels and of the packages that a variant adds; None where it adds none.

    Each also holds all that the plain image has, so that the whole is resolved together. A build
    takes from it only what the locks of the plain image do not have.
    """
    variant, base = spec.variant, spec.base
    plain, debs = wheel_input(config, spec), base_input(base, spec.cuda)
    toolkit = spec.cuda.toolkit if variant.cuda_home else ()
    extras = (x for x in variant.extras if not x.unpack)
    wheels = (*variant.wheels, *(r for x in extras for r in x.requirements(spec.cuda)))
    wider = replace(base, packages=(*base.packages, *variant.packages))
    more_wheels = replace(
        plain,
        name=f"{plain.name}-{variant.name}",
        request=_request((*plain.request, *wheels, *toolkit)),
        within=plain.name,
        replaces=variant.replaces,
    )
    more_debs = replace(
        debs,
        name=f"{debs.name}-{variant.name}",
        request=_request(wider.packages),
        base=wider,
    )
    return more_wheels if wheels or toolkit else None, more_debs if variant.packages else None


def unpacked_inputs(spec: ImageSpec) -> tuple[LockRequest, ...]:
    """The locks of the extras that are unpacked, one each, in the order of their names."""
    python = spec.base.python
    return tuple(
        LockRequest(
            name=f"unpacked-{extra.name}-{spec.cuda.short}-py{python.replace('.', '')}",
            request=_request(extra.requirements(spec.cuda)),
            python=python,
            alone=True,
        )
        for extra in spec.variant.unpacked
    )


def tools_inputs(config: Config, spec: ImageSpec) -> tuple[LockRequest | None, LockRequest | None]:
    """The locks of what compiles a source: wheels and packages; None for published wheels.

    Each also holds all that the plain image has, as the locks of a variant do.
    """
    source, base = spec.source, spec.base
    if not source.compiled:
        return None, None
    plain, debs = wheel_input(config, spec), base_input(base, spec.cuda)
    wider = replace(base, packages=(*base.packages, *source.packages))
    return (
        replace(
            plain,
            name=f"build-{source.root}-{plain.name.removeprefix('wheel-')}",
            request=_request((*plain.request, *source.wheels, *spec.cuda.toolkit)),
        ),
        replace(
            debs,
            name=f"build-{source.root}-{base.name}",
            request=_request(wider.packages),
            base=wider,
        ),
    )


def source_input(spec: ImageSpec) -> LockRequest | None:
    """The lock of the trees that are compiled; None for published wheels."""
    source = spec.source
    trees = (("torch", source.torch), ("triton", source.triton))
    words = tuple(f"{name}@{tree.commit}" for name, tree in trees if tree)
    if not words:
        return None
    return LockRequest(name=f"source-{source.root}", request=_request(words), source=source)


def toolkit_input(config: Config, spec: ImageSpec) -> LockRequest | None:
    """The lock of NVIDIA's compiler; None where none is needed, or it comes as wheels."""
    cuda = spec.cuda
    if not cuda.archives or not (spec.variant.cuda_home or spec.source.compiled):
        return None
    words = (f"cuda=={cuda.release}", *cuda.archives)
    return LockRequest(
        name=f"toolkit-{cuda.short}", request=_request(words), cuda=cuda, archives=config.archives
    )


def compat_input(config: Config, cuda: Cuda) -> LockRequest:
    """The lock of a CUDA version's compat package."""
    package = f"cuda-compat-{cuda.version.replace('.', '-')}"
    return LockRequest(name=f"compat-{cuda.short}", request=(package,), compat=config.compat)


def tool_input(name: str) -> LockRequest:
    """The lock of a set of tools."""
    return LockRequest(name=name, request=_request(TOOLS[name]), python=_TOOLS_PYTHON)


def image_inputs(config: Config, spec: ImageSpec) -> tuple[LockRequest, ...]:
    """Every lock file that an image needs, but for those of the tools."""
    items = (
        wheel_input(config, spec),
        base_input(spec.base, spec.cuda),
        compat_input(config, spec.cuda),
        *variant_inputs(config, spec),
        *unpacked_inputs(spec),
        *tools_inputs(config, spec),
        source_input(spec),
        toolkit_input(config, spec),
    )
    return tuple(item for item in items if item)


def inputs(config: Config, pattern: str = "*") -> tuple[LockRequest, ...]:
    """Every lock file that the matrix needs whose name matches a glob.

    Raises UsageError if none does.
    """
    requests = {item.name: item for spec in matrix(config) for item in image_inputs(config, spec)}
    requests |= {name: tool_input(name) for name in TOOLS}
    chosen = tuple(requests[name] for name in sorted(requests) if fnmatchcase(name, pattern))
    if not chosen:
        raise UsageError(f"no lock matches '{pattern}'", suggest(pattern, sorted(requests)))
    return chosen


def _request(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted("".join(word.split()) for word in words))
