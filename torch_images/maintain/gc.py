"""What builds left, and what is old and unused, on this machine -> room. No registry is touched.

Only what this project made goes: see `build.built` for images, `host.scratch` for half-made things.
An image that a container uses stays, and so does what a build has open.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

from torch_images.build import built, labels
from torch_images.build.plan import CANDIDATE
from torch_images.config.image import LATEST
from torch_images.errors import UsageError
from torch_images.host.cache import Part, mark
from torch_images.host.engine import Engine
from torch_images.host.image_info import ListedImage, OurImage
from torch_images.host.runner import Runner
from torch_images.host.scratch import HELD, discard, is_free, left_behind, scratch
from torch_images.host.workspace import Workspace, scratch_room
from torch_images.verify.reproduce import original

# Their names end in a hash. The folder is the user's choice, and may hold what is not ours.
_OURS = re.compile(r"(?!\.)(?:.+-)?[0-9a-f]{16,64}(?:\.deb)?")
# What was being made, or removed, by a process that was killed.
_HALF = re.compile(rf"\.(?:{_OURS.pattern}(?:-\w{{8}}|\.gone)|making-\w{{8}})")
_PARTIAL = re.compile(r"\.partial-\w{8}")  # a download, which is written to all the time
# Names that images have while they are made, and those of images that others start from.
_OWN_NAMES = re.compile(r"torch-images-[a-z]+:[^/]+")
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
    """The tags of images that were never verified.

    What is younger than `before` may be that of a build which is running.
    """
    ours = {image.id for image in built.ours(workspace.cache, engine)}
    listed = {image.id: image for image in engine.listed()}
    left = {digest: _left_tags(image, ours=digest in ours) for digest, image in listed.items()}
    items = [
        Item(name=f"tag {name}", size=0, used=image.tagged, tag=name)
        for image in engine.looked_into(listed[digest] for digest, names in left.items() if names)
        for name in left[image.id]
    ]
    return tuple(item for item in items if item.used <= before)


def _left_tags(image: ListedImage, *, ours: bool) -> tuple[str, ...]:
    """The names that builds leave on an image; none without which one of the user's would go."""
    names = [tag for tag in image.tags if tag == original(image.id)]
    names += [tag for tag in image.tags if tag.startswith(f"{CANDIDATE}:")] if ours else []
    return tuple(names) if ours or len(image.tags) > len(names) else ()


def images(cache: Path, engine: Engine, namespace: str = "") -> tuple[Item, ...]:
    """Images of ours that can go, with or without a tag, and what they start from.

    `namespace` is the registry and owner for which this project gives names, too.
    """
    return tuple(
        Item(name=_name(found), size=found.size, used=found.tagged, image=found.id)
        for found in engine.looked_into(built.ours(cache, engine))
        if not _stays(found, namespace)
    )


def staying(cache: Path, engine: Engine, namespace: str = "") -> tuple[str, ...]:
    """Images of ours that nobody may remove, each with the reason."""
    found = engine.looked_into(built.ours(cache, engine))
    return tuple(f"{_name(image)}: {why}" for image in found if (why := _stays(image, namespace)))


def _stays(image: OurImage, namespace: str) -> str:
    """Why an image of ours has to stay; "" where it can go."""
    if image.in_use:
        return "a container uses it"
    if not all(_is_given(name, image, namespace) for name in image.tags):
        return "it has a name that this project did not give it"
    return ""


def _is_given(name: str, image: OurImage, namespace: str) -> bool:
    """Whether this project gives an image of ours such a name: see publish/tag_rules.py.

    A tag is the image's version, or made of words of its identifier, whose defaults may change.
    """
    said = labels.read(image.labels)
    words = said.id.split("-")
    repository, _, tag = name.removeprefix(f"{namespace}/").partition(":")
    known = {*words, LATEST, said.torch, ".".join(said.torch.split(".")[:2])}
    ours = tag == said.version or known.issuperset(tag.split("-"))
    return bool(_OWN_NAMES.fullmatch(name)) or (repository == f"torch-{words[0]}" and ours)


def cache(folder: Path) -> tuple[Item, ...]:
    """What this user's cache holds."""
    found = []
    for part in Part:
        for path in sorted((folder / part).glob("*")):
            half = bool(_HALF.fullmatch(path.name))
            if path.is_symlink() or not (half or _OURS.fullmatch(path.name)):
                continue
            noted = mark(path)
            time = max(p.lstat().st_mtime for p in (path, noted) if p.exists())
            used = datetime.fromtimestamp(time, UTC)
            if half and ((path / HELD).exists() or datetime.now(UTC) - used < RUNNING):
                continue  # see `abandoned`, or being made
            found.append(Item(name=f"{part}/{path.name}", size=_size(path), used=used, path=path))
    return tuple(found)


def abandoned(workspace: Workspace) -> tuple[Item, ...]:
    """What processes that were killed left half made, in the cache and where trees are made."""
    cache = workspace.cache
    parts = tuple(cache / part for part in Part)
    scratches = (left_behind(place) for place in (scratch_room(), workspace.output, cache, *parts))
    latest = datetime.now(UTC) - RUNNING
    return tuple(
        Item(
            name=str(path),
            size=_size(path) if is_free(path) else 0,
            used=datetime.fromtimestamp(path.stat().st_mtime, UTC),
            path=path,
        )
        for path in (*chain.from_iterable(scratches), *_partial(parts, latest))
    )


def _partial(parts: Iterable[Path], latest: datetime) -> tuple[Path, ...]:
    """What is left of downloads that nothing was written to since a time."""
    found = (path for part in parts for path in sorted(part.glob(".partial-*")))
    return tuple(
        path
        for path in found
        if _PARTIAL.fullmatch(path.name) and path.lstat().st_mtime < latest.timestamp()
    )


def remove(items: Sequence[Item], engine: Engine) -> Iterator[Item]:
    """Remove items, and yield each once it is gone. One that is in use by now stays."""
    for item in items:
        if item.image or item.tag:
            engine.untag(item.image or item.tag)
            yield item
        elif item.path and _removed(item.path):
            yield item


def _removed(path: Path) -> bool:
    """Remove something; whether it is gone."""
    if (path / HELD).exists():
        return discard(path)
    with _alone(path) as alone:
        if not alone or not is_free(path):
            return False
        with scratch(path.parent, f".{path.name}-") as room:
            path.rename(room / path.name)  # at once: nobody finds a half of it
            mark(path).unlink(missing_ok=True)
        return not room.exists()


def build_cache(run: Runner, *, asked: bool) -> str:
    """A line on the cache of the builder that buildx uses; all of it is removed where `asked`.

    BuildKit does not tell which project filled it, so nothing of it goes otherwise.
    """
    if asked:
        freed = run.run(["docker", "buildx", "prune", "--force", "--all"]).output.splitlines()
        return f"build cache: {freed[-1].lower() if freed else 'nothing to remove'}"
    total = re.search(
        r"^Reclaimable:\s*(\S+)", run.run(["docker", "buildx", "du"]).output, re.MULTILINE
    )
    size = total[1] if total else "0B"
    return f"build cache: {size}, of whatever was built here; `invoke gc --cache` removes it"


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
