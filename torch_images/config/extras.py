"""Variants of images, and extras: groups of wheels that variants add."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo

from torch_images.arch import Capability
from torch_images.config import fields
from torch_images.config.release import Release
from torch_images.config.schema import FILLED, NAME, Section, entry, kept, known, matches, pairs


def _for_all(value: Any, info: ValidationInfo) -> Any:
    """Requirements by CUDA version; a plain list applies to all of them."""
    if not isinstance(value, list):
        return value
    return dict.fromkeys(kept(info, "cuda") if value else (), value)


_Torch = Annotated[str, matches(r"[0-9]+\.[0-9]+(?:\.[0-9a-z.]+)?", "a torch like 2.14 or 2.14.1")]
_EXACT = r"[a-z0-9-]+==[0-9a-z.+!]+"
_Exact = tuple[Annotated[str, matches(_EXACT, "an exact requirement")], ...]


@dataclass(frozen=True, kw_only=True)
class Extra(Section, keys={"name": NAME}):
    """A group of wheels that variants can add.

    `name`, `description`: such as "vision", and a sentence for people.
    `wheels`: pairs of a CUDA version and requirements. A CUDA version with () omits the extra; one
        that is not listed cannot have it.
    `pins`: in place of `wheels`, for those that are compiled for a torch: pairs of a minor version
        or a release of torch and exact requirements. With () an image omits the extra; an image of
        a torch that is not listed cannot have it.
    `torch`: pairs of a CUDA version and releases of torch from the main index that images with the
        extra can have besides those of the CUDA version.
    `arches`: the architectures that the wheels have code for, such as "9.0"; () for all.
    `replaces`: packages of the plain image that the wheels need in another version.
    `unpack`: the folder to unpack the wheels to, without their requirements; "" to install them.
    `links`: name and target of each link to create there, both paths below that folder.
    `conflicts`: the names of extras that exclude it, each with the reason.
    `environment`: name and value of each variable that images with it set; not one that every
        image sets.
    `source`: the exact requirement whose source distribution a build compiles for the image's torch
        and architectures, such as "flash-attn==2.8.3"; "" for none. `wheels` are then what it
        requires, and `arches` what it can be compiled for.
    `options`: name and value of each variable that its build reads.
    """

    name: fields.Name
    description: str
    wheels: Annotated[
        tuple[tuple[str, tuple[str, ...]], ...],
        pairs(Annotated[str, known("cuda")], fields.Requirements),
        FILLED,
        BeforeValidator(_for_all),
    ] = ()
    pins: Annotated[tuple[tuple[str, tuple[str, ...]], ...], pairs(_Torch, _Exact), FILLED] = ()
    torch: Annotated[
        tuple[tuple[str, tuple[str, ...]], ...],
        pairs(Annotated[str, known("cuda")], Annotated[fields.Pins, FILLED]),
        FILLED,
    ] = ()
    arches: Annotated[tuple[fields.ArchName, ...], FILLED] = ()
    replaces: Annotated[tuple[fields.WheelName, ...], FILLED] = ()
    unpack: fields.Folder = ""
    links: Annotated[
        tuple[tuple[str, str], ...],
        pairs(fields.Below, fields.Below),
        FILLED,
    ] = ()
    conflicts: Annotated[tuple[tuple[str, str], ...], pairs(str, str)] = ()
    environment: Annotated[
        tuple[tuple[str, str], ...],
        pairs(
            Annotated[str, matches(r"[A-Z][A-Z0-9_]*", "the name of an environment variable")],
            Annotated[str, matches(r"[A-Za-z0-9_.,:/-]+", "a plain value")],
        ),
        FILLED,
    ] = ()
    source: Annotated[str, matches(_EXACT, "an exact requirement")] = ""
    options: Annotated[fields.Pairs, pairs(fields.Variable, str), FILLED] = ()

    @property
    def package(self) -> str:
        """The name of the package that is compiled; "" if none is."""
        return self.source.partition("==")[0]

    def pinned(self, torch: str) -> tuple[str, ...] | None:
        """The pins for a release of torch; None if it is not listed."""
        if self.source:
            return (self.source,)
        pins = dict(self.pins)
        return pins.get(torch, pins.get(".".join(torch.split(".")[:2])))

    def requirements(self, cuda: str, torch: str) -> tuple[str, ...]:
        """Its requirements for a CUDA version and a release of torch; () if it is omitted."""
        return (self.pinned(torch) if self.pins else dict(self.wheels).get(cuda)) or ()

    def refusal(
        self, cuda: str, release: Release | None, arches: tuple[str, ...] = ()
    ) -> str | None:
        """Why an image cannot have it, as a message; None if it can.

        `release` is a published torch; None for a compiled one. `arches` are the image's
        architectures.
        """
        if not self.pins and cuda not in dict(self.wheels):
            have = "is not compiled" if self.source else "has no wheels"
            return f"{self.name} {have} for CUDA {cuda}"
        if (self.pins or self.source) and release is None:
            return f"the wheels of {self.name} are compiled for published releases of torch"
        if self.pins and release and self.pinned(release.version) is None:
            return f"images.yaml pins no {self.name} for torch {release.version}"
        code = [Capability.parse(arch) for arch in self.arches]
        images = [Capability.parse(arch) for arch in arches]
        if code and not all(any(image.runs(c) for c in code) for image in images):
            what = "is compiled" if self.source else "has wheels with code"
            return f"{self.name} {what} for {', '.join(self.arches)} only"
        return None

    def conflict(self, other: Extra) -> str | None:
        """Why no image can have both, as a message; None if one can."""
        reason = dict(self.conflicts).get(other.name) or dict(other.conflicts).get(self.name)
        return f"cannot be in one image with {other.name}: {reason}" if reason else None

    def targets(self, arches: tuple[str, ...]) -> tuple[str, ...]:
        """The architectures to compile it for, so that GPUs of `arches` run it."""
        code = [Capability.parse(arch) for arch in self.arches]
        images = [Capability.parse(arch) for arch in arches]
        best = {max(c for c in code if image.runs(c)) for image in images} if code else {*images}
        return tuple(map(str, sorted(best)))


@dataclass(frozen=True, kw_only=True)
class Variant(Section, keys={"name": NAME}):
    """The content of an image besides torch.

    `name`, `description`: such as "devel", and a sentence for people.
    `packages`: names of Debian packages.
    `wheels`: requirements of wheels.
    `extras`: the groups of wheels that it has.
    `cuda_home`: the folder of CUDA's toolkit, such as "/usr/local/cuda"; "" for none.
    `no_toolkit`: the CUDA versions for which it has none all the same.
    `command`: the program that its containers run.
    `folder`: the folder that they start in; "" for the image's default.
    `ports`: the TCP ports that they offer.
    """

    name: fields.PlainName
    description: str
    packages: tuple[fields.DebianPackage, ...] = ()
    wheels: fields.Requirements = ()
    extras: tuple[Annotated[Extra, entry("extra")], ...] = ()
    cuda_home: fields.Folder = ""
    no_toolkit: Annotated[tuple[fields.CudaName, ...], FILLED] = ()
    command: Annotated[str, matches(r"[a-z][a-z0-9-]*", "a command")] = "torch-info"
    folder: fields.Folder = ""
    ports: tuple[fields.Port, ...] = ()

    def of(self, cuda: str) -> Variant:
        """The variant in images of a CUDA version."""
        return replace(self, cuda_home="") if cuda in self.no_toolkit else self

    @property
    def adds(self) -> bool:
        """Whether it adds anything to the plain image."""
        return bool(self.packages or self.wheels or self.extras or self.cuda_home)

    def empty(self, cuda: str, torch: str) -> str | None:
        """Why an image would have the files of the plain one; None if it has others."""
        if not self.adds or self.packages or self.wheels or self.cuda_home:
            return None
        if any(extra.requirements(cuda, torch) for extra in self.extras):
            return None
        names = " and ".join(extra.name for extra in self.extras)
        return (
            f"{names} has nothing for CUDA {cuda}, torch {torch}, so the variant would add nothing"
        )

    def torch(self, cuda: str) -> tuple[str, ...]:
        """The releases of torch that its extras add to those of a CUDA version."""
        return tuple(torch for extra in self.extras for torch in dict(extra.torch).get(cuda, ()))

    @property
    def replaces(self) -> tuple[str, ...]:
        """The packages of the plain image that it needs in another version."""
        return tuple(sorted({name for extra in self.extras for name in extra.replaces}))

    @property
    def sources(self) -> tuple[Extra, ...]:
        """The extras that a build compiles."""
        return tuple(extra for extra in self.extras if extra.source)

    @property
    def unpacked(self) -> tuple[Extra, ...]:
        """The extras that are unpacked rather than installed, ordered like their locks."""
        unpacked = (extra for extra in self.extras if extra.unpack)
        return tuple(sorted(unpacked, key=lambda extra: f"{extra.name}-cu"))
