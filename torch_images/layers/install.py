"""Wheels -> a tar with them installed, in one pass, without temporary files.

Equal wheels give equal bytes: members in the order of the wheels, one time for all, numeric owners.
`installer` installs the wheels (https://installer.readthedocs.io); this module decides where their
files go.

A standalone build also runs this module, with the standard library, `installer` and `packaging`:
see build/standalone.py. So it imports nothing else.
"""

from __future__ import annotations

import base64
import configparser
import contextlib
import csv
import hashlib
import io
import lzma
import os
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

import installer
from installer.destinations import WheelDestination
from installer.exceptions import InstallerError
from installer.records import Hash, InvalidRecordEntry, RecordEntry, parse_record_file
from installer.scripts import Script
from installer.sources import WheelFile
from installer.utils import Scheme, construct_record_file, parse_metadata_file
from packaging.utils import canonicalize_name
from packaging.version import Version

from torch_images.arch_list import ArchListError, narrowed
from torch_images.errors import BuildError, shown
from torch_images.fatbin import PruneError, prune
from torch_images.layers.wheelzip import Damaged, WheelZip, is_inside

if TYPE_CHECKING:
    from installer.scripts import ScriptSection

    from torch_images.config.types import Removal

VENV = "/opt/venv"

_CHUNK = 1 << 20
# Exceptions of `installer`, `zipfile` and the readers below them for damaged wheels.
_DAMAGES = (
    *(InstallerError, InvalidRecordEntry, zipfile.BadZipFile, Damaged, lzma.LZMAError),
    *(configparser.Error, csv.Error, struct.error, EOFError, OSError),
    *(ValueError, LookupError, TypeError, AssertionError, RuntimeError),
)


def write_tar(
    wheels: Sequence[Path],
    target: IO[bytes],
    *,
    python: str,
    mtime: int,
    removals: Iterable[Removal] = (),
    arches: Sequence[int] = (),
) -> tuple[str, ...]:
    """Write a tar with these wheels installed to `target`, which needs `write` and `tell`.

    Returns the paths of its files.

    `wheels` have their own file names; `python` is the version of the image's environment, such as
    "3.11"; `mtime` is the time of each file, in seconds since 1970. `removals` are those of these
    wheels; of machine code, they keep that for `arches`, numbers such as 90. Raises BuildError for
    a removal that matches nothing, and for a damaged wheel.
    """
    with tarfile.open(fileobj=target, mode="w:", format=tarfile.PAX_FORMAT) as tar:
        tar.copybufsize = _CHUNK  # type: ignore[attr-defined]
        place = _Place(tar, python, mtime=mtime, removals=tuple(removals), arches=arches)
        for wheel in wheels:
            with _wheel_errors(wheel), WheelZip(wheel) as archive, warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # bytecode is left out
                source = WheelFile(archive)
                _check(source, archive)
                place.enter(source, archive)
                installer.install(source, place, {})
        files = tuple(member.name for member in tar.getmembers() if not member.isdir())
    if place.unmatched:
        names = ", ".join(path.name for path in wheels)
        raise BuildError(
            f"nothing to remove: {names} has no {min(place.unmatched)}",
            "correct `removals` in images.yaml",
        )
    return files


class _Place(WheelDestination):
    """The destination of `installer`: a tar, below /opt/venv."""

    def __init__(
        self,
        tar: tarfile.TarFile,
        python: str,
        *,
        mtime: int,
        removals: Sequence[Removal],
        arches: Sequence[int],
    ) -> None:
        self._tar, self._mtime, self._arches = tar, mtime, arches
        self._folders: set[str] = set()  # those in the tar
        self._files, self._code, self._symbols, self._lists = (
            [glob for removal in removals for glob in getattr(removal, kind)]
            for kind in ("files", "code", "symbols", "lists")
        )
        self.unmatched = {*self._files, *self._code, *self._symbols, *self._lists}
        self._site = f"{VENV}/lib/python{python}/site-packages"
        self._roots: Mapping[str, str] = {
            "purelib": self._site,
            "platlib": self._site,
            "scripts": f"{VENV}/bin",
            "headers": f"{VENV}/include/site/python{python}",
            "data": VENV,
        }

    def enter(self, source: WheelFile, archive: zipfile.ZipFile) -> None:
        """Begin with another wheel."""
        self._sizes = {info.filename: info.file_size for info in archive.infolist()}
        self._hashes = _hashes(source)
        self._gone: set[str] = set()

    def write_script(
        self, name: str, module: str, attr: str, section: ScriptSection
    ) -> RecordEntry:
        """A script that calls an entry point."""
        name, data = Script(name, module, attr, section).generate(f"{VENV}/bin/python", "posix")
        return self._write(Scheme("scripts"), name, data, executable=True)

    def write_file(
        self,
        scheme: Scheme,
        path: str | os.PathLike[str],
        stream: BinaryIO,
        is_executable: bool,
    ) -> RecordEntry:
        """One file of the wheel."""
        path = os.fspath(path)
        if scheme in ("purelib", "platlib"):
            if self._matches(path, self._files):
                self._gone.add(path)
                return RecordEntry(path, None, None)
            code, symbols, lists = (
                self._matches(path, globs) for globs in (self._code, self._symbols, self._lists)
            )
            if code or symbols or lists:
                data, arches = stream.read(), self._arches if code else None
                try:
                    data = narrowed(data, self._arches) if lists else data
                    data = prune(memoryview(data), arches, symbols=symbols)
                except (ArchListError, PruneError) as error:
                    raise BuildError(
                        f"{path} cannot be pruned: {error}",
                        "build without --arch, or correct `removals` in images.yaml",
                    ) from None
                return self._write(scheme, path, data, executable=is_executable)
            if path in self._hashes:  # unchanged: the hash in the wheel stays valid
                size = self._sizes[path]
                self._add(scheme, path, size, stream, is_executable)
                return RecordEntry(path, Hash("sha256", self._hashes[path]), size)
        data = stream.read()
        if scheme == "scripts" and data.startswith(b"#!python"):
            data = f"#!{VENV}/bin/python\n".encode() + data.partition(b"\n")[2]
        return self._write(scheme, path, data, executable=is_executable or scheme == "scripts")

    def finalize_installation(
        self,
        scheme: Scheme,
        record_file_path: str,
        records: Iterable[tuple[Scheme, RecordEntry]],
    ) -> None:
        """Write the RECORD, without the files that were left out."""
        kept = [(where, r) for where, r in records if r.path not in self._gone]

        def prefix(where: Scheme) -> str | None:
            root = os.path.relpath(self._roots[where], self._site)
            return None if root == "." else f"{root}/"

        with construct_record_file(kept, prefix) as stream:
            data = stream.read()
        self._write(scheme, record_file_path, data, executable=False)

    def _matches(self, path: str, globs: Iterable[str]) -> bool:
        matched = {glob for glob in globs if fnmatchcase(path, glob)}
        self.unmatched -= matched
        return bool(matched)

    def _write(self, scheme: Scheme, path: str, data: bytes, *, executable: bool) -> RecordEntry:
        self._add(scheme, path, len(data), io.BytesIO(data), executable)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        return RecordEntry(path, Hash("sha256", digest), len(data))

    def _add(
        self, scheme: Scheme, path: str, size: int, stream: BinaryIO, executable: bool
    ) -> None:
        if not is_inside(path):  # a script of an entry point may have any name
            raise zipfile.BadZipFile(f"it has a file outside of its folder: {shown(path)}")
        whole = f"{self._roots[scheme]}/{path}".lstrip("/")
        self._add_folder(whole.rpartition("/")[0])
        member = self._member(whole, 0o755 if executable else 0o644)
        member.size = size
        self._tar.addfile(member, stream)

    def _add_folder(self, path: str) -> None:
        """Add a folder and its parents, once for the layer."""
        if not path or path in self._folders:
            return
        self._folders.add(path)
        self._add_folder(path.rpartition("/")[0])
        folder = self._member(path, 0o755)
        folder.type = tarfile.DIRTYPE
        self._tar.addfile(folder)

    def _member(self, name: str, mode: int) -> tarfile.TarInfo:
        member = tarfile.TarInfo(name)
        member.mode, member.mtime = mode, self._mtime
        return member


@contextlib.contextmanager
def _wheel_errors(wheel: Path) -> Iterator[None]:
    """Turn errors of the libraries that read a wheel into a BuildError that names it.

    An OSError with a number comes from the system, about the file that is written.
    """
    try:
        yield
    except BuildError:
        raise
    except _DAMAGES as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = next((each for each in reversed(error.args) if isinstance(each, str)), str(error))
        words = shown(" ".join(reason.split())) or "it is damaged"
        raise BuildError(f"{wheel.name} cannot be installed: {words}") from None


def _check(source: WheelFile, archive: zipfile.ZipFile) -> None:
    """Raise BadZipFile unless a wheel matches its name, and `installer` can place its files."""
    members = {*archive.namelist()}
    for needed in ("METADATA", "RECORD"):
        if f"{source.dist_info_dir}/{needed}" not in members:
            raise zipfile.BadZipFile(f"it has no {source.dist_info_dir}/{needed}")
    # Files in place of folders of other schemes would make `installer` loop forever.
    schemes = {name for name in members if name.rpartition("/")[0] == source.data_dir}
    if unplaced := {source.data_dir, *schemes} & members - {f"{source.data_dir}/"}:
        raise zipfile.BadZipFile(f"it has a file without a place: {min(unplaced)}")
    metadata = parse_metadata_file(source.read_dist_info("METADATA"))
    name, version = str(metadata["Name"]), str(metadata["Version"])
    if (canonicalize_name(name), Version(version)) != (
        canonicalize_name(source.distribution),
        Version(source.version),
    ):
        raise zipfile.BadZipFile(f"its METADATA says {shown(name)} {shown(version)}")


def _hashes(source: WheelFile) -> dict[str, str]:
    """The SHA-256 of each file by path, in the encoding of the wheel's RECORD."""
    rows = parse_record_file(source.read_dist_info("RECORD").splitlines())
    return {path: h.partition("=")[2] for path, h, _ in rows if h.startswith("sha256=")}
