"""Wheels, packages and libraries that mean harm: each is refused in one line that names it."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packages import elf, make_deb
from tests.wheels import make_wheel
from torch_images.errors import BuildError, LockError
from torch_images.fetch.bootstrap import repository
from torch_images.fetch.compat import read_note
from torch_images.layers.make import write_layer
from torch_images.layers.plan import LayerPlan
from torch_images.locks.debfile import files
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


def locked(data: bytes, name: str = "tini", version: str = "1") -> LockedDeb:
    return LockedDeb(
        name=name,
        version=version,
        archive="debian",
        path=f"pool/{name}_{version}_amd64.deb",
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def indexed(folder: Path, data: bytes, deb: LockedDeb | None = None) -> bytes:
    """The index of a repository that has one package."""
    path = folder / "x.deb"
    path.write_bytes(data)
    repository_files = repository("bookworm", {deb or locked(data): path})
    return repository_files["dists/bookworm/main/binary-amd64/Packages"]


def listed(folder: Path, data: bytes) -> list[str]:
    """The files of a package."""
    path = folder / "x.deb"
    path.write_bytes(data)
    with files(locked(data), path) as members:
        return [member.name for member in members if members.extractfile(member)]


TINI = make_deb("tini", "1", {"usr/bin/tini": b"x" * 50})


def archive(*members: tuple[str, bytes]) -> bytes:
    """An ar archive."""
    data = b"!<arch>\n"
    for name, content in members:
        data += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        data += content + b"\n" * (len(content) % 2)
    return data


def tar_of(name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:") as tar:
        member = tarfile.TarInfo(name)
        member.size, member.type = len(content), kind
        tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def control_package(text: str) -> bytes:
    """A package that says this of itself."""
    return archive(
        ("debian-binary", b"2.0\n"),
        ("control.tar", tar_of("./control", text.encode("utf-8", "surrogateescape"))),
        ("data.tar", tar_of("./x", b"x")),
    )


def test_a_package_is_indexed_as_it_is(tmp_path: Path) -> None:
    assert b"Package: tini\nVersion: 1\n" in indexed(tmp_path, TINI)
    assert listed(tmp_path, TINI) == ["./usr/bin/tini"]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is not a Debian package: "),
        (TINI[:-200], "is not a Debian package: "),
        (archive(("debian-binary", b"2.0\n")), "is not a Debian package: "),
        (control_package(""), "was locked as tini 1, but says"),
        (control_package("Package: bash\nVersion: 1\n"), "was locked as tini 1, but says bash 1"),
        (control_package("Package: tini\nVersion: 2\n"), "was locked as tini 1, but says tini 2"),
        (control_package("Package: \udcff\nVersion: 1\n"), ""),
    ],
)
def test_a_package_is_refused_by_name(tmp_path: Path, data: bytes, problem: str) -> None:
    with pytest.raises(LockError, match=r"^tini_1_amd64\.deb ") as caught:
        indexed(tmp_path, data)
    assert problem in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "note",
    ['{"driver": [1e999], "device": []}', '{"driver": ' + "[" * 50_000, "9" * 5000, "{" * 9 + "}"],
)
def test_a_note_that_cannot_be_understood_is_none(tmp_path: Path, note: str) -> None:
    path = tmp_path / "libcuda.so"
    path.write_bytes(elf(note))
    assert read_note(path) == ""
