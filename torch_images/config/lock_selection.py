"""Which lock files a pattern chooses, and which of them are written first. Pure."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from torch_images.config.choose import choose, choose_id
from torch_images.config.image import ImageSpec
from torch_images.config.lock_requests import (
    TOOLS,
    FactsRequest,
    LockRequest,
    WheelRequest,
    image_inputs,
    locked_images,
    tool_input,
)
from torch_images.config.types import AXES, Config
from torch_images.errors import UsageError, suggest


def inputs(config: Config, pattern: str = "*") -> tuple[LockRequest, ...]:
    """Every lock file that a pattern chooses, sorted by name; see `choose_locks`."""
    named, of_images = choose_locks(config, pattern)
    requests = of_images | named
    return tuple(requests[name] for name in sorted(requests))


def choose_locks(
    config: Config, pattern: str
) -> tuple[dict[str, LockRequest], dict[str, LockRequest]]:
    """The locks that a pattern names by their own names, and those of images that it names.

    The pattern has globs of the names of kept locks, identifiers of images, in the catalogue or
    not, and whole names of such an image's locks, separated by commas. Raises UsageError if nothing
    matches, and as `choose_id` does.
    """
    requests = _requests(config, locked_images(config))
    tools = [tool_input(name, platform) for name in TOOLS for platform in config.platforms]
    requests |= {item.name: item for item in tools}
    named: dict[str, LockRequest] = {}
    of_images: dict[str, LockRequest] = {}
    for word in pattern.split(","):
        if matching := {name: requests[name] for name in requests if fnmatchcase(name, word)}:
            named |= matching
        elif word.partition("-")[0] in [cuda.short for cuda in config.cudas]:
            of_images |= _requests(config, [choose_id(config, word)])
        else:
            named |= _of_name(config, word)
    if not named and not of_images:
        raise UsageError(f"no lock matches '{pattern}'", suggest(pattern, sorted(requests)))
    return named, of_images


def _requests(config: Config, images: Iterable[ImageSpec]) -> dict[str, LockRequest]:
    return {item.name: item for spec in images for item in image_inputs(config, spec)}


def _of_name(config: Config, name: str) -> dict[str, LockRequest]:
    """A lock of an image outside the catalogue, by the lock's name; {} if no image has it."""
    names = {axis: config.names(axis) for axis in AXES if axis != "arch"}
    names["torch"] += ("",)  # of a compiled source
    for values in itertools.product(*names.values()):
        with contextlib.suppress(UsageError):
            spec = choose(config, **dict(zip(names, values, strict=True)))
            if request := _requests(config, [spec]).get(name):
                return {name: request}
    return {}


def steps(items: Sequence[LockRequest]) -> tuple[tuple[LockRequest, ...], ...]:
    """The requests in steps: facts and the wheels of variants need the plain wheels."""
    facts = tuple(item for item in items if isinstance(item, FactsRequest))
    wider = tuple(item for item in items if isinstance(item, WheelRequest) and item.within)
    return tuple(item for item in items if item not in (*facts, *wider)), facts, wider
