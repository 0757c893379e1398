"""Members of wheels, read as `zipfile` reads them."""

from __future__ import annotations

import re
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_images.layers.wheelzip import Damaged, WheelZip


def written(path: Path, *members: bytes, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for number, data in enumerate(members):
            archive.writestr(f"member{number}", data)
    return path


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    members=st.lists(st.binary(max_size=400).map(lambda x: x * 2000), max_size=4),
    size=st.integers(1, 1 << 20),
    method=st.sampled_from([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED]),
)
def test_members_are_what_was_written(
    members: list[bytes], size: int, method: int, tmp_path: Path
) -> None:
    with WheelZip(written(tmp_path / "w.whl", *members, method=method)) as wheel:
        streams = [wheel.open(f"member{number}") for number in range(len(members))]
        contents = [b""] * len(streams)
        for _ in range(4000):  # members are read in turns: each keeps its own place
            pieces = [stream.read(size) for stream in streams]
            if not any(pieces):
                break
            contents = [one + more for one, more in zip(contents, pieces, strict=True)]
            size += 4096
        assert contents == members
        assert [wheel.read(name) for name in wheel.namelist()] == members


def test_read_damaged_member(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4000
    path = written(tmp_path / "w.whl", data)
    whole = bytearray(path.read_bytes())
    with WheelZip(path) as wheel:
        [info] = wheel.infolist()
    whole[60 : info.compress_size] = b"\xff" * (info.compress_size - 60)
    path.write_bytes(whole)
    with WheelZip(path) as wheel, pytest.raises(Damaged):
        wheel.read("member0")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("other", [b"a" * 8 + b"b", b"a" * 8, b"", b"\x9d\x0a\xd9\x6d"])
def test_two_files_of_one_name_are_refused(tmp_path: Path, other: bytes) -> None:
    """Whoever checks one, by size or by CRC-32, and whoever installs one, need not take the same."""
    path = tmp_path / "w.whl"
    for data in (b"a" * 9, b""):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.py", data)
            archive.writestr("x.py", other)
        if data == other:
            with WheelZip(path) as wheel:
                assert wheel.read("x.py") == data
        else:
            with pytest.raises(zipfile.BadZipFile, match=r"^it has x\.py twice$"):
                WheelZip(path)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_members_share_no_byte(tmp_path: Path, which: int, method: int) -> None:
    """Archives in which they do unpack to petabytes; neither may one reach into the directory."""
    path = written(tmp_path / "w.whl", bytes(100), bytes(100), method=method)
    data = bytearray(path.read_bytes())
    at = [match.start() for match in re.finditer(rb"PK\x01\x02", data)][which]
    [size] = struct.unpack_from("<L", data, at + 20)
    for more, fits in ((len("member0"), True), (len("member0") + 1, False)):
        struct.pack_into("<L", data, at + 20, size + more)
        path.write_bytes(data)
        if fits:  # the length of its name is known to itself only
            WheelZip(path).close()
        else:
            with pytest.raises(zipfile.BadZipFile, match=r"^its members overlap$"):
                WheelZip(path)


def test_read_limits_a_member_to_its_size(tmp_path: Path) -> None:
    """A megabyte of zeros is a kilobyte in an archive; who unpacks it has made room for its size."""
    path = written(tmp_path / "w.whl", bytes(1 << 20))
    with WheelZip(path) as wheel:
        [info] = wheel.infolist()
        info.file_size = 1000
        assert wheel.read(info) == bytes(1000)
        with wheel.open(info) as member:
            assert member.read(1 << 20) == bytes(1000)
