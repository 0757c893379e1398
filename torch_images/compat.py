"""NVIDIA's compat package: from its lock to a folder that the build mounts.

Its libcuda says in an ELF note for which driver branches and brands of GPU it is made. That note
becomes a label, and the hosts that an image asks for follow from it, see hosts.py.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import zstandard
from debian.arfile import ArError
from debian.debfile import DebError, DebFile
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from torch_images.archive import fetch
from torch_images.cached import keep, used
from torch_images.config import Compat
from torch_images.debs import DebLock
from torch_images.errors import LockError, NetworkError
from torch_images.network import Network

_SECTION = ".note.cuda.fwd_compatibility"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ReadyCompat:
    """What a build needs of a compat package: the folder that has it, and its note as JSON."""

    folder: Path
    note: str


def prepare(
    compat: Compat, lock: DebLock, mode: str, *, cache: Path, network: Network
) -> ReadyCompat | None:
    """Get a compat package, from the cache, a mirror or NVIDIA's repository.

    Where it cannot be had, mode "auto" gives None with a warning; "off" never asks.
    Raises LockError where it is another file than the locked one, and with "required" also where
    it is gone, or NetworkError.
    """
    if mode == "off":
        return None
    [deb] = lock.debs
    problem: LockError | NetworkError | None = None
    try:
        found = fetch(
            lock,
            cache / "debs",
            mirrors=lambda: (network.compat_mirror or compat.repository,),
            snapshot="",
            network=network,
        )
    except NetworkError as error:
        problem = error
    else:
        if found.vanished:
            problem = LockError(f"locks/{lock.name}.txt: no mirror has {deb.name} {deb.version}")
    if problem is None:
        return _ready(lock, found.files[deb], cache)
    ways = "name a mirror with TORCH_IMAGES_COMPAT_MIRROR, or build without it: --compat off"
    if mode == "required":
        raise type(problem)(f"{deb.name} {deb.version} cannot be had: {problem.message}", ways)
    _log.warning(
        "BUILDING WITHOUT FORWARD COMPATIBILITY: %s %s cannot be had (%s); %s",
        deb.name,
        deb.version,
        problem.message,
        ways,
    )
    return None


def read_note(libcuda: Path) -> str:
    """The note of a libcuda as JSON on one line; "" where it has none that can be understood."""
    try:
        with libcuda.open("rb") as stream:
            section = ELFFile(stream).get_section_by_name(_SECTION)
            text = section.data().decode("latin-1") if section else ""
        note = json.loads(text[text.index("{") : text.rindex("}") + 1])
        kept = {key: [int(n) for n in note[key]] for key in ("driver", "device")}
    except (ELFError, ValueError, KeyError, TypeError):
        return ""
    return json.dumps(kept, separators=(",", ":"))


def _ready(lock: DebLock, deb: Path, cache: Path) -> ReadyCompat:
    """A folder of its own with the package, made once."""
    folder = cache / "compat" / deb.stem
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
            made = Path(scratch, "made")
            (made / "deb").mkdir(parents=True)
            shutil.copyfile(deb, made / "deb" / f"{lock.name}.deb")
            (made / "note.json").write_text(_note_of(lock, deb, Path(scratch)))
            keep(made, folder)
    used(folder)
    return ReadyCompat(folder=folder / "deb", note=(folder / "note.json").read_text())


def _note_of(lock: DebLock, deb: Path, scratch: Path) -> str:
    """The note of the libcuda in a package. Raises LockError where it has no libcuda."""
    try:
        with DebFile(deb) as package, _content(package) as files:
            for member in files:
                if member.isfile() and re.search(r"/compat/libcuda\.so\.[0-9.]+$", member.name):
                    library = files.extractfile(member)
                    assert library is not None
                    copy = scratch / "libcuda.so"
                    with copy.open("wb") as stream:
                        shutil.copyfileobj(library, stream)
                    return read_note(copy)
    except (ArError, DebError, tarfile.TarError, zstandard.ZstdError) as error:
        raise LockError(f"{lock.debs[0].filename} is not a Debian package: {error}") from None
    raise LockError(f"{lock.debs[0].filename} has no libcuda", f"see locks/{lock.name}.txt")


def _content(package: DebFile) -> tarfile.TarFile:
    """What a package installs, to be read from front to end."""
    name = next((n for n in package.getnames() if n.startswith("data.tar")), "")
    if not name:
        raise DebError("it has no content")
    member = cast("IO[bytes]", package.getmember(name))
    if name.endswith(".zst"):  # Ubuntu's way, which python-debian leaves to a program
        unpacked = zstandard.ZstdDecompressor().stream_reader(member)
        return tarfile.open(fileobj=cast("IO[bytes]", unpacked), mode="r|")
    return tarfile.open(fileobj=member, mode="r|*")
