"""Inputs of compiling besides packages and wheels: trees, source distributions, archives.

The host gets all of them before a build begins, so that the build itself needs no network.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from torch_images.config.lock_requests import SourceRequest, ToolkitRequest
from torch_images.errors import LockError, shown
from torch_images.fetch.checkout import check_out, read_file
from torch_images.fetch.download import discover, fetch_archives, read
from torch_images.fetch.packageindex import PackageIndex
from torch_images.fetch.tools import today
from torch_images.host.cache import Part, filling, used
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.locks.files import is_version
from torch_images.locks.sources import LockedArchive, LockedSdist, SourceLock, locked_trees

# From Triton's setup.py (get_llvm_package_info, get_json_package_info). Its LLVM for Ubuntu needs
# glibc 2.35; every base has 2.36.
_LLVM = "https://oaitriton.blob.core.windows.net/public/llvm-builds/llvm-{name}.tar.gz"
_SYSTEM = "ubuntu-x64"
_JSON = "https://github.com/nlohmann/json/releases/download/{version}/include.zip"
_PLATFORM = "linux-x86_64"  # in the lists of NVIDIA's releases


@dataclass(frozen=True, kw_only=True)
class ReadySources:
    """The sources that a build compiles.

    `trees`: the folder of each tree, by "torch", and "triton" if that is compiled.
    `archives`: the folder with the archives that Triton's build needs.
    """

    trees: Mapping[str, Path]
    archives: Path


def prepare(lock: SourceLock, *, cache: Path, network: Network, run: Runner) -> ReadySources:
    """Get the trees of a source, and the archives that its Triton needs.

    Raises LockError, NetworkError and DiskError.
    """
    if not lock.archives and any(tree.name == "triton" for tree in lock.trees):
        raise LockError(
            f"locks/{lock.name}.json lacks the archives that Triton's build needs",
            f"run `invoke lock --select {lock.name}`",
        )
    trees = {
        tree.name: check_out(tree, cache=cache, network=network, run=run) for tree in lock.trees
    }
    return ReadySources(trees=trees, archives=archive_folder(lock, cache=cache, network=network))


def resolve_sources(
    item: SourceRequest, *, cache: Path, network: Network, run: Runner
) -> SourceLock:
    """The lock of a source: its trees, the archives that its Triton needs today, and the extras.

    Raises NetworkError, LockError, DiskError.
    """
    trees, archives = locked_trees(item.source), list[LockedArchive]()
    for tree in trees:
        if tree.name == "triton":
            folder = check_out(tree, cache=cache, network=network, run=run)
            archives = [
                _archive(*file, cache=cache, network=network) for file in _downloads(folder)
            ]
    return SourceLock(
        name=item.name,
        date=today(),
        request=item.request,
        trees=trees,
        archives=tuple(sorted(archives)),
        sdists=tuple(_sdists(item.request, network)),
    )


def _sdists(request: Iterable[str], network: Network) -> Iterator[LockedSdist]:
    """The source distributions that a request names, as the main index has them today."""
    with PackageIndex(network) as index:
        for word in sorted(word for word in request if "==" in word):
            name, version = word.split("==")
            for file in index.files(name):
                text = file.version or ""
                same = is_version(text) and Version(text) == Version(version)
                if same and file.filename.endswith(".tar.gz"):
                    yield LockedSdist(
                        name=name,
                        version=version,
                        filename=file.filename,
                        size=file.size or 0,
                        sha256=file.digests.get("sha256", ""),
                    )
                    break
            else:
                raise LockError(
                    f"the package index has no source distribution of {name} {version}",
                    "correct `source` in images.yaml",
                )


def resolve_toolkit(item: ToolkitRequest, network: Network) -> SourceLock:
    """The lock of a CUDA version's compiler, from the list of NVIDIA's release.

    Raises NetworkError, and LockError for an archive that the release lacks.
    """
    url = f"{item.archives}/redistrib_{item.cuda.release}.json"
    archives = []
    try:
        listed = json.loads(read(network.mirrored(url), network))
        for package in item.cuda.archives:
            file = listed[package][_PLATFORM]
            archive = LockedArchive(
                name=package,
                version=listed[package]["version"],
                url=f"{item.archives}/{file['relative_path']}",
                size=int(file["size"]),  # NVIDIA writes it as text
                sha256=file["sha256"],
            )
            archives.append(archive)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise LockError(
            f"{url} does not list all archives for {_PLATFORM}: {shown(str(error))}",
            "correct `archives` in images.yaml",
        ) from None
    return SourceLock(
        name=item.name, date=today(), request=item.request, archives=tuple(sorted(archives))
    )


def _archive(
    name: str, version: str, url: str, sha256: str, *, cache: Path, network: Network
) -> LockedArchive:
    """One of the archives of `_downloads`, as its server has it today."""
    digest, size = discover(network.mirrored(url), cache / Part.ARCHIVES, network)
    if sha256 and digest != sha256:
        raise LockError(
            f"{url} is not the file that Triton names: expected sha256:{sha256}, found "
            f"sha256:{digest}"
        )
    return LockedArchive(name=name, version=version, url=url, size=size, sha256=digest)


def _downloads(triton: Path) -> Iterable[tuple[str, str, str, str]]:
    """Name, version, URL and SHA-256 of each archive that Triton's setup.py would download.

    The SHA-256 is "" if the tree does not state one. Raises LockError if the files that name the
    archives do not have the form that setup.py expects.
    """
    info = "cmake/llvm-info.json"
    if text := read_file(triton, info):  # newer ones pin their LLVM themselves
        try:
            document = json.loads(text)
            commit, number = str(document["llvm_hash"]), str(document["build_number"])
            sha256 = str(document["sha256sum"][_SYSTEM])
        except (ValueError, KeyError, TypeError, RecursionError):
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


def sdist_folder(lock: SourceLock, *, cache: Path, network: Network) -> Path:
    """The cache's folder with exactly the source distributions of a lock, under their names.

    Raises LockError if the index lacks one or has another file, NetworkError, DiskError.
    """
    text = "".join(f"{s.name}=={s.version} sha256:{s.sha256}" for s in lock.sdists)
    folder = cache / Part.ARCHIVE_SETS / hashlib.sha256(text.encode()).hexdigest()[:16]
    if not folder.exists():
        with filling(folder) as new, PackageIndex(network) as index:
            for sdist in lock.sdists:
                index.fetch(sdist, new)
    return used(folder)
