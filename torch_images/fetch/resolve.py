"""Resolve wheels where a release of torch is in an index beside the main one.

uv asks that index for nothing but the packages that it is named for: it gets a folder with copies
of their pages, as an index that comes first. uv takes a package from the first index that has it
(https://docs.astral.sh/uv/concepts/indexes), so the main index is not asked for these packages, nor
the other one for any else. Afterwards each wheel is looked for where it should have come from,
whatever uv did.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from torch_images.config.indexes import Index
from torch_images.errors import LockError, NetworkError
from torch_images.fetch.packageindex import PackageIndex
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.locks import wheels
from torch_images.locks.wheels import MAIN, LockedWheel, OtherIndex, Requirements, WheelLock

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage


def resolve(
    wanted: Requirements, *, network: Network, run: Runner, index: Index | None = None
) -> WheelLock:
    """Resolve as `locks.wheels.resolve` does, with `index` for the packages that it is named for.

    Raises LockError, also for a wheel that is not where it should be, by name; and NetworkError.
    """
    attempt = partial(wheels.resolve, wanted, network=network, run=run)
    if not index:
        return attempt()
    with PackageIndex(network) as asked, tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_pages(index, asked, folder)
        try:
            lock = attempt(other=OtherIndex(index=index, settings=(("UV_INDEX", folder.as_uri()),)))
        except LockError as error:
            problem: LockError | None = None
            # With the index open for what the main one has not, it may show which name is missing.
            # What comes of that is never locked.
            with contextlib.suppress(LockError, NetworkError):
                shown = attempt(
                    other=OtherIndex(index=index, settings=_open(index, folder, network))
                )
                problem = unnamed(_missing(shown, asked), index, asked)
            raise (problem or error) from None
        check_origin(lock, index, asked)
        return lock


def write_pages(index: Index, asked: PackageIndex, folder: Path) -> None:
    """Write an index (PEP 503) with the pages of the packages that another one is named for.

    Raises NetworkError.
    """
    with ThreadPoolExecutor(8) as pool:
        pages = pool.map(lambda name: asked.files(name, index.url), index.packages)
    for name, files in zip(index.packages, pages, strict=True):
        lines = [_link(file) for file in files if file.url.startswith(("http://", "https://"))]
        if lines:
            (folder / name).mkdir()
            text = f"<!DOCTYPE html><html><body>{'<br>'.join(lines)}</body></html>"
            data = text.encode(errors="xmlcharrefreplace")  # JSON can have half a character
            (folder / name / "index.html").write_bytes(data)


def check_origin(lock: WheelLock, index: Index, asked: PackageIndex) -> None:
    """Raise LockError unless the index of each wheel's origin has it, with the SHA-256 of the lock.

    Raises NetworkError, too.
    """
    missing = _missing(lock, asked)
    if problem := unnamed(missing, index, asked):
        raise problem
    for wheel in missing:
        raise LockError(
            f"{wheel.name} {wheel.version} is not in {wheel.index or MAIN}, "
            "where images.yaml says that it comes from",
            f"correct `packages` of the index {index.url}",
        )


def unnamed(missing: Iterable[LockedWheel], index: Index, asked: PackageIndex) -> LockError | None:
    """The error for the first wheel that only an index has which is not named for it.

    `missing` are wheels that are not where they should come from. None if no index has them.
    """
    for wheel in missing:
        if any(_same(file, wheel) for file in asked.files(wheel.name, index.url)):
            return LockError(
                f"{wheel.name} {wheel.version} is in {index.url} only, which is not named for it",
                f"if that is meant, name {wheel.name} under `packages` of this index",
            )
    return None


def _missing(lock: WheelLock, asked: PackageIndex) -> tuple[LockedWheel, ...]:
    """The wheels that the index of their origin does not have, or only as another file."""
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(asked.find, lock.wheels)
    pairs = zip(lock.wheels, found, strict=True)
    return tuple(wheel for wheel, file in pairs if not file or not _same(file, wheel))


def _same(file: DistributionPackage, wheel: LockedWheel) -> bool:
    return file.digests.get("sha256") == wheel.sha256


def _open(index: Index, folder: Path, network: Network) -> tuple[tuple[str, str], ...]:
    """Settings under which uv takes from the index what the main one has not."""
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    return (
        ("UV_INDEX", f"{folder.as_uri()} {network.index or PYPI_SIMPLE_ENDPOINT}"),
        ("UV_DEFAULT_INDEX", index.url),
        ("UV_INDEX_STRATEGY", "unsafe-first-match"),
    )


def _link(file: DistributionPackage) -> str:
    """A file as the page of a project names it."""
    sha256 = file.digests.get("sha256", "")
    facts = {"href": file.url + (f"#sha256={sha256}" if sha256 else "")}
    if file.requires_python:
        facts["data-requires-python"] = file.requires_python
    if file.is_yanked:
        facts["data-yanked"] = file.yanked_reason or ""
    if file.has_metadata:
        said = (file.metadata_digests or {}).get("sha256", "")
        facts["data-core-metadata"] = f"sha256={said}" if said else "true"
    words = " ".join(f'{key}="{escape(value)}"' for key, value in facts.items())
    return f"<a {words}>{escape(file.filename)}</a>"
