"""The package index: look a locked wheel up, and fetch it.

pypi-simple reads the index (PEP 503, PEP 691). host/network.py says which index is asked.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import requests

from torch_images.errors import LockError, NetworkError, shown
from torch_images.fetch.download import fetch_url
from torch_images.host.network import Network, cause
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
        from pypi_simple import NoSuchProjectError, UnsupportedRepoVersionError

        try:
            page = self._index.get_project_page(wheel.name)
        except NoSuchProjectError:
            return None
        except requests.JSONDecodeError as error:
            raise _malformed(wheel, error) from None
        except requests.RequestException as error:
            raise NetworkError(
                f"the package index could not be asked: {cause(error)}", _WAYS
            ) from None
        except (
            *(UnsupportedRepoVersionError, ValueError, LookupError, TypeError),
            *(AttributeError, AssertionError, RecursionError),
        ) as error:
            raise _malformed(wheel, error) from None
        return next((f for f in page.packages if f.filename == wheel.filename), None)

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


def _malformed(wheel: LockedWheel, error: Exception) -> NetworkError:
    """The error for a page of the index that cannot be understood."""
    said = shown(" ".join(str(error).split())) or type(error).__name__
    return NetworkError(
        f"the package index's page of {wheel.name} cannot be understood: {said}", _WAYS
    )
