"""Package indexes: look up a locked wheel or source distribution, and fetch it.

pypi-simple reads an index (PEP 503, PEP 691). A file is looked up in the index that its lock
names, else in the main index, see host/network.py.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import requests

from torch_images.errors import LockError, NetworkError, shown
from torch_images.fetch.download import fetch_url
from torch_images.host.network import Network, cause
from torch_images.host.web import Session
from torch_images.locks.sources import LockedSdist
from torch_images.locks.wheels import LockedWheel

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage, PyPISimple

_WAYS = (
    "check network and proxy (HTTPS_PROXY), certificates (SSL_CERT_FILE) and mirror "
    "(UV_DEFAULT_INDEX)"
)


class PackageIndex(contextlib.ExitStack):
    """The package indexes, each asked once for a project. Several threads may use it at once.

    Each has its own session, so that no index gets the password of another.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network
        self._lock = threading.Lock()
        self._clients: dict[str, PyPISimple] = {}
        self._pages: dict[tuple[str, str], tuple[DistributionPackage, ...]] = {}

    def _client(self, index: str) -> PyPISimple:
        """The client for an index; "" for the main one."""
        # Imported here because it is slow, and most runs have all layers cached.
        from pypi_simple import PYPI_SIMPLE_ENDPOINT, PyPISimple

        with self._lock:
            if index not in self._clients:
                url = index or self._network.index or PYPI_SIMPLE_ENDPOINT
                client = PyPISimple(url, session=Session(self._network))
                self._clients[index] = self.enter_context(client)
            return self._clients[index]

    def find(self, wheel: LockedWheel | LockedSdist) -> DistributionPackage | None:
        """The entry with the name of a locked file, in its index; None if it has none.

        Raises NetworkError, also for a malformed page.
        """
        files = self.files(wheel.name, wheel.index)
        return next((f for f in files if f.filename == wheel.filename), None)

    def files(self, name: str, index: str = "") -> tuple[DistributionPackage, ...]:
        """The files that an index has of a project; () if it does not know the project.

        `index` is its URL, "" for the main one. Raises NetworkError as `find` does.
        """
        if (name, index) not in self._pages:
            self._pages[name, index] = self._ask(name, index)
        return self._pages[name, index]

    def _ask(self, name: str, index: str) -> tuple[DistributionPackage, ...]:
        from pypi_simple import NoSuchProjectError, UnsupportedRepoVersionError

        try:
            return tuple(self._client(index).get_project_page(name).packages)
        except NoSuchProjectError:
            return ()
        except (
            *(requests.RequestException, UnsupportedRepoVersionError, ValueError, LookupError),
            *(TypeError, AttributeError, AssertionError, RecursionError),
        ) as error:
            reason = shown(" ".join(str(error).split())) or type(error).__name__
            if isinstance(error, requests.RequestException):
                reason = cause(error)
            raise NetworkError(
                f"{_called(index)}'s page of {name} could not be read: {reason}",
                _WAYS,
            ) from None

    def fetch(self, wheel: LockedWheel | LockedSdist, folder: Path) -> Path:
        """Put a locked file into a folder, under its own name.

        Raises LockError if its index lacks the file or has another one, NetworkError, DiskError.
        """
        file, path = self.find(wheel), folder / wheel.filename
        if not file or not fetch_url(file.url, path, wheel, self._network):
            raise LockError(
                f"a locked file is not in {_called(wheel.index)} ({wheel.filename})",
                "run `invoke lock --renew --all`"
                + ("" if wheel.index else ", or name an index that has it in UV_DEFAULT_INDEX"),
            )
        return path


def _called(index: str) -> str:
    """The name of an index in messages; the URL of the main one may have a password."""
    return f"the index {index}" if index else "the package index"
