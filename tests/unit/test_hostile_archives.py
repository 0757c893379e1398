"""Wheels that nobody should have packed: each is refused in one line that names the file."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.hostile import WORDS, ends_well
from tests.wheels import make_wheel
from torch_images.errors import BuildError
from torch_images.wheellayer import write_layer

INFO = "a-1.dist-info"
NAMES = st.sampled_from(
    [
        *(
            "a.py",
            "../a.py",
            "/etc/passwd",
            "a/../../../../../bin/sh",
            "./a.py",
            "a//b",
            "a/",
            "..",
            "",
        ),
        *(
            "a-1.data/scripts/run",
            "a-1.data/scripts/../../x",
            "a-1.data/nothing/x",
            "a-1.data/data",
        ),
        *("a-1.data/data/../../../etc/x", "a-1.data", "a-1.data/headers/x.h", "C:\\x", "a\\..\\b"),
        *(f"{INFO}/METADATA", f"{INFO}/RECORD", f"{INFO}/WHEEL", f"{INFO}/entry_points.txt"),
        *(
            "b-1.dist-info/RECORD",
            f"{INFO}/../x",
            "x" * 5000,
            "a\0b",
            "\u00e4",
            "a\x1b[31m",
            "a\nb",
        ),
    ]
) | WORDS.filter(lambda word: word.isprintable())
TEXTS = st.sampled_from(
    [
        *(
            "",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n",
            "Wheel-Version: 9.0\n",
            "Wheel-Version:\n",
        ),
        *("Wheel-Version: 1.0\n", f"Wheel-Version: {'9' * 5000}.0\nRoot-Is-Purelib: true\n"),
        *("Wheel-Version: \u0661.0\n", "Wheel-Version: one\n", "Wheel-Version: 1\n"),
        *(
            "Name: a\nVersion: 1\n",
            "Name: b\nVersion: 1\n",
            "Name: a\nVersion: 2\n",
            "Version: one\n",
        ),
        *(
            "a.py,,\n",
            "a.py,sha256=x,1\n",
            "a.py,md5,\n",
            "a.py,none=x,\n",
            "a.py,,x\n",
            "a,b\n",
            '"',
        ),
        *(
            "a.py,sha256=,99999999999999999999\n",
            f"a.py,,{'9' * 5000}\n",
            "a.py,sha256=x,-1\n",
            ",,\n",
        ),
        *(
            "[console_scripts]\nrun = a:main\n",
            "[console_scripts]\nrun\n",
            "[console_scripts]\nr =\n",
        ),
        *("[console_scripts]\n../../../../bin/sh = a:b\n", "[x\n", "[console_scripts]\na = b\n"),
        *("[console_scripts]\na = b:c\na = b:c\n", "a = b\n", "[console_scripts]\na = %(x)s:b\n"),
    ]
)
CONTENT = st.one_of(
    TEXTS.map(str.encode), st.binary(max_size=40), WORDS.map(lambda w: w.encode("utf-8", "replace"))
)
METHODS = st.sampled_from(
    [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)


def packed(path: Path) -> bool:
    """Make a layer of one wheel; True."""
    write_layer([path], io.BytesIO(), python="3.11")
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


within = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@within
@pytest.mark.filterwarnings("ignore:Duplicate name")
@given(
    parts=st.dictionaries(st.integers(0, 4), st.none() | CONTENT, max_size=2),
    more=st.lists(
        st.tuples(
            NAMES, CONTENT, st.sampled_from([0o100644, 0o120777, 0o100755, 0o10644, 0]), METHODS
        ),
        max_size=3,
    ),
)
def test_a_wheel_of_any_files_is_one_line(
    tmp_path: Path, parts: dict[int, bytes | None], more: list[tuple[str, bytes, int, int]]
) -> None:
    files = [
        (name, held if (held := parts.get(number, data)) is not None else b"", 0o100644, 8)
        for number, (name, data) in enumerate(whole(tmp_path).items())
        if parts.get(number, data) is not None
    ]
    ends_well(lambda: packed(zipped(tmp_path / "a-1-py3-none-any.whl", [*files, *more])))


@within
@given(
    at=st.lists(st.integers(0, 10**6), min_size=1, max_size=4),
    new=st.lists(st.integers(0, 255), min_size=1, max_size=4),
    end=st.none() | st.integers(0, 10**6),
)
def test_a_wheel_of_damaged_bytes_is_one_line(
    tmp_path: Path, at: list[int], new: list[int], end: int | None
) -> None:
    data = bytearray(make_wheel(tmp_path, "a", "1", {"run": bytes(5000)}).data)
    for place, value in zip(at, new, strict=False):
        data[place % len(data)] = value
    path = tmp_path / "a-1-py3-none-any.whl"
    path.write_bytes(data[: None if end is None else end % len(data)])
    ends_well(lambda: packed(path))


def with_file(name: str, data: bytes = b"x", mode: int = 0o100644) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        files = [(n, d, 0o100644, 8) for n, d in whole(folder).items()]
        return zipped(folder / "a-1-py3-none-any.whl", [*files, (name, data, mode, 8)])

    return make


def without(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        files = [(n, d, 0o100644, 8) for n, d in whole(folder).items() if n != name]
        return zipped(folder / "a-1-py3-none-any.whl", files)

    return make


def changed(name: str, data: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        files = [(n, data if n == name else d, 0o100644, 8) for n, d in whole(folder).items()]
        return zipped(folder / "a-1-py3-none-any.whl", files)

    return make


def encrypted(folder: Path) -> Path:
    """Its flags say so, in the central directory."""
    path = with_file("b.py")(folder)
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    struct.pack_into("<H", data, at + 8, 1)
    path.write_bytes(data)
    return path


def overlapping(folder: Path) -> Path:
    """Two names for one member: what makes archives that unpack to petabytes."""
    path = with_file("b.py", bytes(100_000))(folder)
    data = bytearray(path.read_bytes())
    first, last = data.index(b"PK\x01\x02"), data.rindex(b"PK\x01\x02")
    for offset, size in ((16, 12), (42, 4)):  # CRC and sizes, then where the member is
        data[first + offset : first + offset + size] = data[last + offset : last + offset + size]
    path.write_bytes(data)
    return path


def cut(folder: Path) -> Path:
    path = with_file("b.py", bytes(range(256)) * 100)(folder)
    path.write_bytes(path.read_bytes()[:1000])
    return path


def no_zip(folder: Path) -> Path:
    path = folder / "a-1-py3-none-any.whl"
    path.write_bytes(b"<html></html>")
    return path


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (with_file("../b.py"), "has a file outside of its folder: ../b.py"),
        (with_file("/etc/passwd"), "has a file outside of its folder: /etc/passwd"),
        (with_file("b/../../../../bin/python"), "has a file outside of its folder"),
        (with_file("a-1.data/data/../x"), "has a file outside of its folder"),
        (with_file("a.py"), "has a.py twice"),
        (with_file("a-1.data"), "it has a file without a place: a-1.data"),
        (with_file("a-1.data/scripts"), "it has a file without a place: a-1.data/scripts"),
        (with_file("a-1.data/other/x"), "not contained in a valid .data subdirectory"),
        (with_file("b\x1b[2J"), "outside of its folder: b\\x1b[2J"),
        (with_file(f"{INFO}/entry_points.txt", b"[console_scripts]\n../../x = a:b\n"), "outside of its folder"),
        (with_file(f"{INFO}/entry_points.txt", b"[console_scripts]\nx\n"), ""),
        (with_file("b-1.dist-info/METADATA"), "exactly one .dist-info"),
        (without(f"{INFO}/RECORD"), f"has no {INFO}/RECORD"),
        (without(f"{INFO}/WHEEL"), ""),
        (without(f"{INFO}/METADATA"), f"has no {INFO}/METADATA"),
        (changed(f"{INFO}/RECORD", b"\xff"), ""),
        (changed(f"{INFO}/RECORD", b"a.py,sha256=x,1,2\n"), ""),
        (changed(f"{INFO}/RECORD", b"a.py,,9" + b"9" * 5000 + b"\n"), ""),
        (changed(f"{INFO}/WHEEL", b"Wheel-Version: 9.0\n"), ""),
        (changed(f"{INFO}/METADATA", b"Name: b\nVersion: 1\n"), "its METADATA says b 1"),
        (changed(f"{INFO}/METADATA", b"Name: a\nVersion: 2\n"), "its METADATA says a 2"),
        (changed(f"{INFO}/METADATA", b"Name: a\n"), "its METADATA says a None"),
        (encrypted, ""),
        (overlapping, "its members overlap"),
        (cut, ""),
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
