"""Lists of machine code: made once for the same bytes, and never taken for others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.fakes import workspace_of
from torch_images.host.cache import Part
from torch_images.host.container import ExecResult
from torch_images.host.runner import Completed, Runner
from torch_images.verify import listings
from torch_images.verify.listings import LIBRARIES

FIRST, SECOND = (f"/s/torch/lib/{name}" for name in LIBRARIES)
PROGRAM = "/s/triton/backends/nvidia/bin/cuobjdump"
BOTH = "ELF file    1: a.1.sm_90.cubin\nPTX file    1: a.1.sm_90.ptx\n"
ELF, PTX = (line.encode() for line in BOTH.splitlines(keepends=True))


class Image:
    """A container with files; its cuobjdump says `result`: exit code, list and errors."""

    def __init__(self, **fields: Any) -> None:
        self.files = {FIRST: b"first", SECOND: b"second", PROGRAM: b"cuobjdump"}
        self.result: tuple[int, str, str] = (0, BOTH, "")
        self.listed: list[str] = []

    def exec(self, *command: str) -> ExecResult:
        if command[0] == "sha256sum":
            lines = [
                f"{hashlib.sha256(self.files[path]).hexdigest()}  {path}"
                if path in self.files
                else f"sha256sum: {path}: No such file or directory"
                for path in command[2:]
            ]
            return ExecResult(0, "\n".join(lines))
        assert command[0] == "sh"
        assert command[4:-1] == (PROGRAM, "--list-elf", "--list-ptx")
        self.listed.append(command[-1])
        code, self.files[listings._SCRATCH], errors = (
            self.result[0],
            self.result[1].encode(),
            self.result[2],
        )
        return ExecResult(code, errors)

    def read(self, path: str) -> bytes:
        return self.files[path]


class Here(Runner):
    """A stand-in for this machine's cuobjdump; `result` is exit code, stdout and stderr."""

    def __init__(self, result: tuple[int, str, str] = (0, BOTH, "")) -> None:
        self.result = result
        self.read: list[bytes] = []

    def run(self, command: Any, **_: Any) -> Completed:
        self.read.append(Path(command[-1]).read_bytes())
        return Completed(*self.result)


Listing = Callable[..., dict[str, bytes]]


@pytest.fixture
def listing(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Listing:
    """List the code of an image, with a cache that stays."""
    tools = tmp_path / "tools"
    program = tools / "nvidia" / "cu13" / "bin" / "cuobjdump"
    program.parent.mkdir(parents=True)
    program.write_bytes(b"cuobjdump of this machine")
    monkeypatch.setattr(listings, "install_tools", lambda *_: tools)
    workspace = workspace_of(root, tmp_path)

    def listed(image: Image, run: Runner | None = None, **how: bool) -> dict[str, bytes]:
        return listings.listings(cast("Any", image), "/s", workspace, run or Here(), **how)

    return listed


def kept(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / Part.LISTINGS).glob("*") if path.suffix == ".json"]


def test_the_same_bytes_are_listed_once(listing: Listing, tmp_path: Path) -> None:
    """Also in another image that has them."""
    first, second = Image(), Image()
    listed = listing(first)
    assert listing(second) == listed
    assert (first.listed, second.listed) == ([FIRST, SECOND], [])
    assert len(kept(tmp_path)) == 2


def test_a_replaced_library_is_listed_anew(listing: Listing) -> None:
    """It has another's path, and may have another's size."""
    listing(Image())
    image = Image()
    image.files[FIRST] = b"FIRST"
    image.result = (0, "ELF file    1: a.1.sm_75.cubin\n", "")
    listed = listing(image)
    assert image.listed == [FIRST]
    assert b"sm_75" in listed[f"{LIBRARIES[0]}.elf"]
    assert listed[f"{LIBRARIES[1]}.elf"] == ELF


def test_a_library_that_the_image_lacks_is_left_out(listing: Listing) -> None:
    image = Image()
    del image.files[SECOND]
    assert set(listing(image)) == {f"{LIBRARIES[0]}.elf", f"{LIBRARIES[0]}.ptx"}
    del image.files[PROGRAM]
    assert listing(image) == {}


def test_for_an_emulator_this_machine_lists_a_copy(listing: Listing) -> None:
    """Its program counts as another one than the image's."""
    image, here = Image(), Here()
    listing(image)
    listed = listing(image, here, emulated=True)
    assert here.read == [b"first", b"second"]
    assert image.listed == [FIRST, SECOND]
    assert listed[f"{LIBRARIES[0]}.elf"] == ELF
    assert listing(image, here, emulated=True) == listed
    assert len(here.read) == 2
