"""How small layers get, and how long that takes.

    python -m benchmarks.builds.compression LAYER... [--threads N] [--at-once N] [--part MB]
        [--try LEVEL:WINDOW[:ldm]]...

LAYER is a layer of the cache: a folder in ~/.cache/torch-images/layers, or its file `blob`. Each
is unpacked and compressed again by every setting, `--at-once` (all processors) side by side, by
`--threads` (4) each, as `--compression small` has it. `--part` takes only so many MB of each tar.
`--try` adds settings of zstd: a level, the logarithm of the window, and whether to look for matches
far away; `--only` leaves the others out. Seconds are wall time, of all processors, and of one for
decompressing.
"""

from __future__ import annotations

import argparse
import io
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import zstandard

from torch_images.jobs import processors
from torch_images.layers.make import THREADS
from torch_images.markdown import table
from torch_images.oci.layout import Effort

_CHUNK = 1 << 20
_WINDOW = 1 << 31  # bytes that the decompressor may be asked to remember


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How zstd compresses: `level`, and what differs from that level's own settings."""

    name: str
    level: int
    options: Mapping[str, int | bool]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a setting gave for a layer, in bytes and seconds of one processor."""

    plain: int
    packed: int
    unpacking: float


def setting(text: str) -> Setting:
    """The setting that LEVEL:WINDOW[:ldm] means. Raises ArgumentTypeError."""
    found = re.fullmatch(r"([0-9]{1,2}):([0-9]{2})(:ldm)?", text)
    if not found or not (1 <= int(found[1]) <= zstandard.MAX_COMPRESSION_LEVEL):
        raise argparse.ArgumentTypeError(f"'{text}' is not like 19:23 or 19:27:ldm")
    options: dict[str, int | bool] = {"window_log": int(found[2])}
    if found[3]:
        options["enable_ldm"] = True
    return Setting(name=text, level=int(found[1]), options=options)


def packed(path: Path, how: Setting, threads: int, part: int) -> Found:
    """Compress a layer; `part` is how many bytes of its tar to take, 0 for all."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        how.level, threads=threads, **how.options
    )
    sink = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    made, plain = io.BytesIO(), 0
    for chunk in _tar(path, part):
        plain += len(chunk)
        made.write(sink.compress(chunk))
    made.write(sink.flush())
    size, started = made.tell(), time.thread_time()
    made.seek(0)
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(made)
    while reader.read(_CHUNK):
        pass
    return Found(plain=plain, packed=size, unpacking=time.thread_time() - started)


def measured(
    layers: Sequence[Path], how: Setting, *, threads: int, at_once: int, part: int
) -> tuple[float, float, tuple[Found, ...]]:
    """Compress layers side by side: wall time, processor time, and what each one gave."""
    started, used = time.monotonic(), time.process_time()
    with ThreadPoolExecutor(at_once) as pool:
        found = tuple(pool.map(lambda path: packed(path, how, threads, part), layers))
    unpacking = sum(one.unpacking for one in found)
    return time.monotonic() - started, time.process_time() - used - unpacking, found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.builds.compression",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("layers", type=Path, nargs="+", metavar="LAYER")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--at-once", type=int, default=processors())
    parser.add_argument("--part", type=int, default=0, metavar="MB")
    parser.add_argument("--try", dest="tries", type=setting, action="append", default=[])
    parser.add_argument("--only", action="store_true", help="only the settings of --try")
    told = parser.parse_args()
    own = [Setting(name=e.name.lower(), level=e.value[0], options=e.value[1]) for e in Effort]
    layers = [path / "blob" if path.is_dir() else path for path in told.layers]
    # The largest first, as builds do it.
    layers.sort(key=lambda path: -path.stat().st_size)
    rows = []
    for how in [*([] if told.only else own), *told.tries]:
        wall, computed, found = measured(
            layers, how, threads=told.threads, at_once=told.at_once, part=told.part * 10**6
        )
        plain, made = (sum(getattr(one, name) for one in found) for name in ("plain", "packed"))
        rows.append(
            (
                how.name,
                f"{plain / 1e6:.1f}",
                f"{made / 1e6:.1f}",
                f"{made / plain:.4f}",
                f"{wall:.1f}",
                f"{computed:.1f}",
                f"{sum(one.unpacking for one in found):.1f}",
            )
        )
        print(" ".join(rows[-1]), flush=True)
    head = ["Setting", "MB of tar", "MB packed", "Ratio", "Wall", "Processors", "Decompressing"]
    print("\n".join(table(head, rows)))


def _tar(path: Path, part: int) -> Iterator[bytes]:
    """The first `part` bytes of a layer's tar; all of it for 0."""
    left = part or -1
    with path.open("rb") as blob:
        reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(blob)
        while left and (chunk := reader.read(_CHUNK if left < 0 else min(_CHUNK, left))):
            left -= len(chunk) if left > 0 else 0
            yield chunk


if __name__ == "__main__":
    main()
