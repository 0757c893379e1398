"""The image of a user's own project: its table, and its lock."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from torch_images.build.own import parts
from torch_images.cli import verb
from torch_images.cli.called import as_called
from torch_images.cli.options import Options, flag, option
from torch_images.cli.resolving import resolve_all, resolver_for
from torch_images.config import own as table
from torch_images.config.choose import choose, choose_id, choose_own
from torch_images.config.image import ImageSpec, with_extras
from torch_images.config.lock_requests import image_inputs, own_debs_input
from torch_images.config.types import WITH, Config
from torch_images.errors import LockError, UsageError
from torch_images.fetch.own import compiled_extras, own_locks
from torch_images.host import outputs
from torch_images.host.scratch import scratch
from torch_images.locks.draft import draft
from torch_images.locks.image_lock import ImageLock, image_lock
from torch_images.locks.own import OwnLock, changes, read
from torch_images.locks.requested import lacks
from torch_images.locks.requirements import PYLOCK, UV_LOCK, request
from torch_images.project import own_folder, version

_FILES = (UV_LOCK, PYLOCK, "requirements.txt", table.SHARED)


class Init(Options):
    gpu: str = option("GPU of the host that will run it, such as 'RTX 5090'", needs="driver")
    driver: str = option("driver of that host, such as 570", needs="gpu")
    name: str = option("name of the image (default: the folder's)")
    yes: bool = flag("ask nothing: this host's GPU by nvidia-smi, else an image for all GPUs")


@verb.verb(Init, example="init --gpu 'RTX 5090' --driver 580")
def init(options: Init) -> verb.Result:
    """Start your own image: write torch-images.toml into this folder.

    On a terminal it asks for GPU and driver. It never overwrites a file.
    """
    config, folder = verb.catalogue(), own_folder()
    if file := table.find(folder):
        raise UsageError(f"{file} exists already", "edit it, or remove it")
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", "correct --project")
    gpu, driver = options.gpu, options.driver
    if not gpu and not options.yes and sys.stdin.isatty():
        gpu = input("GPU of the host, such as RTX 5090 (nothing: all GPUs): ").strip()
        driver = input("Its driver, such as 570: ").strip() if gpu else ""
    spec, why = _picked(config, gpu, driver)
    name = options.name or re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-")
    text = _table(config, folder, spec, name or "my-app")
    path = folder / table.FILE
    with path.open("x", encoding="utf-8") as stream:
        stream.write(text)
    try:
        table.load(path)
    except Exception:
        path.unlink()
        raise
    then = as_called(f"next: `invoke lock`, which writes {table.LOCK}, then `invoke build`")
    return verb.Result(text="\n".join([f"wrote {path}", *why, then]))


def _picked(config: Config, gpu: str, driver: str) -> tuple[ImageSpec, list[str]]:
    """The image for a GPU and a driver, and why; for this host's, or the default one, without."""
    from torch_images.cli.see_tasks import Pick, chosen

    try:
        options = Pick.of({"gpu": gpu, "driver": driver} if gpu else {})
    except UsageError:
        if gpu:
            raise
        return choose(config), []
    choice = chosen(config, options)
    return choose_id(config, choice["id"]), [f"torch {choice['torch']}", *choice["why"]]


def _table(config: Config, folder: Path, spec: ImageSpec, name: str) -> str:
    """The text of a new table."""
    requirements = next((file for file in _FILES if (folder / file).is_file()), "")
    axes = {"cuda": f'"{spec.cuda.name}"'}
    if not spec.whole:
        axes["arch"] = json.dumps(list(spec.arches))
    if spec.torch != choose(config, cuda=spec.cuda.name).torch:
        axes["torch"] = f'"{spec.torch}"'
    if spec.compat:
        axes["compat"] = f'"{WITH}"'
    lines = [
        "# The image of this project, by torch-images: see docs/own.md there.",
        f'name = "{name}"',
        *(f"{axis} = {value}" for axis, value in axes.items()),
        f'requirements = "{requirements}"'
        if requirements
        else '# requirements = "requirements.txt"',
        '# packages = ["ffmpeg"]           # of Debian',
        '# files = {"src/my_app" = "/app/my_app"}    # from this folder into the image',
        '# command = ["python", "-m", "my_app"]',
        '# checks = "tests/image"          # your own pytest, run inside by `verify`',
    ]
    return "\n".join(lines) + "\n"


def lock_own(*, renew: bool) -> verb.Result:
    """Resolve everything that a user's own image has into torch-images.lock.

    With `renew` nothing of an earlier lock stays.
    """
    config = verb.config()
    own, spec = config.own, choose_own(config)
    assert own
    asked = request(own)
    before: OwnLock | None = None
    with contextlib.suppress(LockError):
        before = read(own)
    resolver = resolver_for([own_debs_input(spec)] if own.packages else [])
    with verb.still(lambda: f"locking {own.repository}"):
        keep = before.lock if before and not renew else None
        plain = _plain(config, spec, keep)
        if extras := compiled_extras(config, spec, plain, resolver):
            spec = with_extras(spec, extras)
            plain = _plain(config, spec, keep)
        lock = own_locks(config, spec, plain, resolver, keep=keep)
    lock = _dated(lock, before.lock if before else None)
    new = OwnLock(
        version=version(),
        axes=spec.axes,
        request=asked,
        parts=parts(config, own, lock, verb.ROOT),
        lock=lock,
    )
    text = new.text()
    if before and own.lock.read_text(encoding="utf-8") == text:
        return verb.Result(text=f"{own.lock}: unchanged")
    outputs.write(own.lock, text)
    lines = [*_differences(plain, lock), *_moves(before, new), f"wrote {own.lock}"]
    return verb.Result(text="\n".join(lines))


def _plain(config: Config, spec: ImageSpec, keep: ImageLock | None) -> ImageLock:
    """The locks of the image without the project.

    What this project's locks lack is taken from `keep`, an earlier lock, or resolved. Raises
    UsageError for a release of torch whose wheel nobody has looked into.
    """
    workspace = verb.workspace()
    if not spec.release.facts:
        raise UsageError(
            f"torch {spec.torch} with Python {spec.base.python} is in no image of torch-images",
            "choose another torch or base, see `invoke matrix`",
        )
    workspace.cache.mkdir(parents=True, exist_ok=True)
    with scratch(workspace.cache, ".lock-") as room:
        new = draft(workspace.locks, room)
        for name, text in keep.texts().items() if keep else ():
            if not (new.folder / name).exists():
                (new.folder / name).write_text(text, encoding="utf-8")
        items = [item for item in image_inputs(config, spec) if lacks(new.folder, item)]
        if items:
            verb.say(f"torch-images has no lock for {spec.id}: resolving what is missing")
            resolve_all(items, new.folder)
        return image_lock(config, spec, new.folder)


def _dated(lock: ImageLock, before: ImageLock | None) -> ImageLock:
    """The lock, where each part that did not change keeps its day: the image has the newest."""
    days = {}
    for field in fields(lock) if before else ():
        old, new = getattr(before, field.name), getattr(lock, field.name)
        if old and new and not isinstance(new, tuple) and replace(new, date=old.date) == old:
            days[field.name] = old
    return replace(lock, **days)


def _differences(plain: ImageLock, lock: ImageLock) -> Iterator[str]:
    """Lines about what a project adds to an image."""
    has = {wheel.name: wheel.version for wheel in plain.all_wheels}
    wheels = lock.own_wheels.wheels if lock.own_wheels else ()
    size = sum(wheel.size for wheel in wheels) / 1e6
    yield f"{len(wheels)} wheels, {size:.0f} MB, besides the {len(has)} of the image"
    for sdist in lock.sdists:
        yield f"compiles {sdist.name} {sdist.version}; docs/extensions.md has the time"
    for wheel in wheels:
        if wheel.name in has:
            yield f"{wheel.name} {wheel.version} in place of {has[wheel.name]}"
    if lock.own_debs:
        size = sum(deb.size for deb in lock.own_debs.debs) / 1e6
        yield f"{len(lock.own_debs.debs)} Debian packages, {size:.0f} MB"


def _moves(before: OwnLock | None, new: OwnLock) -> Iterator[str]:
    """Lines about what changed since the earlier lock."""
    if before:
        versions = [
            {w.name: w.version for w in each.lock.all_wheels}
            | {d.name: d.version for d in each.lock.all_debs}
            for each in (before, new)
        ]
        yield from changes(*versions)
        if before.parts != new.parts:
            yield f"made by torch-images {new.version}, earlier by {before.version}"
