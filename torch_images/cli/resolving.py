"""Resolving locks, several at once, with a line of progress for each."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from torch_images.cli import verb
from torch_images.config.lock_requests import BaseRequest, CompatRequest, FactsRequest, LockRequest
from torch_images.config.lock_selection import steps
from torch_images.errors import TorchImagesError
from torch_images.fetch.apt import Resolver
from torch_images.fetch.update import resolve_input
from torch_images.host.runner import Runner
from torch_images.host.setup import can_bootstrap
from torch_images.host.workers import workers
from torch_images.interrupts import interrupted
from torch_images.locks.files import update

T = TypeVar("T")
_AT_ONCE = 6  # locks; uv asks an index for up to 50 files at once by itself


def resolve_all(items: Sequence[LockRequest], folder: Path) -> list[str]:
    """Write locks into a folder; a line about each. Raises the last error of a step."""
    resolver, cache = resolver_for(items), verb.workspace().cache
    errors: list[TorchImagesError] = []

    def write(item: LockRequest) -> str:
        resolved = resolve_input(item, folder, resolver, cache)
        path = item.path(folder)
        word = "changed" if path.exists() else "new"
        return f"{item.name}: {word if update(path, resolved) else 'unchanged'}"

    lines: list[str] = []
    for step in steps(items):
        # Inspecting a release of torch takes 2 GB of disk, so releases are inspected one by one.
        at_once = 1 if any(isinstance(item, FactsRequest) for item in step) else _AT_ONCE
        lines += side_by_side(step, write, errors, at_once=at_once, progress="resolved")
        if errors:
            raise errors[-1]
    return lines


def side_by_side(
    items: Sequence[LockRequest],
    work: Callable[[LockRequest], T],
    errors: list[TorchImagesError],
    *,
    progress: str,
    at_once: int = _AT_ONCE,
) -> Iterator[T]:
    """Apply `work` to each lock in parallel, and yield the results in order.

    An error is printed and added to `errors`; the other locks go on. `progress` begins each line
    of progress on stderr.
    """
    done, running = itertools.count(1), list[str]()

    def one(item: LockRequest) -> list[T]:
        began, found = time.monotonic(), []
        running.append(item.name)
        try:
            found = [work(item)]
        except TorchImagesError as error:
            if interrupted(0.5):
                return []
            verb.complain(item.name, error)
            errors.append(error)
        running.remove(item.name)
        took = f"{time.monotonic() - began:.1f} s"
        verb.say(f"{progress} {next(done)} of {len(items)}: {item.name}, {took}")
        return found

    with workers(at_once) as pool, verb.still(lambda: "at " + ", ".join(running)):
        for results in pool.map(one, items):
            yield from results


def resolver_for(items: Sequence[LockRequest]) -> Resolver:
    """A resolver for some locks; starts an engine if one of them needs it."""
    by_apt = any(isinstance(item, BaseRequest | CompatRequest) for item in items)
    signed = any(isinstance(item, BaseRequest) for item in items)
    if by_apt and not can_bootstrap(signed=signed):
        verb.engine(bootstraps=True, signed=signed)
    return Resolver(
        root=verb.ROOT,
        network=verb.workspace().network,
        run=Runner(),
        mirrors=verb.mirrors(),
    )
