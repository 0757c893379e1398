"""Hosts and images that are damaged: no start may raise, wait, or fill the memory because of one.

The danger is a traceback, or a container that hangs, at each start on a machine where anything in
the way is odd: a truncated compat library, a configuration file with names of 300 letters, folders
that the user may not read, links in a loop, pipes.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import cuda_runtime
import effect
import facts
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.decisions import NOTES
from tests.packages import elf
from torch_images.inside import elfnote
from torch_images.inside.decision import Note, Probe

SOUND = elf(NOTES["13.0"])
HEADER = struct.Struct("<40xQ10xHHH")
COMPAT, LIBRARIES = "opt/cuda-compat/13.0", "usr/lib/x86_64-linux-gnu"
LONG = "n" * 300
DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan  9 20:50:00 UTC 2025\n"
IMAGE = {"cuda": "13.0", "driver": "580.65.06", "floor": "580"}


def damaged(offset: int, size: int, count: int, names: int) -> bytes:
    """A library whose header points anywhere."""
    return b"\x7fELF\x02\x01" + HEADER.pack(offset, size, count, names)[6:] + SOUND[64:]


def note_of(text: str) -> bytes:
    return elf(text)


ANY = st.integers(0, 2**64 - 1) | st.integers(0, len(SOUND))
SHORT = st.integers(0, 2**16 - 1)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("library") / "libcuda.so.580.95.05"


@given(
    st.binary(max_size=200)
    | st.builds(damaged, ANY, SHORT, SHORT, SHORT)
    | st.integers(0, len(SOUND)).map(lambda end: SOUND[:end])
    | st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)).map(
        lambda at: SOUND[: at[0]] + bytes([at[1]]) + SOUND[at[0] + 1 :]
    )
    | st.text(max_size=80).map(note_of)
)
@example(damaged(64, 64, 1, 9))  # the table of names is beyond the last section
@example(damaged(2**64 - 1, 64, 3, 2))
@example(damaged(0, 65535, 65535, 0))  # 4 GB of sections
@example(note_of('{"driver": [1e999], "device": [1]}'))
@example(note_of('{"driver":' + "[" * 100_000 + "}"))
@example(note_of('{"driver": 1, "device": [1]}'))
@example(note_of('{"driver": ["5a"], "device": [1]}'))
def test_read_note_of_a_damaged_library(library: Path, data: bytes) -> None:
    library.write_bytes(data)
    assert isinstance(elfnote.read_note(library), Note | None)


def test_read_note_reads_small_parts(library: Path) -> None:
    """Sections of 50 GB in a sparse file: without a limit, there is no memory for them."""
    library.write_bytes(SOUND)
    expected = elfnote.read_note(library)
    offset, size, count, _ = HEADER.unpack_from(SOUND)
    table = bytearray(SOUND)
    for i in range(count):
        struct.pack_into("<Q", table, offset + size * i + 32, 50 << 30)
    library.write_bytes(table)
    os.truncate(library, 60 << 30)
    assert elfnote.read_note(library) == expected
    assert expected


# What can stand at a place of the tree: each makes it, and undoes what keeps it from being removed.
def absent(path: Path) -> None:
    path.unlink()


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff\x00\n" * 50)


def names(path: Path) -> None:
    lines = (
        "",
        f"/{LONG}",
        LONG,
        "/" + "d/" * 3000,
        "/nul\0here",
        "\udcff",
        "/opt/cuda-compat/13.0",
    )
    path.write_text("\n".join(lines), errors="surrogateescape")


MAKES: tuple[Callable[[Path], None], ...] = (absent, loop, folder, pipe, garbage, names)
PLACES = (
    "proc/driver/nvidia/version",
    f"{LIBRARIES}/libcuda.so.1",
    f"{COMPAT}/libcuda.so.1",
    f"{COMPAT}/libcuda.so.580.95.05",
    "etc/ld.so.conf.d/00-compat-1f2e.conf",
    effect.CONF,
    effect.LOADER_CACHE,
    "dev/nvidia0",
)


def lay_out(root: Path) -> None:
    for place in PLACES:
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_bytes(b"")
    (root / PLACES[0]).write_text(DRIVER)
    (root / PLACES[3]).write_bytes(SOUND)
    (root / PLACES[4]).write_text(f"/{COMPAT}\n")
    (root / effect.CONF).write_text(f"{COMPAT}\n")


def started(root: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> tuple[str, str]:
    """A whole start on a tree: its line, and how the choice was made effective."""
    (root / "image.json").write_text(json.dumps(IMAGE))
    read = cuda_runtime.read_image
    monkeypatch.setattr(cuda_runtime, "read_image", lambda _: read(root, root / "image.json"))
    monkeypatch.setattr(facts, "in_child", lambda *_: None)
    monkeypatch.setattr(cuda_runtime, "probe", lambda *_: Probe(803, "cuInit"))
    decided = cuda_runtime.decide(root, "auto", 0.4)
    environ = {"LD_LIBRARY_PATH": path}
    how, _ = effect.apply(
        decided.choice, decided.host, root, environ, "/opt/cuda-compat", ldconfig=lambda: True
    )
    return decided.line, how


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("place", PLACES)
def test_start_prints_its_line_on_a_damaged_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, make: Callable[[Path], None]
) -> None:
    lay_out(tmp_path)
    (tmp_path / COMPAT / "libcuda.so.1").unlink()
    (tmp_path / COMPAT / "libcuda.so.1").symlink_to("libcuda.so.580.95.05")
    make(tmp_path / place)
    line, _ = started(tmp_path, monkeypatch, f"/{LONG}:{LONG}::{'d/' * 3000}:/\udcff")
    assert line.startswith("CUDA 13.0 ")
    assert "\n" not in line
