"""The types of images.yaml: all facts about images that people decide. load.py fills them.

Their annotations define valid values, and rules.py the relations between them. A new field is one
line here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated

from pydantic import AfterValidator, Field

from torch_images.arch import Capability
from torch_images.config import fields
from torch_images.config.axes import AXES, WITH, WITHOUT, Exclude, Row, SourceName, VariantName
from torch_images.config.cuda import Compat, Cuda, with_indexes
from torch_images.config.extras import Extra, Variant
from torch_images.config.own import Own
from torch_images.config.release import Facts, Release
from torch_images.config.schema import (
    FILLED,
    NAME,
    NAMED,
    As,
    Section,
    entry,
    listed,
    matches,
    pairs,
)
from torch_images.config.sources import Feature, Source, Tree
from torch_images.platforms import AMD64, Platform

__all__ = [
    "AXES", "WITH", "WITHOUT", "Architecture", "Base", "Compat", "Config", "Cuda", "Defaults",
    "Exclude", "Feature", "Pods", "Removal", "Row", "Source", "Tree",
]  # fmt: skip
_Names = Annotated[tuple[str, ...], FILLED]
_NamesByKey = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, kw_only=True)
class Architecture(Section, keys={"capability": NAME}):
    """An architecture that images are built for.

    `capability`: its compute capability, such as 12.0.
    `family`: NVIDIA's name for it, such as "Blackwell".
    `first_driver`: the oldest driver branch that supports it, such as "570".
    `last_driver`: the newest one that supports it; "" if all newer ones do.
    `gpus`, `geforce`: models by their names in nvidia-smi, without "NVIDIA" and "GeForce", the best
        known first. Those sold as GeForce or TITAN are separate, because compat libraries do not
        support them.
    """

    capability: fields.Arch
    family: str
    first_driver: fields.Branch
    last_driver: fields.Branch = ""
    gpus: Annotated[tuple[str, ...], FILLED]
    geforce: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name that users type, such as "12.0"."""
        return str(self.capability)

    @property
    def examples(self) -> tuple[str, ...]:
        """Two to four of its best-known GPUs."""
        return (*self.geforce[:2], *self.gpus[: 2 if self.geforce else 3])


@dataclass(frozen=True, kw_only=True)
class Base(Section, keys={"name": NAME}):
    """The base of images: a Debian suite to bootstrap.

    `name`, `description`: such as "bookworm", and a sentence for people.
    `python`: the version of its Python, such as "3.11".
    `system`: distribution and codename as in its os-release file, such as "debian bookworm".
    `packages`: names of its packages.
    `suite`: the suite to bootstrap, such as "bookworm".
    `snapshot`: the root of an archive of old packages; "" for none.
    """

    name: fields.PlainName
    description: str
    python: Annotated[str, matches(r"3\.[0-9]{2}", "a version like 3.11")]
    system: Annotated[
        str, matches(r"[a-z]+ [a-z]+", "distribution and codename like debian bookworm")
    ]
    packages: tuple[fields.DebianPackage, ...]
    suite: Annotated[str, matches(r"[a-z0-9]+(?:[.-][a-z0-9]+)*", "a Debian suite")]
    snapshot: fields.Url = ""


@dataclass(frozen=True, kw_only=True)
class Removal(Section, keys={"wheels": "of", "narrowed": NAME, "platforms": "platform"}):
    """A removal from one or more wheels.

    `wheels`: their normalised names.
    `reason`: why, for people.
    `files`: globs below site-packages of files to leave out.
    `code`: globs of libraries that lose machine code for architectures the image is not for.
    `symbols`: globs of libraries that lose their tables for debuggers.
    `lists`: globs of libraries with torch's list of compiled architectures, which is then
        corrected.
    `narrowed`: whether it applies only to images for named architectures.
    `cuda`: the CUDA versions that it applies to; () for all.
    `platforms`: the platforms that it applies to; () for all.
    """

    wheels: Annotated[tuple[fields.WheelName, ...], FILLED]
    reason: str
    files: Annotated[tuple[fields.Glob, ...], FILLED] = ()
    code: Annotated[tuple[fields.Glob, ...], FILLED] = ()
    symbols: Annotated[tuple[fields.Glob, ...], FILLED] = ()
    lists: Annotated[tuple[fields.Glob, ...], FILLED] = ()
    narrowed: bool = False
    cuda: Annotated[tuple[fields.CudaName, ...], FILLED] = ()
    platforms: Annotated[tuple[fields.PlatformName, ...], FILLED] = ()

    def applies(self, cuda: str, platform: Platform, *, narrowed: bool) -> bool:
        """Whether it applies to images for a CUDA version and a platform."""
        return (
            (narrowed or not self.narrowed)
            and (not self.cuda or cuda in self.cuda)
            and (not self.platforms or platform.name in self.platforms)
        )


@dataclass(frozen=True, kw_only=True)
class _Removals(Section):
    always: tuple[Removal, ...] = ()
    arch: tuple[Removal, ...] = ()

    def all(self) -> tuple[Removal, ...]:
        return (*self.always, *(replace(removal, narrowed=True) for removal in self.arch))


@dataclass(frozen=True, kw_only=True)
class Pods(Section):
    """The settings of a template for RunPod, besides the image.

    `api`: the URL of RunPod's API.
    `variant`: the variant of the image.
    `ports`: port and protocol, such as "8888/http".
    `environment`: name and value of each variable.
    `room`: GB of disk in addition to the image.
    `volume`, `volume_path`: GB of the volume, and where it is mounted.
    `hosts`: pairs of a CUDA version that machines report and its driver branch, oldest first.
    """

    api: fields.Url
    variant: VariantName
    ports: tuple[fields.Served, ...]
    environment: Annotated[fields.Pairs, pairs(fields.Variable, str)]
    room: fields.Gigabytes
    volume: Annotated[int, Field(ge=10)]  # RunPod's own limit
    volume_path: fields.Folder
    hosts: Annotated[fields.Pairs, pairs(fields.CudaVersion, fields.Branch), FILLED]


@dataclass(frozen=True, kw_only=True)
class Defaults(Section):
    """The default of each axis that has one here.

    The other defaults: the newest release of torch, the base of the CUDA version, this machine's
    own platform, and all architectures of torch.
    """

    cuda: fields.CudaName
    source: SourceName
    variant: VariantName


@dataclass(frozen=True, kw_only=True)
class Config(Section, keys={"cudas": "cuda", "excludes": "exclude", "facts": NAME, "own": NAME}):
    """All of images.yaml.

    `registry`, `owner`: where images are published, such as "ghcr.io" and "torch-images".
    `homepage`: the URL in the labels of images.
    `archives`: the root URL of NVIDIA's archives of CUDA.
    `packages`: requirements of the Python packages that each image has besides torch.
    `keep`: the number of minor versions of torch that a CUDA version keeps, see fetch/newer.py.
    `other_gpus`: pairs of a compute capability that no image serves and the names of its GPUs.
    `arm64_gpus`: the names of GPUs that only hosts with Arm processors have.
    `gpu_aliases`: pairs of the name of a GPU and its other names, such as the beginning of a
        cloud's machine type.
    `other_makers`: pairs of a maker and words of its GPUs.
    `platforms`: the platforms of images.
    `companions`: extras whose pins every image's pip keeps to.
    `facts`: facts about releases of torch from `invoke lock`; not a section of the file.
    `own`: the image of the user's own project, if there is one; not a section of the file either.
    The other fields are the sections of the file. A field may name entries of those before it.
    """

    registry: fields.Registry
    owner: fields.Owner
    homepage: fields.Url
    architectures: Annotated[tuple[Architecture, ...], FILLED, NAMED, listed("arch")]
    other_gpus: Annotated[
        tuple[tuple[Capability, tuple[str, ...]], ...], pairs(fields.Arch, _Names)
    ] = ()
    arm64_gpus: tuple[str, ...] = ()
    gpu_aliases: Annotated[_NamesByKey, pairs(str, _Names)] = ()
    other_makers: Annotated[_NamesByKey, pairs(str, _Names)] = ()
    platforms: Annotated[tuple[fields.HostPlatform, ...], FILLED, listed("platform")] = (AMD64,)
    bases: Annotated[tuple[Base, ...], FILLED, NAMED, listed("base")]
    cudas: Annotated[
        tuple[Annotated[Cuda, AfterValidator(with_indexes)], ...], FILLED, NAMED, listed("cuda")
    ]
    keep: Annotated[int, Field(ge=1)]
    archives: fields.Url
    compat: Compat
    features: Annotated[tuple[Feature, ...], NAMED, listed("feature")] = ()
    sources: Annotated[tuple[Source, ...], FILLED, NAMED, listed("source")]
    packages: fields.Requirements
    extras: Annotated[tuple[Extra, ...], NAMED, listed("extra")] = ()
    companions: tuple[Annotated[Extra, entry("extra")], ...] = ()
    variants: Annotated[tuple[Variant, ...], FILLED, NAMED, listed("variant")]
    defaults: Defaults
    pods: Pods
    catalogue: tuple[Row, ...] = ()
    removals: Annotated[tuple[Removal, ...], As(_Removals, _Removals.all)] = ()
    excludes: tuple[Exclude, ...] = ()
    facts: tuple[Facts, ...] = ()
    own: Own | None = None

    def names(self, axis: str) -> tuple[str, ...]:
        """The values of an axis, in the order of the file. Raises KeyError for another axis."""
        added = (v.torch(c.version) for v in self.variants for c in self.cudas)
        return {
            "cuda": tuple(c.version for c in self.cudas),
            "torch": tuple(dict.fromkeys(chain(*(c.torch for c in self.cudas), *added))),
            "arch": tuple(a.name for a in self.architectures),
            "source": tuple(s.name for s in self.sources),
            "base": tuple(b.name for b in self.bases),
            "variant": tuple(v.name for v in self.variants),
            "compat": (WITH, WITHOUT),
            "platform": tuple(p.name for p in self.platforms),
        }[axis]

    def release(self, cuda: Cuda, torch: str, base: Base, platform: Platform = AMD64) -> Release:
        """A release of torch for a CUDA version, the Python of a base and a platform.

        It includes the known facts about it.
        """
        key = (cuda.version, torch, base.python, platform.name)
        same = (f for f in self.facts if (f.cuda, f.torch, f.python, f.platform) == key)
        return Release(version=torch, facts=next(same, None))

    def foreign(self, arch: Architecture, platform: Platform) -> bool:
        """Whether no host of a platform has a GPU of an architecture.

        GPUs that are built together with an Arm processor are only in those hosts. All others are
        cards, which either kind of host can have.
        """
        return platform == AMD64 and {*arch.gpus, *arch.geforce} <= set(self.arm64_gpus)

    def excluded(self, **image: str) -> str | None:
        """The reason why no image with these values of axes is built; None if one may be.

        An axis that is left out matches any value.
        """
        return next((x.reason for x in self.excludes if x.matches(image)), None)
