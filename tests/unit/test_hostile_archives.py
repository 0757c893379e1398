"""Wheels, packages and libraries that mean harm: each is refused in one line that names it."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packages import elf, make_deb
from tests.wheels import make_wheel
from torch_images.errors import BuildError, CommandError, LockError
from torch_images.fetch.bootstrap import repository
from torch_images.fetch.compat import read_note
from torch_images.host.runner import Runner
from torch_images.layers.make import write_layer
from torch_images.layers.plan import LayerPlan
from torch_images.locks.debs import LockedDeb

INFO = "a-1.dist-info"


def packed(path: Path) -> bool:
    """Make a layer of one wheel; True."""
    write_layer(LayerPlan(title="x", wheels=(), python="3.11"), [path], io.BytesIO())
    return True


def whole(folder: Path) -> dict[str, bytes]:
    """The files of a wheel that is as it should be, without its RECORD."""
    with zipfile.ZipFile(io.BytesIO(make_wheel(folder, "a", "1").data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(path: Path, files: list[tuple[str, bytes, int, int]]) -> Path:
    """A zip archive of names, data, modes and methods, in that order, whatever they are."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data, mode, method in files:
            member = zipfile.ZipInfo(name)
            member.external_attr, member.compress_type = mode << 16, method
            archive.writestr(member, data)
    return path


def with_file(name: str, data: bytes | None = b"x") -> Callable[[Path], Path]:
    """A wheel with one more file; for a name of its own, with other data, and None leaves it out."""

    def make(folder: Path) -> Path:
        members = [(n, d, 0o100644, 8) for n, d in whole(folder).items() if n != name]
        more = [] if data is None else [(name, data, 0o100644, 8)]
        return zipped(folder / "a-1-py3-none-any.whl", [*members, *more])

    return make


def no_zip(folder: Path) -> Path:
    path = folder / "a-1-py3-none-any.whl"
    path.write_bytes(b"<html></html>")
    return path


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (with_file("../b.py"), "has a file outside of its folder: ../b.py"),
        (with_file("a-1.data/data/../x"), "has a file outside of its folder"),
        (with_file("a-1.data"), "it has a file without a place: a-1.data"),
        (with_file("a-1.data/other/x"), "not contained in a valid .data subdirectory"),
        (with_file(f"{INFO}/entry_points.txt", b"[console_scripts]\n../../x = a:b\n"), "outside of its folder"),
        (with_file("b-1.dist-info/METADATA"), "exactly one .dist-info"),
        (with_file(f"{INFO}/RECORD", None), f"has no {INFO}/RECORD"),
        (with_file(f"{INFO}/WHEEL", None), ""),
        (with_file(f"{INFO}/METADATA", None), f"has no {INFO}/METADATA"),
        (with_file(f"{INFO}/RECORD", b"\xff"), ""),
        (with_file(f"{INFO}/RECORD", b"a.py,,9" + b"9" * 5000 + b"\n"), ""),
        (with_file(f"{INFO}/METADATA", b"Name: b\nVersion: 1\n"), "its METADATA says b 1"),
        (with_file(f"{INFO}/METADATA", b"Name: a\n"), "Invalid version: 'None'"),
        (no_zip, "File is not a zip file"),
    ],
)  # fmt: skip
def test_a_wheel_is_refused_by_name(
    tmp_path: Path, make: Callable[[Path], Path], problem: str
) -> None:
    with pytest.raises(BuildError, match=r"^a-1-py3-none-any\.whl cannot be installed: ") as caught:
        packed(make(tmp_path))
    assert problem in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def locked(data: bytes) -> LockedDeb:
    return LockedDeb(
        name="tini",
        version="1",
        archive="debian",
        path="pool/tini_1_amd64.deb",
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def indexed(folder: Path, data: bytes) -> bytes:
    """The index of a repository that has one package."""
    path = folder / "x.deb"
    path.write_bytes(data)
    repository_files = repository("bookworm", {locked(data): path}, Runner())
    return repository_files["dists/bookworm/main/binary-amd64/Packages"]


TINI = make_deb("tini", "1", {"usr/bin/tini": b"x" * 50})


def test_a_package_is_indexed_as_it_is(tmp_path: Path) -> None:
    assert b"Package: tini\nVersion: 1\n" in indexed(tmp_path, TINI)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", CommandError),
        (TINI[:200], CommandError),
        (make_deb("bash", "1", {}), LockError),
        (make_deb("tini", "2", {}), LockError),
    ],
)
def test_a_damaged_or_other_package_is_refused(
    tmp_path: Path, data: bytes, error: type[Exception]
) -> None:
    with pytest.raises(error):
        indexed(tmp_path, data)


@pytest.mark.parametrize(
    "note",
    ['{"driver": [1e999], "device": []}', '{"driver": ' + "[" * 50_000, "9" * 5000, "{" * 9 + "}"],
)
def test_a_note_that_cannot_be_understood_is_none(tmp_path: Path, note: str) -> None:
    path = tmp_path / "libcuda.so"
    path.write_bytes(elf(note))
    assert read_note(path) == ""
