"""How fast this machine does each step of a build, alone: what no build can be faster than.

    python -m benchmarks.builds.floors

Fetches the wheels of CUDA 13.0, and takes the largest of them through each step. The seconds are
what all of them take at that speed: wall time of fetching and writing, processor time of the rest.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import zstandard

from benchmarks.builds.lab import ROOT
from tests.releases import T130
from torch_images.fetch.packageindex import PackageIndex
from torch_images.host.network import detect
from torch_images.layers.wheelzip import WheelZip
from torch_images.locks.wheels import read_wheels
from torch_images.markdown import table
from torch_images.oci.layout import Compressed

_LOCK = f"wheel-cu130-torch{T130}-py313"
_T = TypeVar("_T")


def main() -> None:
    """Measure, and print a table."""
    wheels = read_wheels(ROOT / "locks" / f"{_LOCK}.json").wheels
    download = sum(wheel.size for wheel in wheels)
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as scratch,
        PackageIndex(detect(os.environ)) as index,
    ):
        fetching, paths = _timed(lambda: [index.fetch(w, Path(scratch)) for w in wheels])
        tar = sum(info.file_size for path in paths for info in _members(path))
        path = max(paths, key=lambda path: path.stat().st_size)
        packed = path.read_bytes()
        inflating, plain = _computed(lambda: _inflate(path))
        compressed = io.BytesIO()
        sink = Compressed(compressed, 1)
        compressing, _ = _computed(lambda: (sink.write(plain), sink.finish()))
        hashing, _ = _computed(lambda: hashlib.sha256(plain).digest())
        blob = download * compressed.tell() // len(packed)
        unpacker = zstandard.ZstdDecompressor()
        unpacking, _ = _computed(lambda: unpacker.decompressobj().decompress(compressed.getvalue()))
        writing, _ = _timed(lambda: _write(Path(scratch, "file"), plain))
    size = len(plain)
    steps = (
        ("fetch the wheels, hash included", download, download / fetching),
        ("hash the wheels", download, size / hashing),
        ("inflate", tar, size / inflating),
        ("hash the tar, compress it, hash the result", tar, size / compressing),
        ("hash what the engine is given", blob, size / hashing),
        ("decompress in the engine", tar, size / unpacking),
        ("hash what comes out", tar, size / hashing),
        ("write the files", tar, size / writing),
    )
    rows = [
        (name, f"{count / 1e9:.2f}", f"{speed / 1e6:.0f}", f"{count / speed:.1f}")
        for name, count, speed in steps
    ]
    print("\n".join(table(["Step", "GB", "MB/s", "Seconds"], rows)))


def _timed(work: Callable[[], _T]) -> tuple[float, _T]:
    """Wall time, and the result."""
    started = time.monotonic()
    found = work()
    return time.monotonic() - started, found


def _computed(work: Callable[[], _T]) -> tuple[float, _T]:
    """Processor time, of all threads, and the result."""
    started = time.process_time()
    found = work()
    return time.process_time() - started, found


def _members(path: Path) -> list[zipfile.ZipInfo]:
    with zipfile.ZipFile(path) as wheel:
        return wheel.infolist()


def _inflate(path: Path) -> bytes:
    with WheelZip(path) as wheel:
        return b"".join(wheel.read(name) for name in wheel.namelist())


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


if __name__ == "__main__":
    main()
