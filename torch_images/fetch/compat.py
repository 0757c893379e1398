"""NVIDIA's compat package: from its lock to a folder that the build mounts.

Its libcuda says in an ELF note for which driver branches and brands of GPU it is made. That note
becomes a label, and the hosts that an image asks for follow from it, see build/nvidia_require.py.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from torch_images import fatbin
from torch_images.config.types import Compat
from torch_images.errors import LockError, NetworkError
from torch_images.fetch.download import fetch
from torch_images.host.cache import Part, keep, used
from torch_images.host.network import Network
from torch_images.locks.debfile import files
from torch_images.locks.debs import DebLock

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
            cache / Part.DEBS,
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
        text = fatbin.section(memoryview(libcuda.read_bytes()), _SECTION).decode("latin-1")
        note = json.loads(text[text.index("{") : text.rindex("}") + 1])
        kept = {key: [int(n) for n in note[key]] for key in ("driver", "device")}
    except (fatbin.PruneError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return ""
    return json.dumps(kept, separators=(",", ":"))


def _ready(lock: DebLock, deb: Path, cache: Path) -> ReadyCompat:
    """A folder of its own with the package, made once."""
    folder = cache / Part.COMPAT / deb.stem
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
    with files(lock.debs[0], deb) as members:
        for member in members:
            if member.isfile() and re.search(r"/compat/libcuda\.so\.[0-9.]+$", member.name):
                library = members.extractfile(member)
                assert library is not None
                copy = scratch / "libcuda.so"
                with copy.open("wb") as stream:
                    shutil.copyfileobj(library, stream)
                return read_note(copy)
    raise LockError(f"{lock.debs[0].filename} has no libcuda", f"see locks/{lock.name}.txt")
