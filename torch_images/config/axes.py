"""The axes of images, and the sections of images.yaml that combine values of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from torch_images.config.fields import CudaName, Pin
from torch_images.config.schema import Section, choice, known, some

AXES = ("cuda", "torch", "arch", "source", "base", "variant", "compat", "platform")
# Values of the axis `compat`: whether an image has NVIDIA's compat library.
WITH, WITHOUT = "with", "without"
SourceName = Annotated[str, known("source")]
BaseName = Annotated[str, known("base")]
VariantName = Annotated[str, known("variant")]
_CompatWord = Annotated[str, choice("a value of compat", (WITH, WITHOUT))]


@dataclass(frozen=True, kw_only=True)
class Row(Section):
    """A row of the catalogue: images of the project, each combination of values of its axes.

    An axis without values has its default: no compat library, and the first platform. The value
    "each" means every release of torch, or one image for every architecture.
    """

    cuda: Annotated[tuple[str, ...], some(CudaName)] = ()
    torch: Annotated[tuple[str, ...], some(str)] = ()
    arch: Annotated[tuple[str, ...], some(str)] = ()
    source: Annotated[tuple[str, ...], some(SourceName)] = ()
    base: Annotated[tuple[str, ...], some(BaseName)] = ()
    variant: Annotated[tuple[str, ...], some(VariantName)] = ()
    compat: Annotated[tuple[str, ...], some(_CompatWord)] = ()
    platform: Annotated[tuple[str, ...], some(Annotated[str, known("platform")])] = ()

    @cached_property
    def named(self) -> dict[str, tuple[str, ...]]:
        """The axes that have values, in the order of AXES."""
        return {axis: values for axis in AXES if (values := getattr(self, axis))}


@dataclass(frozen=True, kw_only=True)
class Exclude(Row):
    """Combinations that are not built; an axis without values matches any.

    `reason` is the sentence shown to users.
    """

    reason: str
    # Entries may name a release that `invoke lock --upgrade` dropped.
    torch: Annotated[tuple[str, ...], some(Pin)] = ()
    arch: Annotated[tuple[str, ...], some(Annotated[str, known("arch")])] = ()

    def matches(self, image: Mapping[str, str]) -> bool:
        """Whether every image with these values is excluded, whatever its other axes are."""
        # A loop: this runs for every image of every matrix, and a generator is half as fast.
        for axis, values in self.named.items():  # noqa: SIM110
            if image.get(axis) not in values:
                return False
        return True
