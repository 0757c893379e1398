"""Wheels as archives that zlib-ng inflates, in two thirds of zlib's time.

Unpacked data is not checked again, because the whole file has the locked hash. But its author may
be malicious, so names and sizes are checked before anything is read.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO, Any

from torch_images.errors import shown

try:
    from zlib_ng import zlib_ng
except ImportError:  # in a standalone build, see layers/install.py: slower, same result
    import zlib as zlib_ng  # type: ignore[no-redef]

Damaged: type[Exception] = zlib_ng.error  # type: ignore[assignment]
_HEADER = 30  # bytes of a local file header, before its name (APPNOTE.TXT, 4.3.7)


class WheelZip(zipfile.ZipFile):
    """A wheel, for reading.

    Raises BadZipFile as `zipfile` does, also for overlapping members, for different members of one
    name, and for names that lead out of a folder. A damaged member raises `Damaged` or EOFError.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._check()

    def open(self, *words: Any, **options: Any) -> IO[bytes]:
        """A member."""
        member = super().open(*words, **options)
        if vars(member)["_compress_type"] == zipfile.ZIP_DEFLATED:
            # `zipfile` has no parameter for its inflater, nor for leaving out the checksum.
            vars(member).update(_decompressor=zlib_ng.decompressobj(-15), _expected_crc=None)
        return member

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
            if info.header_offset + _HEADER + info.compress_size > end:
                raise zipfile.BadZipFile("its members overlap")
            end = info.header_offset


def is_inside(path: str) -> bool:
    """Whether a path stays within a folder, and is in its shortest form."""
    return path.isprintable() and not {"", ".", ".."} & {*path.split("/")}
