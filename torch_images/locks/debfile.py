"""Debian packages as files: what one says of itself, and what it installs."""

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

# What python-debian and the readers below it raise for files that are damaged.
_DAMAGES = (
    *(ArError, DebError, tarfile.TarError, zstandard.ZstdError, lzma.LZMAError, zlib.error),
    *(EOFError, OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError),
)


def control(deb: LockedDeb, path: Path) -> Deb822:
    """What a package says of itself.

    Raises LockError for a file that is no package, or another one than its lock says: apt would
    take a name that no package has for an expression, or for one to remove.
    """
    with _opened(deb, path) as package:
        found = package.debcontrol()
        said = found.get("Package", ""), found.get("Version", "")
    if said != (deb.name, deb.version):
        raise LockError(
            f"{deb.filename} was locked as {deb.name} {deb.version}, it says "
            f"{shown(' '.join(said))}"
        )
    return found


@contextlib.contextmanager
def files(deb: LockedDeb, path: Path) -> Iterator[tarfile.TarFile]:
    """What a package installs, to be read from front to end.

    Raises LockError for a file that is no package, also while it is read.
    """
    with _opened(deb, path) as package, _content(package) as content:
        yield content


@contextlib.contextmanager
def _opened(deb: LockedDeb, path: Path) -> Iterator[DebFile]:
    """A package; LockError for what is damaged. An OSError with a number is the system's."""
    try:
        with DebFile(path) as package:
            yield package
    except _DAMAGES as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        said = shown(" ".join(str(error).split())) or "it is damaged"
        raise LockError(f"{deb.filename} is not a Debian package: {said}") from None


def _content(package: DebFile) -> tarfile.TarFile:
    name = next((n for n in package.getnames() if n.startswith("data.tar")), "")
    if not name:
        raise DebError("it has no content")
    member = cast("IO[bytes]", package.getmember(name))
    if name.endswith(".zst"):  # Ubuntu's way, which python-debian leaves to a program
        unpacked = zstandard.ZstdDecompressor().stream_reader(member)
        return tarfile.open(fileobj=cast("IO[bytes]", unpacked), mode="r|")
    return tarfile.open(fileobj=member, mode="r|*")
