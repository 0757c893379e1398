"""The package index: look a locked wheel up, and fetch it.

pypi-simple reads the index (PEP 503, PEP 691). host/network.py says which index is asked.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import requests

from torch_images.errors import LockError, NetworkError, shown
from torch_images.fetch.download import fetch_url
from torch_images.host.network import Network, cause
from torch_images.locks import grammar
from torch_images.locks.wheels import LockedWheel

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage

_WAYS = (
    "check network and proxy (HTTPS_PROXY), certificates (SSL_CERT_FILE) and mirror "
    "(UV_DEFAULT_INDEX)"
)


class PackageIndex:
    """A package index. Several threads may ask it at once."""

    def __init__(self, network: Network) -> None:
        # Not above: it takes long to import, and most runs find all layers made.
        from pypi_simple import PYPI_SIMPLE_ENDPOINT, PyPISimple

        self._network = network
        session = requests.Session()
        session.verify = network.verify
        self._index = PyPISimple(network.index or PYPI_SIMPLE_ENDPOINT, session=session)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._index.__exit__(kind, value, traceback)

    def find(self, wheel: LockedWheel) -> DistributionPackage | None:
        """The index's entry with the file name of a locked wheel; None if it has none.

        Raises NetworkError, also for a page that cannot be understood.
        """
        files = self._files(wheel.name)
        return next((f for f in files if f.filename == wheel.filename), None)

    def days(self, name: str) -> dict[str, dt.date]:
        """The day (UTC) on which the index got the first file of each version (PEP 700).

        Versions without a date are left out. Raises NetworkError as `find` does.
        """
        days: dict[str, dt.date] = {}
        for file in self._files(name):
            if file.version and file.upload_time and grammar.is_version(file.version):
                day = file.upload_time.astimezone(dt.UTC).date()
                days[file.version] = min(day, days.get(file.version, day))
        return days

    def _files(self, name: str) -> tuple[DistributionPackage, ...]:
        """The files that the index has of a project; () if it does not know the project."""
        from pypi_simple import NoSuchProjectError, UnsupportedRepoVersionError

        try:
            return tuple(self._index.get_project_page(name).packages)
        except NoSuchProjectError:
            return ()
        except requests.JSONDecodeError as error:
            raise _malformed(name, error) from None
        except requests.RequestException as error:
            raise NetworkError(
                f"the package index could not be asked: {cause(error)}", _WAYS
            ) from None
        except (
            *(UnsupportedRepoVersionError, ValueError, LookupError, TypeError),
            *(AttributeError, AssertionError, RecursionError),
        ) as error:
            raise _malformed(name, error) from None

    def fetch(self, wheel: LockedWheel, folder: Path) -> Path:
        """Put a wheel into a folder, under its own name.

        Raises LockError if the index has no such file or another one, NetworkError, DiskError.
        """
        file, path = self.find(wheel), folder / wheel.filename
        if not file or not fetch_url(file.url, path, wheel, self._network):
            raise LockError(
                f"a locked wheel is not in the package index ({wheel.filename})",
                "run `invoke lock`, or name an index that has it in UV_DEFAULT_INDEX",
            )
        return path


def _malformed(name: str, error: Exception) -> NetworkError:
    """The error for a page of the index that cannot be understood."""
    said = shown(" ".join(str(error).split())) or type(error).__name__
    return NetworkError(f"the package index's page of {name} cannot be understood: {said}", _WAYS)
