"""Locked Debian packages and archives -> files: from the cache, a mirror, or a snapshot archive.

Mirrors drop a package soon after a newer one appears. A snapshot archive keeps all of them
(https://snapshot.debian.org). A file must have the hash in the lock, whichever server sends it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import requests

from torch_images.errors import LockError, NetworkError
from torch_images.host.cache import used
from torch_images.host.network import Network, cause
from torch_images.host.web import FILE, Session
from torch_images.host.workers import check_broken_off, workers
from torch_images.locks.debs import DebLock, LockedDeb
from torch_images.locks.sources import LockedArchive, LockedSdist
from torch_images.locks.wheels import LockedWheel

# Some servers answer 403 for a missing file. So do proxies that refuse everything; apt, which runs
# next, reports those.
_GONE = (403, 404, 410)
_CONNECTIONS = 16


Pinned = LockedDeb | LockedArchive | LockedSdist | LockedWheel


def fetch(
    lock: DebLock, folder: Path, *, mirrors: Sequence[str], snapshot: str, network: Network
) -> dict[LockedDeb, Path]:
    """Get every package of a lock into `folder`, as <SHA-256>.deb.

    `mirrors` are the root URLs of archives, `snapshot` that of a snapshot archive; "" for none.
    Raises LockError if all answer and none has a package, or if they have only another file under
    its path; else NetworkError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {deb: folder / f"{deb.sha256}.deb" for deb in lock.debs}
    missing = [deb for deb, path in files.items() if not is_file(deb, path)]
    for deb in files.keys() - missing:
        used(files[deb])
    source = _Source(network, mirrors, snapshot, lock.snapshot)
    with workers(_CONNECTIONS) as pool:
        fetched = list(pool.map(lambda d: _get(source, source.urls(d), files[d], d), missing))
    vanished = [deb for deb, is_here in zip(missing, fetched, strict=True) if not is_here]
    if vanished and source.problem:
        raise _unsettled(vanished, source.problem)
    if vanished:
        names = ", ".join(f"{deb.name} {deb.version}" for deb in vanished)
        raise LockError(
            f"locks/{lock.name}.json: no mirror and no snapshot archive has {names}",
            f"run `invoke lock --select {lock.name}`, or name a mirror in TORCH_IMAGES_MIRROR",
        )
    return files


def fetch_archives(
    archives: Sequence[LockedArchive], folder: Path, network: Network
) -> dict[LockedArchive, Path]:
    """Get every archive into `folder`, named by its SHA-256.

    Raises LockError if one is gone or differs, NetworkError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {archive: folder / archive.sha256 for archive in archives}
    for archive, path in files.items():
        url = network.mirrored(archive.url)
        if not is_file(archive, path) and not fetch_url(url, path, archive, network):
            raise LockError(
                f"{archive.name} {archive.version} is gone from {url}",
                "name a mirror that has it in TORCH_IMAGES_SOURCE_MIRROR",
            )
    return files


def fetch_url(url: str, path: Path, pinned: Pinned, network: Network) -> bool:
    """Get one locked file from a URL to `path`; False if the server does not have it.

    Raises LockError if the file differs, NetworkError.
    """
    return _get(_Source(network), [url], path, pinned)


def read(url: str, network: Network) -> bytes:
    """The content of a page at a URL. Raises NetworkError."""
    return _open(url, network, stream=False).content


def size(url: str, network: Network) -> int | None:
    """The size in bytes of a file at a URL, from its server; None if the file is gone.

    Raises NetworkError.
    """
    try:
        identity = {"Accept-Encoding": "identity"}
        answer = Session(network).head(url, allow_redirects=True, headers=identity)
        if answer.status_code in _GONE:
            return None
        answer.raise_for_status()
        return int(answer.headers["Content-Length"])
    except requests.RequestException as error:
        reason = cause(error)
    except (KeyError, ValueError):
        reason = "its server does not send it"
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    raise NetworkError(f"the size of {name} could not be read: {reason}")


def discover(url: str, folder: Path, network: Network) -> tuple[str, int]:
    """Get a file that is not locked yet into `folder`, named by its SHA-256.

    Returns the SHA-256 in hexadecimal and the size in bytes. Raises NetworkError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    partial, digest = _save(_open(url, network), folder, url, FILE)
    size = partial.stat().st_size
    os.replace(partial, folder / digest)
    return digest, size


def _open(url: str, network: Network, *, stream: bool = True) -> requests.Response:
    """The answer for a URL; a `stream` is not read yet. Raises NetworkError."""
    try:
        answer = Session(network).get(url, stream=stream)
    except requests.RequestException as error:
        problem = cause(error)
    else:
        if answer.status_code == requests.codes.ok:
            return answer
        answer.close()
        problem = f"status {answer.status_code}"
    raise NetworkError(
        f"{url} could not be read: {problem}", "check network and proxy, or name another mirror"
    )


def available(
    lock: DebLock,
    debs: Sequence[LockedDeb],
    *,
    mirrors: Sequence[str],
    snapshot: str,
    network: Network,
) -> set[LockedDeb]:
    """The packages whose locked file a mirror or the snapshot archive still has.

    Raises NetworkError if none that answers has a package, and one does not answer.
    """
    source, present = _Source(network, mirrors, snapshot, lock.snapshot), set()
    for deb in debs:
        statuses = [source.status(url) for url in source.urls(deb)]
        if requests.codes.ok in statuses:
            present.add(deb)
        elif None in statuses:
            raise _unsettled([deb], source.problem)
    return present


class _Source:
    """Mirrors and a snapshot archive. A host that does not answer is asked only once.

    `problem` is the reason of the last one; "" if all answered.
    """

    def __init__(
        self, network: Network, mirrors: Sequence[str] = (), snapshot: str = "", moment: str = ""
    ) -> None:
        self.mirrors = [mirror.rstrip("/") for mirror in mirrors]
        self.problem = ""
        self._snapshot = f"{snapshot.rstrip('/')}/{{archive}}/{moment}" if snapshot else ""
        self._silent: set[str] = set()
        self.session = Session(network)

    def urls(self, deb: LockedDeb) -> list[str]:
        """The URLs that may have a package, the likeliest first, the snapshot archive's last."""
        likely = sorted(self.mirrors, key=lambda m: m.rpartition("/")[2] != deb.archive)
        roots = [*likely, self._snapshot.format(archive=deb.archive)]
        return [f"{root}/{quote(deb.path, safe='/+~')}" for root in roots if root]

    def get(self, url: str) -> requests.Response | None:
        """The answer for a URL, not read yet; None if its host does not answer."""
        host = urlsplit(url).netloc
        if host in self._silent:
            return None
        try:
            answer = self.session.get(url, stream=True)
            if answer.status_code not in (requests.codes.ok, *_GONE):
                with answer:
                    answer.raise_for_status()
        except requests.RequestException as error:
            self._silent.add(host)
            self.problem = cause(error)
            return None
        return answer

    def status(self, url: str) -> int | None:
        """The HTTP status of a URL, without reading the body; None if its host does not answer."""
        if (answer := self.get(url)) is None:
            return None
        with answer:
            return answer.status_code


def _get(source: _Source, urls: Sequence[str], path: Path, pinned: Pinned) -> bool:
    """Save the first file at `urls` with the right hash to `path`; False if none exists.

    Raises LockError if there are only other files, NetworkError if no host answers.
    """
    other, answered = "", False
    for url in urls:
        if (answer := source.get(url)) is None:
            continue
        answered = True
        if answer.status_code != requests.codes.ok:
            answer.close()
            continue
        most = pinned.size or FILE
        partial, digest = _save(answer, path.parent, pinned.filename, most)
        if digest == pinned.sha256:
            os.replace(partial, path)
            return True
        larger = partial.stat().st_size > most
        partial.unlink()
        other = f"more than its {most} bytes" if larger else f"sha256:{digest}"
    if other:
        raise LockError(
            f"{pinned.name} {pinned.version} is not the locked file: expected "
            f"sha256:{pinned.sha256}, found {other}",
            "the server has another one; if that is intended, run `invoke lock --renew --all`",
        )
    if not answered:
        raise NetworkError(
            f"no mirror could be reached: {source.problem or 'none is named'}",
            "check network and proxy, or name a mirror in TORCH_IMAGES_MIRROR",
        )
    return False


def _save(answer: requests.Response, folder: Path, name: str, most: int) -> tuple[Path, str]:
    """Save a body under a temporary name in `folder`. Returns that file and its SHA-256.

    Stops one byte after `most` bytes. The caller renames the file. Raises NetworkError, which says
    `name`.
    """
    digest = hashlib.sha256()
    handle, partial_name = tempfile.mkstemp(dir=folder, prefix=".partial-")
    partial = Path(partial_name)
    try:
        with os.fdopen(handle, "wb") as stream, answer:
            for data in answer.iter_content(1 << 18):
                check_broken_off()
                chunk = data[: most + 1 - stream.tell()]
                digest.update(chunk)
                stream.write(chunk)
                if stream.tell() > most:
                    break
        partial.chmod(0o644)
    except BaseException as error:
        partial.unlink()
        if isinstance(error, requests.RequestException):
            raise NetworkError(f"the download of {name} failed: {cause(error)}") from None
        raise
    return partial, digest.hexdigest()


def is_file(pinned: Pinned, path: Path) -> bool:
    """Whether a file exists and has the locked SHA-256."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == pinned.sha256
    except FileNotFoundError:
        return False


def _unsettled(debs: Sequence[LockedDeb], problem: str) -> NetworkError:
    """The error for packages that no answering source has, while another did not answer."""
    names = ", ".join(f"{deb.name} {deb.version}" for deb in debs)
    return NetworkError(
        f"no answering archive has {names}, and one does not answer: {problem}",
        "check network and proxy, or name a mirror that has them in TORCH_IMAGES_MIRROR",
    )
