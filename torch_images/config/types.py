"""The types of images.yaml: what a person decides about the images. parse.py fills them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torch_images.arch import Capability
from torch_images.config.extras import Extra, Variant
from torch_images.config.indexes import Index
from torch_images.config.release import Facts, Release
from torch_images.platforms import AMD64, Platform

AXES = ("cuda", "torch", "arch", "source", "base", "variant", "platform")
COMPAT_MODES = ("auto", "required", "off")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """An architecture that images are built for.

    `capability`: its compute capability, such as 12.0.
    `family`: NVIDIA's name for it, such as "Blackwell".
    `gpus`, `geforce`: models in the words of nvidia-smi, without "NVIDIA" and "GeForce", the best
        known first. Those sold as GeForce are apart, because compat libraries do not run on them.
    """

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
        """Two to four of its best known GPUs."""
        return (*self.geforce[:2], *self.gpus[: 2 if self.geforce else 3])


@dataclass(frozen=True, kw_only=True)
class OtherGpus:
    """GPUs of a compute capability that no image is built for, by the names of `Architecture`."""

    capability: Capability
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Cuda:
    """A CUDA version.

    `version`: major and minor, such as "13.0".
    `driver`: the oldest Linux driver that runs it natively, such as "580.65.06".
    `floor`: the oldest driver branch that runs it by minor version compatibility, such as "580".
    `targets`: what its compiler can produce code for.
    `torch`: the releases of torch whose published wheels are for it, the oldest first.
    `indexes`: the package indexes that have those of them that the main one lacks.
    `toolkit`: the parts of its compiler, such as "nvcc": extras of the package cuda-toolkit, whose
        version torch requires; () if no wheels have it.
    `release`, `archives`: then NVIDIA's release, such as "12.8.1", and the names of its archives
        that have the compiler.
    `nvcc_flags`: flags for compiling torch, such as "-compress-mode=size".
    `compat`: the older driver branches that NVIDIA's compat library for it is made for.
    `base`: the name of the base that its images start from if nobody names another.
    """

    version: str
    driver: str
    floor: str
    targets: tuple[Capability, ...]
    torch: tuple[str, ...]
    base: str
    indexes: tuple[Index, ...] = ()
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
    def older_branch(self) -> str:
        """The branch from which minor version compatibility helps; "" if it is the driver's own."""
        return "" if self.driver.startswith(f"{self.floor}.") else self.floor

    @property
    def short(self) -> str:
        """The name without dot that tags use, such as "cu130"."""
        return "cu" + self.version.replace(".", "")

    @property
    def repository(self) -> str:
        """The name of its images without registry and tag, such as "torch-cu130"."""
        return f"torch-{self.short}"

    def index(self, torch: str) -> Index | None:
        """The index that has a release of torch; None for the main one."""
        return next((index for index in self.indexes if torch in index.torch), None)


@dataclass(frozen=True, kw_only=True)
class Compat:
    """Where NVIDIA's compat packages come from.

    `mode`: one of COMPAT_MODES, for builds that are not told another one.
    `repositories`: platform and URL of a flat apt repository, in pairs.
    `key`: the fingerprint of the key that signs it, 40 upper-case hexadecimal digits.
    """

    mode: str
    repositories: tuple[tuple[str, str], ...]
    key: str

    def repository(self, platform: Platform) -> str:
        """The URL of the repository for a platform. Raises KeyError for one without."""
        return dict(self.repositories)[platform.name]


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A source tree.

    `repository`: the URL of its git repository.
    `commit`: 40 hexadecimal digits.
    `version`: what the tree's own files say, such as "2.12.0a0".
    """

    repository: str
    commit: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A part of torch that a build can have or lack.

    `name`: such as "cudnn".
    `option`: the option of torch's build that switches it, such as "USE_CUDNN"; "" if none does.
    `arch`: the architecture that a build must be for to have it; None for any.
    `needs`: the folder of the tree that it is compiled from, such as "third_party/fbgemm"; "" where
        the system may have it instead.
    """

    name: str
    option: str = ""
    arch: Capability | None = None
    needs: str = ""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where torch and Triton come from.

    `name`, `description`: such as "fork", and a sentence for people.
    `torch`, `triton`: the trees that are compiled; None for a published wheel. Triton may be the
        published one beside a torch that is compiled.
    `packages`: Debian packages that compiling needs beside the image's own.
    `wheels`: requirements of wheels that compiling needs. The image gets neither of both.
    `torch_options`, `triton_options`: name and value of each option that the builds are told.
    `features`: what a compiled torch must have; `without`: what its build switches off.
    `root`: the name of the source whose locks it shares: its own, or that of the one it is `like`.
    `beside`: CUDA version and published release of torch, in pairs. A compiled torch has the CUDA
        libraries of that release. A CUDA version that is not listed is not compiled for.
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
    beside: tuple[tuple[str, str], ...] = ()

    @property
    def build(self) -> str:
        """SHA-256, in hexadecimal, of the options and features that its builds are told."""
        told = (self.torch_options, self.triton_options, self.features, self.without)
        return hashlib.sha256(repr(told).encode()).hexdigest()

    @property
    def compiled(self) -> bool:
        """Whether torch is compiled rather than taken as published."""
        return self.torch is not None


@dataclass(frozen=True, kw_only=True)
class Base:
    """What images start from: a Debian suite to bootstrap, or an image for each CUDA version.

    `name`, `description`: such as "bookworm", and a sentence for people.
    `python`: the version of its Python, such as "3.11".
    `system`: distribution and codename as its os-release file has them, such as "debian bookworm".
    `packages`: names of the packages that it is made of, or that are added to the image.
    `suite`: the suite to bootstrap, such as "bookworm"; "" for a base that is an image.
    `images`: CUDA version and image with tag, in pairs; () for a base that is bootstrapped.
    `mirror`: the root of the archive with the packages to add to an image; "" for none.
    `snapshot`: the root of an archive that keeps old packages; "" for none.
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
        """The image with its tag for a version such as "13.0"; "" if the base is bootstrapped."""
        return dict(self.images).get(cuda, "")


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What images leave out of one or more wheels.

    `wheels`: their normalised names.
    `reason`: why, for people.
    `files`: globs below site-packages; the files that match are left out.
    `code`: globs of libraries that lose machine code for architectures the image is not for.
    `symbols`: globs of libraries that lose their tables for debuggers.
    `lists`: globs of libraries with the list of architectures that torch says it was compiled for,
        which is then made true.
    `narrowed`: whether only images for named architectures leave it out.
    `cuda`: the CUDA versions whose wheels have it; () for all.
    `platforms`: the platforms whose wheels have it; () for all.
    """

    wheels: tuple[str, ...]
    reason: str
    files: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    narrowed: bool = False
    cuda: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()

    def applies(self, cuda: str, platform: Platform, *, narrowed: bool) -> bool:
        """Whether images for a CUDA version and a platform leave it out."""
        return (
            (narrowed or not self.narrowed)
            and (not self.cuda or cuda in self.cuda)
            and (not self.platforms or platform.name in self.platforms)
        )


@dataclass(frozen=True, kw_only=True)
class Exclude:
    """Combinations that are not built: those that are equal on every axis that is not None.

    `reason` is the sentence that a user is shown. Each other field is a value of the axis of its
    name, such as "12.8"; None stands for all values.
    """

    reason: str
    cuda: str | None = None
    torch: str | None = None
    arch: str | None = None
    source: str | None = None
    base: str | None = None
    variant: str | None = None
    platform: str | None = None

    @cached_property
    def named(self) -> tuple[tuple[str, str], ...]:
        """The axes that it names, each with its value."""
        values = ((axis, getattr(self, axis)) for axis in AXES)
        return tuple((axis, value) for axis, value in values if value is not None)

    def matches(self, image: Mapping[str, str]) -> bool:
        """Whether every image with these values of axes is excluded, whatever the others are."""
        # A loop: this runs for every image of every matrix, and a generator takes twice as long.
        for axis, value in self.named:  # noqa: SIM110
            if image.get(axis) != value:
                return False
        return True


@dataclass(frozen=True, kw_only=True)
class Pods:
    """What a template for RunPod says beside the image.

    `api`, `readme_api`: URLs of RunPod's two APIs; the second sets a template's readme.
    `variant`: the variant of the image.
    `args`: arguments for the container, as a shell reads them; "" for none.
    `ports`: port and protocol, such as "8888/http".
    `environment`: name and value of each variable.
    `room`: GB of disk beside the image.
    `volume`, `volume_path`: GB of the volume, and where it is mounted.
    `hosts`: a CUDA version that machines report and their driver branch, in pairs, oldest first.
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
    """The value of each axis that a user does not name.

    The release of torch is then the newest, the base that of the CUDA version, the platform this
    machine's own, and without an architecture an image serves all that its torch does.
    """

    cuda: str
    source: str
    variant: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the catalogue: images of the project, each combination of values of its axes.

    `values`: an axis such as "variant", and its values, in pairs. An axis that is not named has its
        default, the platform the first one. The value "each" stands for every release of torch, or
        for every architecture in an image of its own.
    `where`: file and line, for messages.
    """

    values: tuple[tuple[str, tuple[str, ...]], ...]
    where: str


@dataclass(frozen=True, kw_only=True)
class Config:
    """All of images.yaml.

    `registry`, `owner`: where images are published, such as "ghcr.io" and "torch-images".
    `homepage`: the URL that images name in their labels.
    `archives`: the root URL of NVIDIA's archives of CUDA.
    `packages`: requirements of the Python packages that each image has beside torch.
    `keep`: of how many minor versions of torch a CUDA version keeps a release, see
        fetch/upgrade.py.
    `arm64_gpus`: the names of GPUs that only hosts with Arm processors have.
    `platforms`: what images are for.
    `facts`: what `invoke lock` found out about releases of torch; no section of the file.
    The other fields are the sections of the file, in its order.
    """

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
    keep: int
    catalogue: tuple[Row, ...] = ()
    other_gpus: tuple[OtherGpus, ...] = ()
    arm64_gpus: tuple[str, ...] = ()
    platforms: tuple[Platform, ...] = (AMD64,)
    facts: tuple[Facts, ...] = ()

    def names(self, axis: str) -> tuple[str, ...]:
        """The values of an axis, in the order of the file. Raises KeyError for another axis."""
        return {
            "cuda": tuple(c.version for c in self.cudas),
            "torch": tuple(dict.fromkeys(t for c in self.cudas for t in c.torch)),
            "arch": tuple(a.name for a in self.architectures),
            "source": tuple(s.name for s in self.sources),
            "base": tuple(b.name for b in self.bases),
            "variant": tuple(v.name for v in self.variants),
            "platform": tuple(p.name for p in self.platforms),
        }[axis]

    def release(self, cuda: Cuda, torch: str, base: Base, platform: Platform = AMD64) -> Release:
        """A release of torch for a CUDA version, the Python of a base and a platform.

        It has the facts that are known of it.
        """
        key = (cuda.version, torch, base.python, platform.name)
        same = (f for f in self.facts if (f.cuda, f.torch, f.python, f.platform) == key)
        return Release(version=torch, facts=next(same, None))

    def foreign(self, arch: Architecture, platform: Platform) -> bool:
        """Whether no host of a platform has a GPU of an architecture.

        GPUs that are built together with an Arm processor are in no other host. All others are
        cards, which either kind of host can have.
        """
        return platform == AMD64 and {*arch.gpus, *arch.geforce} <= set(self.arm64_gpus)

    def excluded(self, **image: str) -> str | None:
        """Why no image with these values of axes is built; None if one may be.

        An axis that is left out may have any value.
        """
        return next((x.reason for x in self.excludes if x.matches(image)), None)


def target_range(cuda: Cuda) -> str:
    """The oldest and newest target of a CUDA version, as a clause for a message."""
    return f"its compiler goes from {min(cuda.targets)} to {max(cuda.targets)}"
