"""The sources of torch and Triton in images.yaml, and what a build can have or lack."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated

from torch_images.config import fields
from torch_images.config.schema import FILLED, NAME, Section, entry, pairs


@dataclass(frozen=True, kw_only=True)
class Tree(Section):
    """A source tree.

    `repository`: the URL of its git repository.
    `commit`: 40 hexadecimal digits.
    `version`: what the tree's own files say, such as "2.12.0a0".
    """

    repository: fields.SecureUrl
    commit: fields.Commit
    version: fields.CanonicalPin


@dataclass(frozen=True, kw_only=True)
class Feature(Section, keys={"name": NAME}):
    """A part of torch that a build can have or lack.

    `name`: such as "cudnn".
    `option`: the option of torch's build that switches it, such as "USE_CUDNN"; "" if none does.
    `arch`: the architecture that a build must be for to have it; None for any.
    `needs`: the folder of the tree that it is compiled from, such as "third_party/fbgemm"; "" where
        the system may have it instead.
    """

    name: fields.Name
    option: fields.Option = ""
    arch: fields.Arch | None = None
    needs: fields.Below = ""


@dataclass(frozen=True, kw_only=True)
class Source(Section, keys={"name": NAME}):
    """Where torch and Triton come from.

    `name`, `description`: such as "fork", and a sentence for people.
    `torch`, `triton`: the trees that are compiled; None for a published wheel. Triton may be the
        published one beside a torch that is compiled.
    `packages`: Debian packages that compiling needs beside the image's own.
    `wheels`: requirements of wheels that compiling needs. The image gets neither of both.
    `torch_options`, `triton_options`: name and value of each option that the builds are told.
    `features`: what a compiled torch must have; `without`: what its build switches off.
    `headers`: folders of the wheels, relative to site-packages, whose headers are compiled with.
    `beside`: CUDA version and published release of torch, in pairs. A compiled torch has the CUDA
        libraries of that release. A CUDA version that is not listed is not compiled for.
    `overrides`: versions, such as "triton==3.2.0", that images of this source have in place of
        those that the release beside it requires.
    """

    name: fields.PlainName
    description: str
    torch: Tree | None = None
    triton: Tree | None = None
    packages: tuple[fields.DebianPackage, ...] = ()
    wheels: fields.Requirements = ()
    headers: tuple[fields.Below, ...] = ()
    torch_options: Annotated[fields.Pairs, pairs(fields.Option, str)] = ()
    triton_options: Annotated[fields.Pairs, pairs(fields.Option, str)] = ()
    features: tuple[Annotated[Feature, entry("feature")], ...] = ()
    without: tuple[Annotated[Feature, entry("feature")], ...] = ()
    beside: Annotated[fields.Pairs, pairs(fields.CudaName, str), FILLED] = ()
    overrides: fields.Requirements = ()

    @property
    def build(self) -> str:
        """SHA-256, in hexadecimal, of the options and features that its builds are told."""
        told = (self.torch_options, self.triton_options, self.features, self.without)
        return hashlib.sha256(repr(told).encode()).hexdigest()

    @property
    def compiled(self) -> bool:
        """Whether torch is compiled rather than taken as published."""
        return self.torch is not None
