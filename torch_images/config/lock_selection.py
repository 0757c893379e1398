"""Which lock files a pattern chooses, and the stages in which they are written. Pure."""

from __future__ import annotations

import contextlib
import itertools
from fnmatch import fnmatchcase

from torch_images.config.choose import choose, releases
from torch_images.config.lock_requests import (
    TOOLS,
    LockRequest,
    image_inputs,
    locked_images,
    tool_input,
)
from torch_images.config.selection import find_image
from torch_images.config.types import WITH, WITHOUT, Config
from torch_images.errors import UsageError, suggest


def inputs(config: Config, pattern: str = "*") -> tuple[LockRequest, ...]:
    """Every kept lock file whose name matches a glob, sorted by name.

    The pattern may have several globs, separated by commas. An identifier of an image, in the
    catalogue or not, means all its locks; the whole name of a lock may be of such an image, too.
    Raises UsageError if nothing matches.
    """
    images = locked_images(config)
    requests = {item.name: item for spec in images for item in image_inputs(config, spec)}
    tools = [tool_input(name, platform) for name in TOOLS for platform in config.platforms]
    requests |= {item.name: item for item in tools}
    chosen: dict[str, LockRequest] = {}
    for word in pattern.split(","):
        matching = {name: requests[name] for name in requests if fnmatchcase(name, word)}
        chosen |= matching or _of_image(config, word) or _of_name(config, word)
    if not chosen:
        raise UsageError(f"no lock matches '{pattern}'", suggest(pattern, sorted(requests)))
    return tuple(chosen[name] for name in sorted(chosen))


def _of_image(config: Config, word: str) -> dict[str, LockRequest]:
    """The locks of an image by its identifier; {} for any other word."""
    with contextlib.suppress(UsageError):
        spec = find_image(config, word)
        return {item.name: item for item in image_inputs(config, spec)}
    return {}


def _of_name(config: Config, name: str) -> dict[str, LockRequest]:
    """A lock of an image outside the catalogue, by the lock's name; {} if no image has it."""
    for cuda, source, base, platform, variant, compat in itertools.product(
        *(config.cudas, config.sources, config.bases, config.platforms, config.variants),
        (WITHOUT, WITH),
    ):
        for release in releases(config, cuda, source, base, platform):
            with contextlib.suppress(UsageError):
                spec = choose(
                    config,
                    cuda=cuda.version,
                    torch=release.version,
                    source=source.name,
                    base=base.name,
                    variant=variant.name,
                    compat=compat,
                    platform=platform.name,
                )
                found = {item.name: item for item in image_inputs(config, spec)}
                if name in found:
                    return {name: found[name]}
    return {}


def stages(config: Config, pattern: str = "*") -> tuple[tuple[LockRequest, ...], ...]:
    """`inputs` in three stages: plain wheels, then the facts of releases, then the rest.

    A request can depend on the locks that earlier stages wrote. Raises UsageError if no name
    matches in any stage.
    """
    chosen = inputs(config, pattern)
    plain = {item.within for item in (*inputs(config), *chosen) if item.probe}
    return (
        tuple(item for item in chosen if item.name in plain),
        tuple(item for item in chosen if item.probe),
        tuple(item for item in chosen if item.name not in plain and not item.probe),
    )
