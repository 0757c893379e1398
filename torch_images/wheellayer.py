"""Wheels -> a layer of an image, in one pass: no file of a wheel touches the disk on the way.

Equal wheels give equal bytes: members in the order of the wheels, one time for all, numeric owners,
and a compressor whose version is locked. How wheels are installed is `installer`'s business
(https://installer.readthedocs.io); here is only where their files go.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

import installer
from installer.destinations import WheelDestination
from installer.exceptions import InstallerError
from installer.records import Hash, RecordEntry, parse_record_file
from installer.scripts import Script
from installer.sources import WheelFile
from installer.utils import Scheme, construct_record_file

from torch_images.config import Removal
from torch_images.errors import BuildError
from torch_images.fatbin import PruneError, prune
from torch_images.oci import EPOCH, Compressed, Layer
from torch_images.wheelzip import WheelZip

if TYPE_CHECKING:
    from installer.scripts import ScriptSection

VENV = "/opt/venv"

_CHUNK = 1 << 20


def write_layer(
    wheels: Sequence[Path],
    target: IO[bytes],
    *,
    python: str,
    removals: Iterable[Removal] = (),
    arches: Sequence[int] = (),
    threads: int = 1,
) -> Layer:
    """Write the layer that has these wheels installed, as `target`.

    `wheels` have their own file names; `python` is the version of the image's environment, such as
    "3.11"; `removals` are those of these wheels, for machine code other than for `arches`, numbers
    such as 90. Raises BuildError for a removal that finds nothing, and for a damaged wheel.
    """
    # Whoever prunes is after size, and has less to pack.
    sink = Compressed(target, threads, thorough=bool(arches))
    removals = tuple(removals)
    found: Counter[str] = Counter()
    with tarfile.open(fileobj=sink, mode="w:", format=tarfile.PAX_FORMAT) as tar:
        tar.copybufsize = _CHUNK  # type: ignore[attr-defined]
        folders: set[str] = set()
        for wheel in wheels:
            try:
                with WheelZip(wheel) as archive, warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # bytecode is left out
                    place = _Place(tar, folders, archive, python, removals=removals, arches=arches)
                    installer.install(WheelFile(archive), place, {})
                    found.update(place.found)
            except (InstallerError, zipfile.BadZipFile) as error:
                raise BuildError(f"{wheel.name} cannot be installed: {error}") from None
    stale = [glob for r in removals for glob in (*r.files, *r.code, *r.symbols) if not found[glob]]
    if stale:
        raise BuildError(
            f"nothing to remove: {', '.join(path.name for path in wheels)} has no {stale[0]}",
            "correct `removals` in images.yaml",
        )
    return sink.finish()


class _Place(WheelDestination):
    """Where `installer` puts a wheel: into a tar, below /opt/venv."""

    def __init__(
        self,
        tar: tarfile.TarFile,
        folders: set[str],
        archive: zipfile.ZipFile,
        python: str,
        *,
        removals: Sequence[Removal],
        arches: Sequence[int],
    ) -> None:
        self._tar, self._folders = tar, folders
        self._removals, self._arches = removals, arches
        self._sizes = {info.filename: info.file_size for info in archive.infolist()}
        self._hashes = _hashes(archive)
        self._gone: set[str] = set()
        self.found: Counter[str] = Counter()
        self._site = f"{VENV}/lib/python{python}/site-packages"
        self._roots: Mapping[str, str] = {
            "purelib": self._site,
            "platlib": self._site,
            "scripts": f"{VENV}/bin",
            "headers": f"{VENV}/include/site/python{python}",
            "data": VENV,
        }

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
            if self._matching(path, [g for r in self._removals for g in r.files]):
                self._gone.add(path)
                return RecordEntry(path, None, None)
            code = self._matching(path, [g for r in self._removals for g in r.code])
            symbols = self._matching(path, [g for r in self._removals for g in r.symbols])
            if code or symbols:
                new = self._pruned(path, stream.read(), code=code, symbols=symbols)
                return self._write(scheme, path, new, executable=is_executable)
            if path in self._hashes:  # as it is: what the wheel says of it stays true
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
        """Write the RECORD, without what was left out."""
        kept = [(where, r) for where, r in records if r.path not in self._gone]

        def prefix(where: Scheme) -> str | None:
            root = os.path.relpath(self._roots[where], self._site)
            return None if root == "." else f"{root}/"

        with construct_record_file(kept, prefix) as stream:
            data = stream.read()
        self._write(scheme, record_file_path, data, executable=False)

    def _matching(self, path: str, globs: Iterable[str]) -> bool:
        found = [glob for glob in globs if fnmatchcase(path, glob)]
        self.found.update(found)
        return bool(found)

    def _pruned(self, path: str, data: bytes, *, code: bool, symbols: bool) -> bytes:
        arches = self._arches if code else None
        try:
            return b"".join(prune(memoryview(data), arches, symbols=symbols).pieces)
        except PruneError as error:
            raise BuildError(
                f"{path} cannot be pruned: {error}", "correct `removals` in images.yaml"
            ) from None

    def _write(self, scheme: Scheme, path: str, data: bytes, *, executable: bool) -> RecordEntry:
        self._add(scheme, path, len(data), io.BytesIO(data), executable)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        return RecordEntry(path, Hash("sha256", digest), len(data))

    def _add(
        self, scheme: Scheme, path: str, size: int, stream: BinaryIO, executable: bool
    ) -> None:
        whole = os.path.normpath(f"{self._roots[scheme]}/{path}").lstrip("/")
        if not whole.startswith(VENV.lstrip("/") + "/"):
            raise BuildError(f"a wheel has a file outside of its folder: {path}")
        self._add_folder(whole.rpartition("/")[0])
        member = _member(whole, 0o755 if executable else 0o644)
        member.size = size
        self._tar.addfile(member, stream)

    def _add_folder(self, path: str) -> None:
        """A folder and those above it, once for the layer."""
        if not path or path in self._folders:
            return
        self._folders.add(path)
        self._add_folder(path.rpartition("/")[0])
        folder = _member(path, 0o755)
        folder.type = tarfile.DIRTYPE
        self._tar.addfile(folder)


def _member(name: str, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mode, member.mtime = mode, EPOCH
    return member


def _hashes(archive: zipfile.ZipFile) -> dict[str, str]:
    """What a wheel's RECORD says: SHA-256 by path, as it stands there."""
    name = next(n for n in archive.namelist() if n.endswith(".dist-info/RECORD"))
    rows = parse_record_file(archive.read(name).decode().splitlines())
    return {path: h.partition("=")[2] for path, h, _ in rows if h.startswith("sha256=")}
