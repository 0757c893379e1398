"""The verb that resolves inputs, reports newer ones, and upgrades to them."""

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
    check: bool = flag("change nothing; report inputs that are newer, vanished or altered")
    upgrade: str = option(
        "upgrade torch (edits images.yaml), extras, or all; then lock",
        parse=one_of(*_UPGRADES),
    )
    dry_run: bool = flag("with --upgrade: show what would change in images.yaml; change nothing")
    verbose: bool = flag("with --check: list unchanged inputs too")
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
        raise UsageError("--dry-run shows what --upgrade would do", "add --upgrade, or use --check")
    if options.upgrade and options.select != "*":
        raise UsageError("--upgrade chooses the locks itself", "leave --select out")
    if options.upgrade:
        _upgrade(options.upgrade, options.mirror, dry_run=options.dry_run)
    elif options.check:
        _check(options)
    else:
        _resolve(options.select, options.mirror)


def _resolve(select: str, mirror: Sequence[str]) -> None:
    """Write the locks that match `select`. A lock that fails does not stop the others.

    Raises the last error at the end.
    """
    from torch_images.cli import report
    from torch_images.config.lock_selection import stages
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
        # Later stages depend on the locks of earlier ones: see `stages`.
        items = stages(verb.config(damaged_ok=True), select)[number]
        # Inspecting a release of torch takes 2 GB of disk, so releases are inspected one by one.
        at_once = 1 if number == 1 else _AT_ONCE
        for text in _side_by_side(items, write, errors, at_once=at_once):
            print(text, flush=True)
    if errors:
        raise errors[-1]


def _check(options: Lock) -> None:
    """Print the state of the locked inputs; without --select, also what images.yaml could add."""
    from dataclasses import asdict

    from torch_images.cli import report
    from torch_images.config.lock_selection import inputs
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
        for checked in _side_by_side(items, look, errors, progress="checked"):
            findings += checked
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
    """Apply `work` to each lock in parallel, and yield the results in order.

    An error is printed and added to `errors`; the other locks go on. `progress` begins each line
    of progress on stderr; "" prints none.
    """
    from torch_images.errors import TorchImagesError
    from torch_images.host.workers import workers

    done = itertools.count(1)

    def one(item: LockRequest) -> tuple[T] | None:
        began, result = time.monotonic(), None
        try:
            result = (work(item),)
        except TorchImagesError as error:
            verb.complain(item.name, error)
            errors.append(error)
        if progress:
            took = f"{time.monotonic() - began:.1f} s"
            verb.say(f"{progress} {next(done)} of {len(items)}: {item.name}, {took}")
        return result

    with workers(at_once) as pool:
        for result in pool.map(one, items):
            if result:
                yield result[0]


def _upgrade(what: str, mirror: Sequence[str], *, dry_run: bool) -> None:
    """Upgrade images.yaml and the locks, and print what a reviewer must decide."""
    from torch_images.config.lock_selection import inputs
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
    for file in sorted(gone):
        file.unlink()
        print(f"{file.stem}: removed")
    lines = [*review(before, after, plans), *notes] or ["nothing is newer"]
    print("\nTo review:\n" + "\n".join(f"- {line}" for line in lines))


def _take(plans: Sequence[Plan], before: Config, mirror: Sequence[str]) -> None:
    """Write the new lists of releases, and the locks of the added releases.

    If a release cannot be locked, restores images.yaml and the locks, and raises its error.
    """
    from torch_images.config import edit
    from torch_images.config.lock_selection import inputs
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
    """Changes to the releases of torch, and notes, from the main index as it is today."""
    import datetime as dt

    from torch_images.config.choose import choose
    from torch_images.fetch.newer import newer_torch
    from torch_images.fetch.packageindex import PackageIndex
    from torch_images.fetch.upgrade import find_cudas, plan
    from torch_images.host.runner import Runner

    network = verb.workspace().network
    with PackageIndex(network) as index:
        releases = newer_torch(config, index)
    python, today = choose(config).base.python, dt.datetime.now(dt.UTC).date()
    return plan(config, find_cudas(releases, python, network=network, run=Runner(), date=today))


def _names(cuda: str, torch: str) -> str:
    """A glob for the locks of a release of torch for a CUDA version."""
    return f"*-cu{cuda.replace('.', '')}-torch{torch}-*"


def _resolver(config: Config, select: str, mirror: Sequence[str]) -> Resolver:
    """A resolver for the locks that match `select`; starts an engine if one of them needs it."""
    from torch_images.config.lock_selection import inputs
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
