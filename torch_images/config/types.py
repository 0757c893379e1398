"""The types of images.yaml: what a person decides about the images, frozen. See load.py."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from torch_images.arch import Capability

AXES = ("cuda", "arch", "source", "base", "variant")
COMPAT_MODES = ("auto", "required", "off")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """An architecture that images are built for, with its GPUs, those called GeForce apart."""

    capability: Capability
    family: str
    gpus: tuple[str, ...]
    geforce: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name that users type, such as "12.0"."""
        return str(self.capability)

    @property
    def examples(self) -> tuple[str, ...]:
        """Some of its GPUs, the best known."""
        return (*self.geforce[:2], *self.gpus[: 2 if self.geforce else 3])


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A published torch wheel: its exact version and what it was built with."""

    torch: str
    features: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Cuda:
    """A CUDA version; `targets` is what its compiler can produce code for.

    From driver branch `floor` on it runs by minor version compatibility, from `driver` on natively.
    Its compiler comes from wheels, `toolkit` as requirements, or from the `archives` of a `release`
    of NVIDIA's, where no wheels have it. `nvcc_flags` are for compiling torch. `compat` are the
    older driver branches that NVIDIA's compat library for it is made for.
    """

    version: str
    driver: str
    floor: str
    targets: tuple[Capability, ...]
    wheel: Wheel
    toolkit: tuple[str, ...] = ()
    release: str = ""
    archives: tuple[str, ...] = ()
    nvcc_flags: str = ""
    compat: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The name that users type, such as "13.0"."""
        return self.version

    @property
    def short(self) -> str:
        """The name without dot that tags use, such as "cu130"."""
        return "cu" + self.version.replace(".", "")

    @property
    def repository(self) -> str:
        """The name of its images without registry and tag, such as "torch-cu130"."""
        return f"torch-{self.short}"


@dataclass(frozen=True, kw_only=True)
class Compat:
    """Where NVIDIA's compat packages come from: a flat apt repository and the key that signs it.

    `mode` is one of COMPAT_MODES, for builds that are not told otherwise.
    """

    mode: str
    repository: str
    key: str


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A source tree at one commit, and the version that its files say."""

    repository: str
    commit: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A part of torch: `option` of its build switches it, "" where none does.

    One with `arch` is there only in builds for that architecture.
    """

    name: str
    option: str = ""
    arch: Capability | None = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where torch and Triton come from; `torch` and `triton` are set for one that is compiled.

    `packages` and `wheels` are what compiling needs beside the image's own, `options` what its
    build is told, `features` what it must have, and `without` what it must not. `root` is the
    source whose locks it shares: its own name, or that of the one it is like.
    """

    name: str
    description: str
    torch: Tree | None = None
    triton: Tree | None = None
    packages: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()
    torch_options: tuple[tuple[str, str], ...] = ()
    triton_options: tuple[tuple[str, str], ...] = ()
    features: tuple[Feature, ...] = ()
    without: tuple[Feature, ...] = ()
    root: str = ""

    @property
    def build(self) -> str:
        """Identifies what its builds are told: SHA-256, in hexadecimal."""
        told = (self.torch_options, self.triton_options, self.features, self.without)
        return hashlib.sha256(repr(told).encode()).hexdigest()

    @property
    def compiled(self) -> bool:
        """Whether torch is compiled rather than taken as published."""
        return self.torch is not None


@dataclass(frozen=True, kw_only=True)
class Base:
    """What images start from: a Debian `suite` to bootstrap, or an image per CUDA version.

    `system` is distribution and codename, as its os-release file says them. `mirror` is the root of
    the archive that has the packages to add to an image, `snapshot` that of one which keeps old
    ones; "" where there is none.
    """

    name: str
    description: str
    python: str
    system: str
    packages: tuple[str, ...]
    suite: str = ""
    images: tuple[tuple[str, str], ...] = ()
    mirror: str = ""
    snapshot: str = ""

    def image(self, cuda: str) -> str:
        """The image, by tag, for a CUDA version; "" for a base that is bootstrapped."""
        return dict(self.images).get(cuda, "")


@dataclass(frozen=True, kw_only=True)
class Extra:
    """Wheels that variants can add, as requirements by CUDA version; () where images go without.

    They are compiled for one release of torch per CUDA version (`torch`, () where any will do) and
    have code for `arches` only, if there are any. `replaces` are packages of the plain image that
    they need in another version. They are installed, or unpacked to a folder without what they
    require, with `links` there by name. `conflicts` pairs other extras with reasons.
    """

    name: str
    description: str
    wheels: tuple[tuple[str, tuple[str, ...]], ...]
    torch: tuple[tuple[str, str], ...] = ()
    arches: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    unpack: str = ""
    links: tuple[tuple[str, str], ...] = ()
    conflicts: tuple[tuple[str, str], ...] = ()

    def requirements(self, cuda: Cuda) -> tuple[str, ...]:
        """What it asks for with a CUDA version."""
        return dict(self.wheels).get(cuda.version, ())

    def refusal(self, cuda: Cuda, torch: str, arches: tuple[str, ...] = ()) -> str | None:
        """Why an image cannot have it; None if it can."""
        if cuda.version not in dict(self.wheels):
            return f"{self.name} has no wheels for CUDA {cuda.version}"
        wanted = dict(self.torch).get(cuda.version, torch)
        if wanted != torch:
            return f"{self.name} is compiled for torch {wanted}, the image has {torch}"
        lacking = [a for a in arches if self.arches and a not in self.arches]
        if lacking:
            return f"the wheels of {self.name} have code for {', '.join(self.arches)} only"
        return None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What an image holds beside torch: Debian packages, wheels as requirements, and extras.

    `cuda_home` is where it has CUDA's toolkit, "" for one without. `command` is what its containers
    run, in `folder`, with `ports` for others to reach.
    """

    name: str
    description: str
    packages: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()
    extras: tuple[Extra, ...] = ()
    cuda_home: str = ""
    command: str = "torch-info"
    folder: str = ""
    ports: tuple[int, ...] = ()

    @property
    def adds(self) -> bool:
        """Whether it has anything that the plain image has not."""
        return bool(self.packages or self.wheels or self.extras or self.cuda_home)

    @property
    def replaces(self) -> tuple[str, ...]:
        """The packages of the plain image that it needs in another version."""
        return tuple(sorted({name for extra in self.extras for name in extra.replaces}))

    @property
    def unpacked(self) -> tuple[Extra, ...]:
        """The extras that are unpacked rather than installed, as the names of their locks sort."""
        found = (extra for extra in self.extras if extra.unpack)
        return tuple(sorted(found, key=lambda extra: f"{extra.name}-cu"))


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What images go without, of one or more wheels, and why; with `prune` only pruned ones do.

    `files` are globs below site-packages whose files are left out. `code` and `symbols` are those
    of libraries that lose machine code for architectures which the image is not for, and the tables
    for debuggers.
    """

    wheels: tuple[str, ...]
    reason: str
    files: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    prune: bool = False


@dataclass(frozen=True, kw_only=True)
class Exclude:
    """Combinations that are not built: those equal on every axis that is not None."""

    reason: str
    cuda: str | None = None
    arch: str | None = None
    source: str | None = None
    base: str | None = None
    variant: str | None = None

    def matches(self, **image: str) -> bool:
        """Whether an image with these values of the axes is excluded."""
        return all(getattr(self, axis) in (None, image[axis]) for axis in AXES)


@dataclass(frozen=True, kw_only=True)
class Pods:
    """What a pod template says beside the image; sizes in GB.

    `hosts` pairs the CUDA version that a machine reports with its driver branch, oldest first.
    """

    api: str
    readme_api: str
    variant: str
    args: str
    ports: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    room: int
    volume: int
    volume_path: str
    hosts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """The value of each axis that a user does not name."""

    cuda: str
    arch: str
    source: str
    base: str
    variant: str


@dataclass(frozen=True, kw_only=True)
class Config:
    """All of images.yaml; `archives` is the root of NVIDIA's archives of CUDA."""

    registry: str
    owner: str
    homepage: str
    defaults: Defaults
    architectures: tuple[Architecture, ...]
    cudas: tuple[Cuda, ...]
    archives: str
    compat: Compat
    sources: tuple[Source, ...]
    packages: tuple[str, ...]
    bases: tuple[Base, ...]
    extras: tuple[Extra, ...]
    variants: tuple[Variant, ...]
    pods: Pods
    removals: tuple[Removal, ...]
    excludes: tuple[Exclude, ...]

    def names(self, axis: str) -> tuple[str, ...]:
        """The values that an axis can take, in the order of the file."""
        return {
            "cuda": tuple(c.version for c in self.cudas),
            "arch": tuple(a.name for a in self.architectures),
            "source": tuple(s.name for s in self.sources),
            "base": tuple(b.name for b in self.bases),
            "variant": tuple(v.name for v in self.variants),
        }[axis]

    def excluded(self, **image: str) -> str | None:
        """The reason why an image with these values of the axes is not built, if it is not."""
        return next((x.reason for x in self.excludes if x.matches(**image)), None)


def target_range(cuda: Cuda) -> str:
    """What a CUDA version can target, in words for a message."""
    return f"its compiler goes from {min(cuda.targets)} to {max(cuda.targets)}"
