"""Newer releases of torch -> the releases of each CUDA version, and notes for a reviewer."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

from torch_images.config.types import Config, Cuda
from torch_images.errors import LockError
from torch_images.fetch.resolve import Requirements, resolve
from torch_images.host.network import Network
from torch_images.host.runner import Runner


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The change to one CUDA version: its new list of releases, and those added and dropped."""

    cuda: str
    releases: tuple[str, ...]
    added: tuple[str, ...]
    dropped: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The plan in one line."""
        gone = f"; drops torch {', '.join(self.dropped)}, its tags stay" if self.dropped else ""
        return f"CUDA {self.cuda}: adds torch {', '.join(self.added)}{gone}"


def find_cudas(
    releases: Iterable[str], python: str, *, network: Network, run: Runner, date: dt.date
) -> dict[str, str]:
    """The CUDA version of each release of torch in the main index, for a version of Python.

    A release that cannot be resolved has the reason instead of a version. Raises NetworkError.
    """
    cudas = {}
    for torch in releases:
        try:
            words = (f"torch=={torch}",)
            requirements = Requirements(
                name=f"torch-{torch}", words=words, python=python, date=date
            )
            lock = resolve(requirements, network=network, run=run)
        except LockError as error:
            cudas[torch] = error.message
        else:
            cudas[torch] = lock.cuda or "none"
    return cudas


def plan(config: Config, cudas: Mapping[str, str]) -> tuple[tuple[Plan, ...], tuple[str, ...]]:
    """The change to each CUDA version, and a line for each new release without a place.

    `cudas` has the CUDA version of each new release, see `find_cudas`. Pure.
    """
    plans = []
    for cuda in config.cudas:
        added = tuple(torch for torch, version in cudas.items() if version == cuda.version)
        if not added:
            continue
        before = own_releases(cuda)
        after = kept(config, cuda, (*before, *added))
        new = tuple(torch for torch in after if torch not in before)
        gone = tuple(torch for torch in before if torch not in after)
        if new:
            plans.append(Plan(cuda=cuda.version, releases=after, added=new, dropped=gone))
    known = {cuda.version for cuda in config.cudas}
    notes = (
        f"torch {torch} is for CUDA {version}, which images.yaml lacks"
        if version.replace(".", "").isdigit()
        else f"torch {torch} is not available: {version}"
        for torch, version in cudas.items()
        if version not in known
    )
    return tuple(plans), tuple(notes)


def own_releases(cuda: Cuda) -> tuple[str, ...]:
    """The releases of a CUDA version that come from the main index."""
    return tuple(torch for torch in cuda.torch if cuda.index(torch) is None)


def kept(config: Config, cuda: Cuda, releases: Iterable[str]) -> tuple[str, ...]:
    """The releases of a CUDA version that stay, the oldest first: the end-of-life rule.

    These are the newest patch of each of the `config.keep` newest minor versions, and those whose
    libraries a compiled source uses.
    """
    newest: dict[tuple[int, ...], str] = {}
    for torch in sorted(set(releases), key=Version):
        newest[Version(torch).release[:2]] = torch
    needed = {
        torch for s in config.sources for version, torch in s.beside if version == cuda.version
    }
    stay = {*list(newest.values())[-config.keep :], *(needed & set(releases))}
    return tuple(sorted(stay, key=Version))


def review(after: Config, plans: Sequence[Plan]) -> Iterator[str]:
    """What a reviewer must look at, a line each. Pure."""
    for one in plans:
        yield one.sentence
        for torch in one.added:
            lacking = [x.name for x in after.extras if x.pins and x.pinned(torch) is None]
            if lacking:
                yield f"torch {torch}: images.yaml has no pins of {', '.join(lacking)} for it"
