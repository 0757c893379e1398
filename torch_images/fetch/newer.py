"""Newer inputs that images.yaml does not use, and the releases of torch that `lock --upgrade` adds.

These are newer releases of torch, and of packages that it holds back or pins.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from torch_images.config.choose import choose
from torch_images.config.lock_requests import WheelRequest
from torch_images.config.types import Config, Cuda
from torch_images.errors import LockError
from torch_images.fetch.packageindex import PackageIndex
from torch_images.fetch.resolve import resolve
from torch_images.fetch.update import NEWER, Finding
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.locks.files import is_version

FILE = "images.yaml"  # in place of a lock's name in a finding


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


def newer(config: Config, network: Network) -> Iterator[Finding]:
    """Inputs that images.yaml could use. Raises NetworkError if the package index fails."""
    with PackageIndex(network) as index:
        listed = max((t for c in config.cudas for t in c.torch), key=Version)
        for release in newer_torch(config, index):
            detail = f"-> {release}; `invoke lock --upgrade torch` adds it"
            yield Finding(FILE, "torch", listed, NEWER, detail)
        yield from excluded_packages(config, index)


def newer_torch(config: Config, index: PackageIndex) -> tuple[str, ...]:
    """The final releases of torch that images.yaml lacks, the oldest first.

    They are newer than every listed release, or newer patches of a listed minor version. Raises
    NetworkError.
    """
    listed = sorted(Version(torch) for cuda in config.cudas for torch in cuda.torch)
    patches = {version.release[:2]: version for version in listed}
    return tuple(
        str(version)
        for version in _finals(index, "torch")
        if version > listed[-1] or version > patches.get(version.release[:2], version)
    )


def excluded_packages(config: Config, index: PackageIndex) -> Iterator[Finding]:
    """Packages whose newest release a requirement of images.yaml excludes.

    Of an extra's pins only those for its newest torch count. Raises NetworkError.
    """
    texts = itertools.chain(
        config.packages,
        *(wheels for extra in config.extras for _, wheels in extra.wheels),
        *(pins[-1] for extra in config.extras if (pins := [p for _, p in extra.pins if p])),
        *(variant.wheels for variant in config.variants),
        *(source.wheels for source in config.sources),
    )
    for requirement in map(Requirement, dict.fromkeys(texts)):
        name = canonicalize_name(requirement.name)
        newest = max(_finals(index, name), default=None)
        if newest and newest not in requirement.specifier:
            detail = f"-> {newest}, which images.yaml excludes"
            yield Finding(FILE, name, str(requirement.specifier), NEWER, detail)


def _finals(index: PackageIndex, name: str) -> list[Version]:
    """The final releases of a package with a wheel that is not yanked, in order."""
    texts = {
        file.version
        for file in index.files(name)
        if file.version and file.filename.endswith(".whl") and not file.is_yanked
    }
    versions = (Version(text) for text in texts if is_version(text))
    return sorted(v for v in versions if not v.is_prerelease and not v.local)


def find_cudas(
    config: Config, releases: Iterable[str], *, network: Network, run: Runner
) -> dict[str, str]:
    """The CUDA version of each release of torch in the main index, for the default Python.

    A release that cannot be resolved has the reason instead of a version. Raises NetworkError.
    """
    cudas, python = {}, choose(config).base.python
    for torch in releases:
        item = WheelRequest(name=f"torch-{torch}", request=(f"torch=={torch}",), python=python)
        try:
            cudas[torch] = resolve(item, network=network, run=run).cuda or "none"
        except LockError as error:
            cudas[torch] = error.message
    return cudas


def plan(config: Config, cudas: Mapping[str, str]) -> tuple[tuple[Plan, ...], tuple[str, ...]]:
    """The change to each CUDA version, and notes for a reviewer.

    `cudas` has the CUDA version of each new release, see `find_cudas`. Pure.
    """
    plans, notes = [], []
    for cuda in config.cudas:
        before = own_releases(cuda)
        after = kept(config, cuda, (*before, *(t for t, v in cudas.items() if v == cuda.version)))
        if added := tuple(torch for torch in after if torch not in before):
            gone = tuple(torch for torch in before if torch not in after)
            plans.append(Plan(cuda=cuda.version, releases=after, added=added, dropped=gone))
        for torch in added:
            lacking = [x.name for x in config.extras if x.pins and x.pinned(torch) is None]
            if lacking:
                notes.append(f"torch {torch}: images.yaml pins no {', '.join(lacking)} for it")
    known = {cuda.version for cuda in config.cudas}
    notes += [f"torch {t} is for no CUDA here: {v}" for t, v in cudas.items() if v not in known]
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
