"""Files of Debian packages: their control data, and the files that they install."""

from __future__ import annotations

import contextlib
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import zstandard
from debian.arfile import ArError
from debian.deb822 import Deb822
from debian.debfile import DebError, DebFile

from torch_images.errors import LockError, shown
from torch_images.locks.debs import LockedDeb

# Exceptions of python-debian and the readers below it for damaged files.
_DAMAGES = (
    *(ArError, DebError, tarfile.TarError, zstandard.ZstdError, lzma.LZMAError, zlib.error),
    *(EOFError, OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError),
)


def control(deb: LockedDeb, path: Path) -> Deb822:
    """The control data of the package in a file: its fields by name, e.g. "Depends".

    Raises LockError if the file is not a package, or its name or version differs from the lock's.
    apt must not see another name: it could read it as an expression, or as a package to remove.
    """
    with _opened(deb, path) as package:
        fields = package.debcontrol()
        identity = fields.get("Package", ""), fields.get("Version", "")
    if identity != (deb.name, deb.version):
        raise LockError(
            f"{deb.filename} was locked as {deb.name} {deb.version}, but says "
            f"{shown(' '.join(identity))}"
        )
    return fields


@contextlib.contextmanager
def files(deb: LockedDeb, path: Path) -> Iterator[tarfile.TarFile]:
    """The archive of the files that a package installs, which can be read once, in order.

    Raises LockError if the file is not a package, also while the archive is being read.
    """
    with _opened(deb, path) as package, _content(package) as content:
        yield content


@contextlib.contextmanager
def _opened(deb: LockedDeb, path: Path) -> Iterator[DebFile]:
    """Open a package. Raises LockError for a damaged package, also while it is being read.

    An OSError with a number comes from the system, e.g. for a missing file, and is passed on.
    """
    try:
        with DebFile(path) as package:
            yield package
    except _DAMAGES as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = shown(" ".join(str(error).split())) or "it is damaged"
        raise LockError(f"{deb.filename} is not a Debian package: {reason}") from None


def _content(package: DebFile) -> tarfile.TarFile:
    """The archive of a package's files, as a stream. Raises DebError if it has none."""
    name = next((n for n in package.getnames() if n.startswith("data.tar")), "")
    if not name:
        raise DebError("it has no content")
    member = cast("IO[bytes]", package.getmember(name))
    if name.endswith(".zst"):  # Ubuntu's format, for which python-debian needs a program
        unpacked = zstandard.ZstdDecompressor().stream_reader(member)
        return tarfile.open(fileobj=cast("IO[bytes]", unpacked), mode="r|")
    return tarfile.open(fileobj=member, mode="r|*")
