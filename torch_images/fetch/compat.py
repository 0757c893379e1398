"""NVIDIA's compat package: its lock -> a folder that the build mounts.

An ELF note in its libcuda lists the driver branches and brands of GPU that it supports. The note
becomes a label, and determines the hosts of an image, see build/nvidia_require.py.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from torch_images.config.types import Compat
from torch_images.errors import CommandError, LockError, NetworkError, shown
from torch_images.fetch.download import fetch
from torch_images.host.cache import Part, filling, used
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.inside import elfnote
from torch_images.locks.debs import DebLock

_WAYS = "name a mirror with TORCH_IMAGES_COMPAT_MIRROR, or build without --compat"


@dataclass(frozen=True, kw_only=True)
class ReadyCompat:
    """A compat package that is ready for a build.

    `folder`: the folder with the package, and nothing else.
    `note`: the note of its libcuda as JSON on one line; "" if it is missing or malformed.
    """

    folder: Path
    note: str


def prepare(
    compat: Compat, lock: DebLock, *, cache: Path, network: Network, run: Runner
) -> ReadyCompat:
    """Get a compat package from the cache, a mirror or NVIDIA's repository.

    Raises NetworkError if it cannot be fetched, LockError if no mirror has the locked file.
    """
    [deb] = lock.debs
    mirrors = (network.compat_mirror or compat.repository(lock.platform),)
    try:
        debs = fetch(lock, cache / Part.DEBS, mirrors=mirrors, snapshot="", network=network)
    except (NetworkError, LockError) as error:
        raise type(error)(
            f"{deb.name} {deb.version} cannot be fetched: {error.message}", _WAYS
        ) from None
    folder = cache / Part.COMPAT / deb.sha256
    if not folder.exists():
        with filling(folder) as new:
            (new / "deb").mkdir()
            shutil.copyfile(debs[deb], new / "deb" / f"{lock.name}.deb")
            (new / "note.json").write_text(_note_of(lock, debs[deb], new.parent / "files", run))
    used(folder)
    return ReadyCompat(folder=folder / "deb", note=(folder / "note.json").read_text())


def read_note(libcuda: Path) -> str:
    """The note of a libcuda as JSON on one line; "" if it is missing or malformed.

    Its members are lists: "driver" of driver branches, and "device" of brands by number.
    """
    note = elfnote.read_note(libcuda)
    if note is None:
        return ""
    kept = {"driver": note.branches, "device": note.brands}
    return json.dumps(kept, separators=(",", ":"))


def _note_of(lock: DebLock, deb: Path, files: Path, run: Runner) -> str:
    """The note of the libcuda in a package, which is unpacked to `files`.

    Raises LockError if it is not a package, or has no libcuda.
    """
    name, hint = lock.debs[0].filename, f"see locks/{lock.name}.json"
    try:
        run.run(["dpkg-deb", "--extract", str(deb), str(files)])
    except CommandError as error:
        raise LockError(f"{name} is not a Debian package: {shown(error.output)}", hint) from None
    for path in files.rglob("compat/libcuda.so.*"):
        if re.fullmatch(r"libcuda\.so\.[0-9.]+", path.name) and not path.is_symlink():
            return read_note(path)
    raise LockError(f"{name} has no libcuda", hint)
