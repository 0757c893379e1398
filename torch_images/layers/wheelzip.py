"""Wheels as archives that zlib-ng inflates, in two thirds of zlib's time.

Unpacked data is not checked again, because the whole file has the locked hash. But its author may
be malicious, so names and sizes are checked before anything is read.
"""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import IO, Any, Literal

from torch_images.errors import shown

try:
    from zlib_ng import zlib_ng
except ImportError:  # in a standalone build, see layers/install.py: slower, same result
    import zlib as zlib_ng  # type: ignore[no-redef]

_CHUNK = 1 << 18
# A local file header: 26 bytes that the central directory has too, then the lengths of name and
# extra field, which precede the data (APPNOTE.TXT, 4.3.7).
_HEADER = struct.Struct("<26xHH")


class WheelZip(zipfile.ZipFile):
    """A wheel. Raises BadZipFile as `zipfile` does, also while a member is read.

    Also raises it for overlapping members, for different members of one name, and for names that
    lead out of a folder.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        try:
            super().__init__(path)
            self._check()
        except BaseException:
            self.close()
            raise

    def open(
        self,
        name: str | zipfile.ZipInfo,
        mode: Literal["r", "w"] = "r",
        pwd: bytes | None = None,
        *,
        force_zip64: bool = False,
    ) -> IO[bytes]:
        """A member, which must be read in order."""
        info = name if isinstance(name, zipfile.ZipInfo) else self.getinfo(name)
        if mode != "r" or info.compress_type != zipfile.ZIP_DEFLATED or info.flag_bits & 1:
            return super().open(info, mode, pwd, force_zip64=force_zip64)
        self._file.seek(info.header_offset)
        header = self._file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise zipfile.BadZipFile(f"{info.filename} has no header")
        start = info.header_offset + _HEADER.size + sum(_HEADER.unpack(header))
        return io.BufferedReader(_Member(self._file, start, info), _CHUNK)

    def close(self) -> None:
        """Close the file."""
        if hasattr(self, "fp"):  # not set if the file is not an archive
            super().close()
        self._file.close()

    def _check(self) -> None:
        """Raise BadZipFile for unsafe names, and for members that share bytes."""
        seen: dict[str, tuple[int, int]] = {}
        for info in self.infolist():
            if not is_inside(info.filename.removesuffix("/")):
                raise zipfile.BadZipFile(
                    f"it has a file outside of its folder: {shown(info.filename)}"
                )
            content = info.CRC, info.file_size
            if seen.setdefault(info.filename, content) != content:
                raise zipfile.BadZipFile(f"it has {shown(info.filename)} twice")
        end = self.start_dir
        for info in sorted(self.infolist(), key=lambda info: info.header_offset, reverse=True):
            if info.header_offset + _HEADER.size + info.compress_size > end:
                raise zipfile.BadZipFile("its members overlap")
            end = info.header_offset


def is_inside(path: str) -> bool:
    """Whether a path stays within a folder, and is in its shortest form."""
    return path.isprintable() and not {"", ".", ".."} & {*path.split("/")}


class _Member(io.RawIOBase):
    """The inflated content of a member."""

    def __init__(self, file: IO[bytes], start: int, info: zipfile.ZipInfo) -> None:
        self._file, self._at, self._end = file, start, start + info.compress_size
        self._name, self._left = info.filename, info.file_size
        self._inflate = zlib_ng.decompressobj(-15)  # deflate without a header

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes, 0 at the end."""
        count = min(len(buffer), self._left)
        data = b""
        while count and not data:
            packed = self._inflate.unconsumed_tail or self._next()
            try:
                data = self._inflate.decompress(packed, count)
            except zlib_ng.error as error:  # type: ignore[misc]
                raise zipfile.BadZipFile(f"{self._name} is damaged: {error}") from None
            if not data and not packed:
                raise zipfile.BadZipFile(f"{self._name} ends too early")
        self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)

    def _next(self) -> bytes:
        self._file.seek(self._at)
        data = self._file.read(min(_CHUNK, self._end - self._at))
        self._at += len(data)
        return data
