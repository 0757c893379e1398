"""Inputs of compiling besides packages and wheels: trees, Triton's and NVIDIA's archives.

The host gets all of them before a build begins, so that the build itself needs no network.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch_images import jsondoc
from torch_images.config.types import Cuda
from torch_images.errors import LockError, shown
from torch_images.fetch.checkout import check_out, read_file
from torch_images.fetch.download import discover, fetch_archives, read
from torch_images.host.cache import Part, filling, used
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.locks.sources import LockedArchive, LockedTree, SourceLock

# From Triton's setup.py (get_llvm_package_info, get_json_package_info). Its LLVM for Ubuntu needs
# glibc 2.35; every base has 2.36.
_LLVM = "https://oaitriton.blob.core.windows.net/public/llvm-builds/llvm-{name}.tar.gz"
_SYSTEM = "ubuntu-x64"
_JSON = "https://github.com/nlohmann/json/releases/download/{version}/include.zip"
_PLATFORM = "linux-x86_64"  # in the lists of NVIDIA's releases

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ReadySources:
    """The sources that a build compiles.

    `lock`: the lock of trees and archives, which a build without `locked` may have completed.
    `trees`: the folder of each tree, by "torch", and "triton" if that is compiled.
    `archives`: the folder with the archives that Triton's build needs.
    """

    lock: SourceLock
    trees: Mapping[str, Path]
    archives: Path


def prepare(
    lock: SourceLock, *, cache: Path, network: Network, run: Runner, locked: bool = False
) -> ReadySources:
    """Get the trees of a source, and the archives that its Triton needs.

    Adds an archive that is not locked to the lock, with a warning; with `locked` that is a
    LockError. Raises NetworkError and DiskError as well.
    """
    if locked and lock.unlocked:
        raise LockError(
            f"locks/{lock.name}.json was not resolved by `invoke lock`",
            f"run `invoke lock --select {lock.name}`, and build without --torch-source",
        )
    trees = {
        tree.name: check_out(tree, cache=cache, network=network, run=run) for tree in lock.trees
    }
    archives, new = _archives(trees.get("triton"), lock, cache, network)
    if new:
        names = ", ".join(f"{archive.name} {archive.version}" for archive in new)
        if locked:
            raise LockError(
                f"locks/{lock.name}.json lacks {names}", f"run `invoke lock --select {lock.name}`"
            )
        _log.warning(
            "%s was not locked and is used as served; the image will be marked as unlocked",
            names,
        )
    lock = replace(lock, archives=archives, unlocked=lock.unlocked or bool(new))
    return ReadySources(
        lock=lock, trees=trees, archives=archive_folder(lock, cache=cache, network=network)
    )


def resolve_sources(
    name: str,
    request: tuple[str, ...],
    trees: tuple[LockedTree, ...],
    *,
    known: tuple[LockedArchive, ...] = (),
    cache: Path,
    network: Network,
    run: Runner,
    date: dt.date,
) -> SourceLock:
    """The lock of a source: its trees, and the archives that its Triton needs today.

    `name`, `request` and `date` are the lock's. An archive in `known` is not downloaded.
    Raises NetworkError, LockError, DiskError.
    """
    lock = SourceLock(name=name, date=date, request=request, trees=trees, archives=known)
    tree = next((tree for tree in trees if tree.name == "triton"), None)
    triton = check_out(tree, cache=cache, network=network, run=run) if tree else None
    return replace(lock, archives=_archives(triton, lock, cache, network)[0])


def resolve_toolkit(
    name: str, request: tuple[str, ...], cuda: Cuda, *, root: str, network: Network, date: dt.date
) -> SourceLock:
    """The lock of a CUDA version's compiler, from the list of NVIDIA's release.

    `name`, `request` and `date` are the lock's; `root` is the URL of NVIDIA's archives.
    Raises NetworkError, and LockError for an archive that the release lacks.
    """
    url = f"{root}/redistrib_{cuda.release}.json"
    archives = []
    try:
        listed = jsondoc.parse(read(url, network))
        for package in cuda.archives:
            file = listed[package][_PLATFORM]
            archive = LockedArchive(
                name=package,
                version=listed[package]["version"],
                url=f"{root}/{file['relative_path']}",
                size=int(file["size"]),  # NVIDIA writes it as text
                sha256=file["sha256"],
            )
            archives.append(archive)
    except (ValueError, LookupError, TypeError) as error:
        raise LockError(
            f"{url} does not list all archives for {_PLATFORM}: {shown(str(error))}",
            "correct `archives` in images.yaml",
        ) from None
    return SourceLock(name=name, date=date, request=request, archives=tuple(sorted(archives)))


def _archives(
    triton: Path | None, lock: SourceLock, cache: Path, network: Network
) -> tuple[tuple[LockedArchive, ...], list[LockedArchive]]:
    """The archives that a tree of Triton needs, sorted; and those that were not locked.

    An archive whose hash the tree itself states counts as locked. Without a tree there are none.
    """
    if triton is None:
        return (), []
    known = {(a.name, a.version): a for a in lock.archives}
    archives, new = [], []
    for name, version, url, sha256 in _downloads(triton):
        archive = known.get((name, version))
        if archive is None or (sha256 and archive.sha256 != sha256):
            digest, size = discover(url, cache / Part.ARCHIVES, network)
            if sha256 and digest != sha256:
                raise LockError(
                    f"{url} is not the file that Triton names: expected sha256:{sha256}, found "
                    f"sha256:{digest}"
                )
            archive = LockedArchive(name=name, version=version, url=url, size=size, sha256=digest)
            if not sha256:
                new.append(archive)
        archives.append(archive)
    return tuple(sorted(archives)), new


def _downloads(triton: Path) -> Iterable[tuple[str, str, str, str]]:
    """Name, version, URL and SHA-256 of each archive that Triton's setup.py would download.

    The SHA-256 is "" if the tree does not state one. Raises LockError if the files that name the
    archives do not have the form that setup.py expects.
    """
    info = "cmake/llvm-info.json"
    if text := read_file(triton, info):  # newer ones pin their LLVM themselves
        try:
            document = jsondoc.parse(text)
            commit, number = str(document["llvm_hash"]), str(document["build_number"])
            sha256 = str(document["sha256sum"][_SYSTEM])
        except (ValueError, KeyError, TypeError):
            commit = number = sha256 = ""
        _check(triton, info, r"[0-9a-f]{40} [0-9]{1,9} [0-9a-f]{64}", f"{commit} {number} {sha256}")
        name = f"{commit[:8]}-{_SYSTEM}-{number}"
    else:
        file, sha256 = "cmake/llvm-hash.txt", ""
        commit = (read_file(triton, file) or "").strip()
        _check(triton, file, "[0-9a-f]{8,40}", commit)
        name = f"{commit[:8]}-{_SYSTEM}"
    yield "llvm", name, _LLVM.format(name=name), sha256
    file = "cmake/json-version.txt"
    version = (read_file(triton, file) or "").strip()
    _check(triton, file, r"v?[0-9]+(\.[0-9]+){0,3}", version)
    yield "json", version, _JSON.format(version=version), ""


def _check(tree: Path, name: str, pattern: str, text: str) -> None:
    """Raise LockError unless `text`, from the file `name` of a tree, matches `pattern`."""
    if not re.fullmatch(pattern, text):
        raise LockError(f"{name} of {tree.parent.name} does not name Triton's downloads")


def archive_folder(lock: SourceLock, *, cache: Path, network: Network) -> Path:
    """The cache's folder with exactly the archives of a lock, each under its own file name.

    Raises LockError if one is gone or differs, NetworkError, DiskError.
    """
    files = fetch_archives(lock.archives, cache / Part.ARCHIVES, network)
    key = hashlib.sha256(
        "".join(sorted(f"{a.name}=={a.version} sha256:{a.sha256}" for a in files)).encode()
    ).hexdigest()[:16]
    folder = cache / Part.ARCHIVE_SETS / key
    if not folder.exists():
        with filling(folder) as new:
            for archive, path in files.items():
                shutil.copyfile(path, new / archive.filename)
    return used(folder)
