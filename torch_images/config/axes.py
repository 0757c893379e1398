"""The axes of images, and the sections of images.yaml that combine values of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from torch_images.config.fields import CudaName, Pin
from torch_images.config.schema import As, Section, Wrong, choice, known, some

AXES = ("cuda", "torch", "arch", "source", "base", "variant", "compat", "platform")
# Values of the axis `compat`: whether an image has NVIDIA's compat library.
WITH, WITHOUT = "with", "without"
SourceName = Annotated[str, known("source")]
BaseName = Annotated[str, known("base")]
VariantName = Annotated[str, known("variant")]
_CompatWord = Annotated[str, choice("a value of compat", (WITH, WITHOUT))]


@dataclass(frozen=True, kw_only=True)
class _Axes(Section):
    """Values of axes in the file: one, or several."""

    cuda: Annotated[tuple[str, ...], some(CudaName)] = ()
    torch: Annotated[tuple[str, ...], some(str)] = ()
    arch: Annotated[tuple[str, ...], some(str)] = ()
    source: Annotated[tuple[str, ...], some(SourceName)] = ()
    base: Annotated[tuple[str, ...], some(BaseName)] = ()
    variant: Annotated[tuple[str, ...], some(VariantName)] = ()
    compat: Annotated[tuple[str, ...], some(_CompatWord)] = ()
    platform: Annotated[tuple[str, ...], some(Annotated[str, known("platform")])] = ()

    @property
    def named(self) -> dict[str, tuple[str, ...]]:
        """The values of each axis that the file names."""
        return {axis: values for axis in AXES if (values := getattr(self, axis))}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the catalogue: images of the project, each combination of values of its axes.

    `values`: pairs of an axis, such as "variant", and its values. An axis that is not named has its
        default: no compat library, and the first platform. The value "each" means every release of
        torch, or one image for every architecture.
    `where`: file, line and column, for messages.
    """

    values: tuple[tuple[str, tuple[str, ...]], ...]
    where: str = field(compare=False)


def _row(values: _Axes) -> Row:
    return Row(values=tuple(values.named.items()), where="")


@dataclass(frozen=True, kw_only=True)
class Exclude:
    """Combinations that are not built: those that match on every axis that is not None.

    `reason` is the sentence shown to users. Each other field is a value of the axis of its name,
    such as "12.8"; None means all values.
    """

    reason: str
    cuda: str | None = None
    torch: str | None = None
    arch: str | None = None
    source: str | None = None
    base: str | None = None
    variant: str | None = None
    compat: str | None = None
    platform: str | None = None

    @cached_property
    def named(self) -> tuple[tuple[str, str], ...]:
        """The axes that are not None, each with its value."""
        values = ((axis, getattr(self, axis)) for axis in AXES)
        return tuple((axis, value) for axis, value in values if value is not None)

    def matches(self, image: Mapping[str, str]) -> bool:
        """Whether every image with these values is excluded, whatever its other axes are."""
        # A loop: this runs for every image of every matrix, and a generator is half as fast.
        for axis, value in self.named:  # noqa: SIM110
            if image.get(axis) != value:
                return False
        return True


@dataclass(frozen=True, kw_only=True)
class _Excludes(_Axes):
    """An entry of `exclude` in the file."""

    reason: str
    # Entries may name a release that `invoke lock --upgrade` dropped.
    torch: Annotated[tuple[str, ...], some(Pin)] = ()
    arch: Annotated[tuple[str, ...], some(Annotated[str, known("arch")])] = ()


def _each(entries: tuple[_Excludes, ...]) -> tuple[Exclude, ...]:
    """One rule for each combination of the values that an entry lists."""
    rules: list[Exclude] = []
    for place, entry in enumerate(entries):
        named = entry.named
        if not named:
            raise Wrong("names no axis", f"axes: {', '.join(AXES)}", at=(place,))
        rules += (
            Exclude(reason=entry.reason, **dict(zip(named, values, strict=True)))
            for values in itertools.product(*named.values())
        )
    return tuple(rules)


Catalogue = tuple[Annotated[Row, As(_Axes, _row)], ...]
Excludes = Annotated[tuple[Exclude, ...], As(tuple[_Excludes, ...], _each)]
