"""The sources of torch and Triton in images.yaml, and the optional features of builds."""

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
    `version`: from the tree's own files, such as "2.12.0a0".
    """

    repository: fields.Url
    commit: fields.Commit
    version: fields.Pin


@dataclass(frozen=True, kw_only=True)
class Feature(Section, keys={"name": NAME}):
    """An optional part of torch.

    `name`: such as "cudnn".
    `option`: the option of torch's build that switches it, such as "USE_CUDNN"; "" if none does.
    `arch`: the architecture that a build must be for to have it; None for any.
    `needs`: the folder of the tree that it is compiled from, such as "third_party/fbgemm"; "" if
        the system may provide it instead.
    """

    name: fields.Name
    option: fields.Variable = ""
    arch: fields.Arch | None = None
    needs: fields.Below = ""


@dataclass(frozen=True, kw_only=True)
class Source(Section, keys={"name": NAME}):
    """The source of torch and Triton.

    `name`, `description`: such as "fork", and a sentence for people.
    `torch`, `triton`: the trees to compile; None for a published wheel. Triton may be published
        while torch is compiled.
    `packages`: Debian packages for compiling torch, or extras for it, besides the image's own.
    `wheels`: requirements of wheels for that. The image gets neither of these.
    `torch_options`, `triton_options`: name and value of each build option.
    `features`: those that a compiled torch must have; `without`: those that its build disables.
    `headers`: folders of the wheels, relative to site-packages, whose headers are compiled with.
    `beside`: pairs of a CUDA version and a published release of torch. A compiled torch uses the
        CUDA libraries of that release. It is not compiled for other CUDA versions.
    `overrides`: versions, such as "triton==3.2.0", that images of this source have instead of those
        that the release in `beside` requires.
    """

    name: fields.PlainName
    description: str
    torch: Tree | None = None
    triton: Tree | None = None
    packages: tuple[fields.DebianPackage, ...] = ()
    wheels: fields.Requirements = ()
    headers: tuple[fields.Below, ...] = ()
    torch_options: Annotated[fields.Pairs, pairs(fields.Variable, str)] = ()
    triton_options: Annotated[fields.Pairs, pairs(fields.Variable, str)] = ()
    features: tuple[Annotated[Feature, entry("feature")], ...] = ()
    without: tuple[Annotated[Feature, entry("feature")], ...] = ()
    beside: Annotated[fields.Pairs, pairs(fields.CudaName, str), FILLED] = ()
    overrides: fields.Requirements = ()

    @property
    def build(self) -> str:
        """SHA-256, in hexadecimal, of the options and features of its builds."""
        facts = (self.torch_options, self.triton_options, self.features, self.without)
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    @property
    def compiled(self) -> bool:
        """Whether torch is compiled, rather than published."""
        return self.torch is not None
