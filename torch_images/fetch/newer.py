"""Newer inputs that images.yaml does not use.

These are newer releases of torch, of CUDA's archives, and of packages that it pins or holds back.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from torch_images.config.types import Config, Cuda
from torch_images.errors import NetworkError
from torch_images.fetch.download import read
from torch_images.fetch.packageindex import PackageIndex
from torch_images.fetch.update import NEWER, UNCHANGED, Finding
from torch_images.host.network import Network
from torch_images.locks.files import is_version

FILE = "images.yaml"  # in place of a lock's name in a finding
_BOUNDS = {"==", "===", "~=", "<", "<="}
_RELEASE = re.compile(rb"redistrib_([0-9]{1,2}\.[0-9]{1,2}\.[0-9]{1,2})\.json(?![.\w])")


def newer(config: Config, network: Network) -> Iterator[Finding]:
    """Inputs that images.yaml could use. Raises NetworkError if the package index fails."""
    with PackageIndex(network) as index:
        listed = max((t for c in config.cudas for t in c.torch), key=Version)
        for release in newer_torch(config, index):
            detail = f"-> {release}; `invoke lock --upgrade torch` adds it"
            yield Finding(FILE, "torch", listed, NEWER, detail)
        yield from held_back(config, index)
    for cuda in config.cudas:
        if cuda.release:
            yield from _archives(cuda, config.archives, network)


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


def held_back(config: Config, index: PackageIndex) -> Iterator[Finding]:
    """Packages whose newest release a requirement or the newest pins of an extra exclude.

    Raises NetworkError.
    """
    pins = ([wheels for _, wheels in extra.pins if wheels] for extra in config.extras)
    texts = itertools.chain(
        config.packages,
        *(wheels for extra in config.extras for _, wheels in extra.wheels),
        *(variant.wheels for variant in config.variants),
        *(source.wheels for source in config.sources),
        *(listed[-1] for listed in pins if listed),
    )
    for text in dict.fromkeys(texts):
        requirement = Requirement(text)
        if not any(clause.operator in _BOUNDS for clause in requirement.specifier):
            continue
        name = canonicalize_name(requirement.name)
        newest = max(_finals(index, name), default=None)
        if newest and newest not in requirement.specifier:
            detail = f"-> {newest}, which images.yaml excludes"
            yield Finding(FILE, name, str(requirement.specifier), NEWER, detail)


def _archives(cuda: Cuda, root: str, network: Network) -> Iterator[Finding]:
    """A newer patch release of a CUDA version's archives, by the list of files at their URL."""
    name = f"CUDA {cuda.version}"
    try:
        releases = _RELEASE.findall(read(f"{root}/", network))
    except NetworkError as error:
        detail = f"newer ones could not be looked up: {error.message}"
        yield Finding(FILE, name, cuda.release, UNCHANGED, detail)
        return
    versions = {text.decode() for text in releases if text.decode().startswith(f"{cuda.version}.")}
    newest = max(versions, key=Version, default=cuda.release)
    if Version(newest) > Version(cuda.release):
        detail = f"-> {newest}; set `release`, and lock toolkit-{cuda.short}"
        yield Finding(FILE, name, cuda.release, NEWER, detail)


def _finals(index: PackageIndex, name: str) -> list[Version]:
    """The final releases of a package with a wheel that is not yanked, in order."""
    texts = {
        file.version
        for file in index.files(name)
        if file.version and file.filename.endswith(".whl") and not file.is_yanked
    }
    versions = (Version(text) for text in texts if is_version(text))
    return sorted(v for v in versions if not v.is_prerelease and not v.local)
