"""What builds left, and what is old and unused, on this machine -> room. No registry is touched.

An image that a container uses stays, and so does what a build has open.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from torch_images.build import labels
from torch_images.build.bake import FOLDERS
from torch_images.build.plan import CANDIDATE
from torch_images.errors import UsageError
from torch_images.host.cache import Part, mark
from torch_images.host.engine import Engine
from torch_images.host.image_info import OurImage
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.layers.parent import PARENT_IMAGES
from torch_images.verify.reproduce import ORIGINAL

# Their names end in a hash. The folder is the user's choice, and may hold what is not ours.
_OURS = re.compile(r"(?:.+-)?[0-9a-f]{16,64}(?:\.deb)?|\.making-.+")
RUNNING = timedelta(hours=1)  # what a build wrote so lately may be that of one which runs
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True, kw_only=True)
class Item:
    """Something that can go: `size` in bytes, `used` when it was used last.

    It is a file or folder at `path`, an image by its identifier `image`, or one name of an image,
    `tag`, without the image itself.
    """

    name: str
    size: int
    used: datetime
    path: Path | None = None
    image: str = ""
    tag: str = ""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What may stay: younger than `age`; of that the latest used, up to `size` bytes, 0 for any."""

    age: timedelta
    size: int = 0


def parse_age(text: str) -> timedelta:
    """A time from "12h", "30d" or "8w". Raises UsageError."""
    found = re.fullmatch(r"([0-9]{1,5})([hdw])", text.strip())
    if not found:
        raise UsageError(f"'{text}' is not an age", "give one like 12h, 30d or 8w")
    hours = {"h": 1, "d": 24, "w": 168}[found[2]]
    return timedelta(hours=int(found[1]) * hours)


def parse_size(text: str) -> int:
    """Bytes from "50GB", "500MB" or a plain number; 0 from "". Raises UsageError."""
    found = re.fullmatch(r"([0-9]{1,15})\s*([KMGT]?B?)", text.strip().upper())
    if not text.strip():
        return 0
    if not found or found[2] not in _UNITS:
        raise UsageError(f"'{text}' is not a size", "give one like 50GB or 500MB")
    return int(found[1]) * _UNITS[found[2]]


def surplus(items: Iterable[Item], limits: Limits, now: datetime) -> tuple[Item, ...]:
    """What goes beyond the limits, the longest unused first. Pure."""
    latest = sorted(items, key=lambda item: item.used, reverse=True)
    gone, total = [], 0
    for item in latest:
        total += item.size
        if now - item.used > limits.age or (limits.size and total > limits.size):
            gone.append(item)
            total -= item.size
    return tuple(reversed(gone))


def leftovers(workspace: Workspace, engine: Engine, before: datetime) -> tuple[Item, ...]:
    """What builds leave that were killed, and the tags of images that were never verified.

    What is younger than `before` may be that of a build which is running.
    """
    prefixes = (f"{CANDIDATE}:", f"{ORIGINAL}:")
    left = sorted(workspace.output.glob(f"{FOLDERS}*"))
    folders = [p for p in left if p.is_dir() and not p.is_symlink()]
    items = [
        Item(name=f"tag {name}", size=0, used=image.tagged, tag=name)
        for image in engine.ours(labels.ID, PARENT_IMAGES)
        for name in image.tags
        if name.startswith(prefixes)
    ]
    for path in folders:
        used = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        name = str(path.relative_to(workspace.output.parent))
        items.append(Item(name=name, size=_size(path), used=used, path=path))
    return tuple(item for item in items if item.used <= before)


def images(engine: Engine) -> tuple[Item, ...]:
    """Images of ours that no container uses, with or without a tag, and what they start from."""
    return tuple(
        Item(name=_name(found), size=found.size, used=found.tagged, image=found.id)
        for found in engine.ours(labels.ID, PARENT_IMAGES)
        if not found.in_use
    )


def cache(folder: Path) -> tuple[Item, ...]:
    """What this user's cache holds."""
    found = []
    for part in Part:
        for path in sorted([*(folder / part).glob("[!.]*"), *(folder / part).glob(".making-*")]):
            if path.is_symlink() or not _OURS.fullmatch(path.name):
                continue
            noted = mark(path)
            time = max(p.lstat().st_mtime for p in (path, noted) if p.exists())
            used = datetime.fromtimestamp(time, UTC)
            found.append(Item(name=f"{part}/{path.name}", size=_size(path), used=used, path=path))
    return tuple(found)


def remove(items: Sequence[Item], engine: Engine) -> Iterator[Item]:
    """Remove items, and yield each once it is gone. One that is in use by now stays."""
    for item in items:
        if item.image or item.tag:
            engine.untag(item.image or item.tag)
            yield item
        elif item.path:
            with _alone(item.path) as alone:
                if not alone:
                    continue
                whole = item.path.with_name(f".{item.path.name}.gone")
                item.path.rename(whole)  # at once: nobody finds a half of it
                shutil.rmtree(whole) if whole.is_dir() else whole.unlink()
                mark(item.path).unlink(missing_ok=True)
            yield item


def in_use(engine: Engine) -> tuple[str, ...]:
    """The names of images of ours that stay because a container uses them."""
    return tuple(_name(i) for i in engine.ours(labels.ID, PARENT_IMAGES) if i.in_use)


def build_cache(limits: Limits, run: Runner, *, every: bool = False, dry_run: bool) -> str:
    """Prune BuildKit's cache, whoever filled it; a line that says what was, or would be, freed.

    With `every`, all of it goes, whatever the limits are.
    """
    if every and not dry_run:
        freed = run.run(["docker", "buildx", "prune", "--force", "--all"]).output.splitlines()
        return f"build cache: {freed[-1].lower() if freed else 'nothing to remove'}"
    hours = f"{int(limits.age.total_seconds() // 3600)}h"
    older = [f"--filter=until={hours}"] if limits.age and not every else []
    if dry_run:
        listed = run.run(["docker", "buildx", "du", *older]).output
        total = re.search(r"^Reclaimable:\s*(\S+)", listed, re.MULTILINE)
        what = "build cache" if every else f"build cache unused for {hours}"
        return f"{what}: {total[1] if total else '0B'}"
    command = ["docker", "buildx", "prune", "--force", *older]
    command += [f"--keep-storage={limits.size}"] if limits.size else []
    freed = run.run(command).output.strip().splitlines()
    return f"build cache unused for {hours}: {freed[-1] if freed else 'nothing'}"


def _name(image: OurImage) -> str:
    return ", ".join(image.tags) or f"{image.id} (no tag)"


def _size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.lstat().st_size for file in files)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Whether nobody else makes this thing just now; holds others off meanwhile."""
    lock = path.with_name(f"{path.name}.lock")
    if not lock.exists():
        yield True
        return
    with lock.open("w") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
        lock.unlink(missing_ok=True)
