"""Leftovers of builds, and old images and cache on this machine -> free disk.

Removes only files and images of this project: see `build.built` for images, `host.scratch` for
unfinished files. Images that containers use stay, and so do files that a build has open.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

from torch_images.build import built, labels
from torch_images.build.plan import CANDIDATE
from torch_images.config.image import LATEST
from torch_images.host.buildx import Record
from torch_images.host.cache import Part, mark
from torch_images.host.engine import Engine
from torch_images.host.image_info import ListedImage, OurImage
from torch_images.host.runner import Runner
from torch_images.host.scratch import LOCK_FILE, discard, is_free, left_behind, remove_tree
from torch_images.host.workspace import Workspace, alone, scratch_room
from torch_images.layers.parent import parent_name
from torch_images.verify.reproduce import original

# Files in the cache. A folder has its time of use beside it, see host/cache.py: the cache is where
# the user wants it, and folders such as db-2026010112000000 may be the user's.
_FILE = re.compile(r"[0-9a-f]{64}(?:\.deb|\.json)?")
RUNNING = timedelta(hours=1)  # newer files may belong to a running build
# The steps of docker/*.j2, and the caches among them that hold hours of work.
_STEP = re.compile(
    r"exec /bin/sh -c /run/(?:build|devel|finish|native|source)/"
    r"|exec /bin/sh -c cp --recursive --symbolic-link /opt/venv/"
    r"|\[runtime [0-9/]+\] WORKDIR /workspace$"
)
_STAYS = re.compile('with id "/torch-images-(?:bytecode|compile)"')


@dataclass(frozen=True, kw_only=True)
class Item:
    """Something that can be removed: `size` in bytes, `used` is the time of last use.

    It is a file or folder at `path`, a `container` by its id, or the image with the id `image`, or
    only its name `tag`, if `goes` holds for the image as it is just before it is removed.
    """

    name: str
    size: int
    used: datetime
    path: Path | None = None
    container: str = ""
    image: str = ""
    tag: str = ""
    goes: Callable[[OurImage], bool] = lambda _: False


def surplus(items: Iterable[Item], before: datetime, size: int = 0) -> tuple[Item, ...]:
    """Items last used before a time, or beyond `size` bytes in all (0: any). Pure.

    The longest unused are first.
    """
    latest = sorted(items, key=lambda item: item.used, reverse=True)
    gone, total = [], 0
    for item in latest:
        total += item.size
        if item.used < before or (size and total > size):
            gone.append(item)
            total -= item.size
    return tuple(reversed(gone))


def leftovers(workspace: Workspace, engine: Engine, before: datetime) -> tuple[Item, ...]:
    """The tags of images that were never verified.

    Leaves out tags younger than `before`, which may belong to a running build.
    """
    ours = {image.id for image in built.ours(workspace.cache, engine)}
    listed = {image.id: image for image in engine.listed()}
    left = {digest: _left_tags(image, ours=digest in ours) for digest, image in listed.items()}
    return tuple(
        of_image(image, lambda now, n=name: n in _left_tags(now, ours=now.id in ours), name)  # type: ignore[misc]
        for image in engine.details(listed[digest] for digest, names in left.items() if names)
        for name in left[image.id]
        if image.tagged <= before
    )


def of_image(image: OurImage, goes: Callable[[OurImage], bool], tag: str = "") -> Item:
    """An image, or one name of it, to be removed if `goes` still holds then."""
    name, size = (f"tag {tag}", 0) if tag else (_name(image), image.size)
    return Item(name=name, size=size, used=image.tagged, image=image.id, tag=tag, goes=goes)


def containers(engine: Engine) -> tuple[Item, ...]:
    """Containers of killed processes: that of a `verify` sleeps for good, perhaps with a GPU."""
    return tuple(
        Item(name=f"container {each.name}", size=0, used=each.created, container=each.id)
        for each in engine.own_containers()
        if each.abandoned()
    )


def _left_tags(image: ListedImage, *, ours: bool) -> tuple[str, ...]:
    """The names that builds leave on an image; () if removing them would remove a user's image."""
    names = [tag for tag in image.tags if tag == original(image.id)]
    names += [tag for tag in image.tags if tag.startswith(f"{CANDIDATE}:")] if ours else []
    return tuple(names) if ours or len(image.tags) > len(names) else ()


def images(cache: Path, engine: Engine, namespace: str = "") -> tuple[Item, ...]:
    """Images of this project that can be removed, with or without a tag, and their parents.

    `namespace` is the registry and owner in the names that this project gives.
    """
    return tuple(
        of_image(image, lambda now: not _stays(now, namespace))
        for image in engine.details(built.ours(cache, engine))
        if not _stays(image, namespace)
    )


def staying(cache: Path, engine: Engine, namespace: str = "") -> tuple[str, ...]:
    """Images of this project that must stay, each with the reason."""
    ours = engine.details(built.ours(cache, engine))
    return tuple(f"{_name(image)}: {why}" for image in ours if (why := _stays(image, namespace)))


def _stays(image: OurImage, namespace: str) -> str:
    """Why an image of this project must stay; "" if it can be removed."""
    if image.in_use:
        return "a container uses it"
    if not all(_is_given(name, image, namespace) for name in image.tags):
        return "it has a name that this project did not give it"
    return ""


def _is_given(name: str, image: OurImage, namespace: str) -> bool:
    """Whether a name is one that this project gives the image, see publish/tag_rules.py.

    A tag is the image's version, or consists of words of its identifier; defaults may change.
    """
    image_labels = labels.read(image.labels)
    words = image_labels.id.split("-")
    repository, _, tag = name.removeprefix(f"{namespace}/").partition(":")
    known = {*words, LATEST, image_labels.torch, ".".join(image_labels.torch.split(".")[:2])}
    ours = tag == image_labels.version or known.issuperset(tag.split("-"))
    own = name in (parent_name(image.id), original(image.id)) or name.startswith(f"{CANDIDATE}:")
    return own or (repository == f"torch-{words[0]}" and ours)


def cache(folder: Path) -> tuple[Item, ...]:
    """The items in this user's cache."""
    paths = [path for part in Part for path in sorted((folder / part).glob("*"))]
    return tuple(
        Item(
            name=str(path.relative_to(folder)),
            size=_size(path),
            used=_time(max(p.lstat().st_mtime for p in (path, mark(path)) if p.exists())),
            path=path,
        )
        for path in paths
        if not path.is_symlink() and (_FILE.fullmatch(path.name) or mark(path).exists())
    )


def abandoned(workspace: Workspace) -> tuple[Item, ...]:
    """Unfinished files of killed processes, in the cache and in the folders for trees."""
    cache = workspace.cache
    parts = tuple(cache / part for part in Part)
    scratches = (left_behind(place) for place in (scratch_room(), workspace.output, cache, *parts))
    downloads = chain.from_iterable(sorted(part.glob(".partial-????????")) for part in parts)
    latest = datetime.now(UTC) - RUNNING
    partial = [path for path in downloads if _time(path.lstat().st_mtime) < latest]
    return tuple(
        Item(
            name=str(path),
            size=_size(path) if is_free(path) else 0,
            used=_time(path.stat().st_mtime),
            path=path,
        )
        for path in (*chain.from_iterable(scratches), *partial)
    )


def remove(items: Sequence[Item], engine: Engine) -> Iterator[Item]:
    """Remove items, and yield each once it is gone. Skips items that are in use by now.

    Looks at each image again just before: meanwhile a user may have named it, or started it.
    """
    for item in items:
        if item.container:
            engine.remove_container(item.container)
            yield item
        elif _untagged(item, engine) if item.image else item.path and _removed(item.path):
            yield item


def _untagged(item: Item, engine: Engine) -> bool:
    """Remove the names of an image, or one of them, if they still may go; whether all did."""
    for now in engine.details(image for image in engine.listed() if image.id == item.image):
        names = [name for name in now.tags or [now.id] if item.tag in ("", name)]
        gone = [engine.untag(name, force=False) for name in names if item.goes(now)]
        return bool(gone) and all(gone)
    return False


def _removed(path: Path) -> bool:
    """Remove a member of the cache. Returns whether it is gone."""
    if (path / LOCK_FILE).exists():
        return discard(path)
    lock = path.with_name(f"{path.name}.lock")
    try:
        with alone(lock, _refuse) if lock.exists() else contextlib.nullcontext():
            if not is_free(path):
                return False
            # In one step, so nobody sees a part of it; a new folder may not fit on a full disk.
            gone = path.with_name(f".partial-{secrets.token_hex(4)}")
            path.rename(gone)
            mark(path).unlink(missing_ok=True)
            lock.unlink(missing_ok=True)
            return remove_tree(gone)
    except BlockingIOError:  # a process is making it
        return False


def _refuse() -> None:
    raise BlockingIOError


def own_steps(records: Sequence[Record]) -> frozenset[str]:
    """The entries of BuildKit's cache that steps of this project made, with what they build on.

    They hold the layers of a removed image, so without this its disk does not come back. The
    bytecode that all images share and compiled files stay, and so does what another project builds
    on. Steps that compile go, too: BuildKit would not find them again, see build/compiled.py.
    """
    parents = {record.id: record.parents for record in records}

    def with_parents(ids: Iterable[str]) -> set[str]:
        known, left = set[str](), [*ids]
        while left:
            if (one := left.pop()) not in known:
                known.add(one)
                left += parents.get(one, ())
        return known

    steps = {record.id: record.step for record in records if record.step}
    ours = {n for n, step in steps.items() if _STEP.search(step) and not _STAYS.search(step)}
    return frozenset(with_parents(ours) - with_parents(steps.keys() - ours))


def build_cache(run: Runner, *, prune: bool) -> str:
    """A line about the cache of buildx's current builder; with `prune`, removes all of it.

    BuildKit does not record which project filled it, so nothing else is removed.
    """
    if prune:
        freed = run.run(["docker", "buildx", "prune", "--force", "--all"]).output.splitlines()
        return f"build cache: {freed[-1].lower() if freed else 'nothing to remove'}"
    total = re.search(
        r"^Reclaimable:\s*(\S+)", run.run(["docker", "buildx", "du"]).output, re.MULTILINE
    )
    size = total[1] if total else "0B"
    return f"build cache: {size}, of all projects; `invoke gc --cache` removes it"


def _name(image: OurImage) -> str:
    return ", ".join(image.tags) or f"{image.id} (no tag)"


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.lstat().st_size for file in files)
