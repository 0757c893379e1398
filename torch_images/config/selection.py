"""Choosing among images, and saying which there are: what verbs ask of the matrix. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from torch_images.config.matrix import ImageSpec, choose, matrix
from torch_images.config.types import Config
from torch_images.errors import UsageError, shown, suggest


def select(config: Config, pattern: str) -> tuple[ImageSpec, ...]:
    """The images of the matrix whose identifier matches a glob, or one of several, by commas.

    Raises UsageError if none does.
    """
    specs, globs = matrix(config), pattern.split(",")
    chosen = tuple(spec for spec in specs if any(fnmatchcase(spec.id, glob) for glob in globs))
    if not chosen:
        hint = suggest(pattern, (spec.id for spec in specs))
        raise UsageError(f"no image matches '{shown(pattern)}'", hint)
    return chosen


def chosen(
    config: Config, pattern: str, axes: Mapping[str, str], *, prune: bool = False
) -> tuple[ImageSpec, ...]:
    """The images that match a glob, or, without one, the image with some values of axes.

    A value "" is the default. Raises UsageError for both, and as `select` and `choose` do.
    """
    named = {axis: value for axis, value in axes.items() if value}
    if pattern and named:
        raise UsageError("--select and single axes exclude each other", "give one or the other")
    specs = select(config, pattern) if pattern else (choose(config, **named),)
    return tuple(replace(spec, prune=prune) for spec in specs)


def describe(spec: ImageSpec) -> dict[str, str | list[str]]:
    """The image as plain data, for JSON: CI matrices read it."""
    return {
        "id": spec.id,
        "cuda": spec.cuda.version,
        "arch": [a.name for a in spec.architectures],
        "source": spec.source.name,
        "base": spec.base.name,
        "variant": spec.variant.name,
        "python": spec.base.python,
        "torch": spec.torch,
        "repository": spec.repository,
    }


def unfit(config: Config) -> tuple[str, ...]:
    """A line for each release and variant that is not built because no wheels of an extra fit."""
    lines = {
        f"cuda {cuda.version}, torch {torch}, variant {variant.name}: {reason}"
        for cuda, base, variant in itertools.product(config.cudas, config.bases, config.variants)
        for torch in cuda.torch
        if (release := config.release(cuda, torch, base)).facts
        for extra in variant.extras
        if (reason := extra.refusal(cuda.version, release))
    }
    return tuple(sorted(lines))
