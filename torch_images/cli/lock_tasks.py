"""The verb that resolves every input, says what is newer, and brings in what is new."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, TypeVar

from torch_images.cli import verb
from torch_images.cli.options import Mirror, flag, one_of, option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch_images.config.lock_requests import LockRequest
    from torch_images.config.types import Config
    from torch_images.errors import TorchImagesError
    from torch_images.fetch.apt import Resolver
    from torch_images.fetch.update import Finding
    from torch_images.fetch.upgrade import Plan

T = TypeVar("T")
_AT_ONCE = 6  # locks; uv asks an index for up to 50 files at once by itself
_UPGRADES = {"torch": "", "extras": "release-*,wheel-*", "all": "*"}


class Lock(Mirror):
    select: str = option(
        "only locks whose name matches this glob, such as 'base-*' (see locks/)", default="*"
    )
    check: bool = flag("change nothing; say what is newer, has vanished, or was altered")
    upgrade: str = option(
        "bring in what is newer: torch (edits images.yaml), extras, or all; then lock",
        parse=one_of(*_UPGRADES),
    )
    dry_run: bool = flag("with --upgrade: say what would change in images.yaml, change nothing")
    verbose: bool = flag("with --check: name the inputs that are unchanged, too")
    json: bool = flag("with --check: print every input as JSON")


@verb.verb(Lock, example="lock --check")
def lock(options: Lock) -> None:
    """Resolve every input - wheels, Debian packages, images, tools - into locks/."""
    from torch_images.errors import UsageError

    if not options.check:
        verb.require_own_locks(verb.workspace().locks)
    if options.check and options.upgrade:
        raise UsageError("--check and --upgrade exclude each other", "give one of them")
    if options.dry_run and not options.upgrade:
        raise UsageError("--dry-run says what --upgrade would do", "add --upgrade, or take --check")
    if options.upgrade and options.select != "*":
        raise UsageError("--upgrade chooses the locks itself", "leave --select out")
    if options.upgrade:
        _upgrade(options.upgrade, options.mirror, dry_run=options.dry_run)
    elif options.check:
        _check(options)
    else:
        _resolve(options.select, options.mirror)


def _resolve(select: str, mirror: Sequence[str]) -> None:
    """Write the locks that match. One that fails keeps no other from being written.

    Raises its error afterwards.
    """
    from torch_images.cli import report
    from torch_images.config.lock_requests import stages
    from torch_images.fetch.update import resolve_input
    from torch_images.locks.image_lock import update

    workspace = verb.workspace()
    resolver = _resolver(verb.config(damaged_ok=True), select, mirror)
    errors: list[TorchImagesError] = []

    def write(item: LockRequest) -> str:
        resolved = resolve_input(item, workspace.locks, resolver, workspace.cache)
        changed = update(item.path(workspace.locks), resolved)
        return report.locked(item.name, resolved, changed=changed)

    for number in range(3):
        # What is found about a release decides what the locks of variants are options for.
        items = stages(verb.config(damaged_ok=True), select)[number]
        # A torch to look into takes 2 GB of the disk, so of these only one is worked on at once.
        at_once = 1 if number == 1 else _AT_ONCE
        for text in _side_by_side(items, write, errors, at_once=at_once):
            print(text, flush=True)
    if errors:
        raise errors[-1]


def _check(options: Lock) -> None:
    """Print what became of the locked inputs; of all, what images.yaml could ask for, too."""
    from dataclasses import asdict

    from torch_images.cli import report
    from torch_images.config.lock_requests import inputs
    from torch_images.errors import TorchImagesError
    from torch_images.fetch.newer import newer
    from torch_images.fetch.packageindex import PackageIndex
    from torch_images.fetch.update import check, require

    workspace, config = verb.workspace(), verb.config()
    resolver = _resolver(config, options.select, options.mirror)
    findings: list[Finding] = []
    errors: list[TorchImagesError] = []
    with PackageIndex(workspace.network) as index:

        def look(item: LockRequest) -> tuple[Finding, ...]:
            return check(item, workspace.locks, resolver, workspace.cache, index)

        items = inputs(config, options.select)
        for found in _side_by_side(items, look, errors, progress="checked"):
            findings += found
    if options.select == "*":
        try:
            findings += newer(config, workspace.network)
        except TorchImagesError as error:
            verb.complain("images.yaml", error)
            errors.append(error)
    text = report.findings(findings, every=options.verbose)
    print(verb.as_json([asdict(finding) for finding in findings]) if options.json else text)
    require(findings)
    if errors:
        raise errors[-1]


def _side_by_side(
    items: Sequence[LockRequest],
    work: Callable[[LockRequest], T],
    errors: list[TorchImagesError],
    *,
    at_once: int = _AT_ONCE,
    progress: str = "",
) -> Iterator[T]:
    """What `work` makes of each lock, in order. Most of the time servers are waited for.

    An error is told, is added to `errors`, and keeps no other lock from its turn. `progress` is
    what each line on stderr begins with; "" for no such lines.
    """
    from torch_images.errors import TorchImagesError
    from torch_images.host.workers import workers

    done = itertools.count(1)

    def one(item: LockRequest) -> tuple[T] | None:
        began, made = time.monotonic(), None
        try:
            made = (work(item),)
        except TorchImagesError as error:
            verb.complain(item.name, error)
            errors.append(error)
        if progress:
            took = f"{time.monotonic() - began:.1f} s"
            verb.say(f"{progress} {next(done)} of {len(items)}: {item.name}, {took}")
        return made

    with workers(at_once) as pool:
        for made in pool.map(one, items):
            if made:
                yield made[0]


def _upgrade(what: str, mirror: Sequence[str], *, dry_run: bool) -> None:
    """Change images.yaml and the locks to what is newer, and say what a reviewer must decide."""
    from torch_images.config.lock_requests import inputs
    from torch_images.fetch.upgrade import review

    before, folder = verb.config(damaged_ok=True), verb.workspace().locks
    plans, notes = ((), ()) if what == "extras" else _plans(before)
    if dry_run:
        print("\n".join([*(one.sentence for one in plans), *notes]) or "torch: nothing is newer")
        return
    if plans:
        _take(plans, before, mirror)
    if _UPGRADES[what]:
        _resolve(_UPGRADES[what], mirror)
    after = verb.config(damaged_ok=True)
    gone = {path for item in inputs(before) if (path := item.path(folder)).exists()}
    gone -= {item.path(folder) for item in inputs(after)}
    dropped = [f"-torch{torch}-" for one in plans for torch in one.dropped]
    for file in sorted(file for file in gone if any(name in file.name for name in dropped)):
        file.unlink()
        print(f"{file.stem}: removed")
    lines = [*review(before, after, plans), *notes] or ["nothing is newer"]
    print("\nTo review:\n" + "\n".join(f"- {line}" for line in lines))


def _take(plans: Sequence[Plan], before: Config, mirror: Sequence[str]) -> None:
    """Write the new lists of releases, and the locks of those that came.

    Where one cannot be locked, images.yaml and the locks are as before. Raises its error.
    """
    from torch_images.config import edit
    from torch_images.config.lock_requests import inputs
    from torch_images.project import config_file

    path, folder = config_file(verb.ROOT), verb.workspace().locks
    old = text = path.read_text(encoding="utf-8")
    for one in plans:
        text = edit.with_releases(text, one.cuda, one.releases)
    names = [_names(one.cuda, torch) for one in plans for torch in one.added]
    there = {item.path(folder) for item in inputs(before)}
    edit.write(path, text)
    try:
        for name in names:
            _resolve(name, mirror)
    except BaseException:  # also Ctrl-C
        edit.write(path, old)
        for file in {file for name in names for file in folder.glob(name)} - there:
            file.unlink(missing_ok=True)
        raise


def _plans(config: Config) -> tuple[tuple[Plan, ...], tuple[str, ...]]:
    """What becomes of the releases of torch, by what the main index has today."""
    import datetime as dt

    from torch_images.config.choose import choose
    from torch_images.fetch.newer import newer_torch
    from torch_images.fetch.packageindex import PackageIndex
    from torch_images.fetch.upgrade import find_cudas, plan
    from torch_images.host.runner import Runner

    network = verb.workspace().network
    with PackageIndex(network) as index:
        found = newer_torch(config, index)
    python, today = choose(config).base.python, dt.datetime.now(dt.UTC).date()
    return plan(config, find_cudas(found, python, network=network, run=Runner(), date=today))


def _names(cuda: str, torch: str) -> str:
    """A glob for the locks of a release of torch for a CUDA version."""
    return f"*-cu{cuda.replace('.', '')}-torch{torch}-*"


def _resolver(config: Config, select: str, mirror: Sequence[str]) -> Resolver:
    """What resolves the locks that match; it starts an engine where one of them needs it."""
    from torch_images.config.lock_requests import inputs
    from torch_images.fetch.apt import Resolver
    from torch_images.host.runner import Runner
    from torch_images.host.setup import can_bootstrap

    items = inputs(config, select)
    if not can_bootstrap() and any(item.by_apt for item in items):
        verb.engine(bootstraps=True)
    return Resolver(
        root=verb.ROOT,
        network=verb.workspace().network,
        run=Runner(),
        engine=verb.engine() if any(item.image for item in items) else None,
        mirrors=verb.mirrors(mirror),
    )
