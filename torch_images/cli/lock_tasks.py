"""The verb that adds locks, reports newer inputs, and renews."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from torch_images.build.plan import identities
from torch_images.cli import report, verb
from torch_images.cli.options import Options, flag, option
from torch_images.cli.resolving import resolve_all, resolver_for, side_by_side
from torch_images.config import edit
from torch_images.config.load import load_config
from torch_images.config.lock_requests import LockRequest
from torch_images.config.lock_selection import choose_locks, inputs
from torch_images.config.types import Config
from torch_images.errors import TorchImagesError, UsageError
from torch_images.fetch.newer import Plan, find_cudas, newer, newer_torch, plan
from torch_images.fetch.packageindex import PackageIndex
from torch_images.fetch.update import Finding, check, require
from torch_images.host.runner import Runner
from torch_images.host.scratch import scratch
from torch_images.locks.draft import draft
from torch_images.locks.facts import with_facts
from torch_images.locks.requested import lacks
from torch_images.project import config_file

_PROJECTS = ("select", "all", "check", "upgrade")  # options for this project's own locks


class Lock(Options):
    select: str = option(
        "only these: locks by name or glob, such as 'base-*' (see locks/), resolved anew; or an "
        "image's identifier, for the locks that it lacks"
    )
    renew: bool = flag("resolve locks anew: all those of --select, or --all")
    all: bool = flag("every lock", needs="renew")
    check: bool = flag("change nothing; report inputs that are newer, vanished or altered")
    upgrade: str = option(
        "torch: add its newer releases to images.yaml, and their locks", choices=("torch",)
    )
    dry_run: bool = flag("show what would change in images.yaml; change nothing", needs="upgrade")
    json: bool = flag("print every input as JSON", needs="check")


@verb.verb(Lock, example="lock --check")
def lock(options: Lock) -> verb.Result | None:
    """Resolve inputs - wheels, Debian packages, tools - into locks/.

    By itself it adds the locks that images.yaml asks for and locks/ lacks.
    It writes all of them, or none if one fails. In the folder of your own
    image it writes torch-images.lock.
    """
    if verb.config().own:
        from torch_images.cli.own_tasks import lock_own

        if given := [name for name in _PROJECTS if getattr(options, name)]:
            raise UsageError(
                f"--{given[0]} is for the locks of torch-images",
                "leave it out, or run it outside the folder of your image, without --project",
            )
        return lock_own(renew=options.renew)
    ways = [name for name in ("check", "renew", "upgrade") if getattr(options, name)]
    if len(ways) > 1:
        raise UsageError(f"--{ways[0]} and --{ways[1]} exclude each other", "give one of them")
    if options.upgrade and options.select:
        raise UsageError("--upgrade chooses the locks itself", "leave --select out")
    if options.renew and bool(options.select) == options.all:
        raise UsageError("--renew takes either --select or --all", "give one of them")
    if options.check:
        return _check(options)
    verb.require_own_locks(verb.workspace().locks)
    if options.upgrade:
        return _upgrade(options)
    if options.renew:
        pattern = options.select or "*"
        return _write(lambda config, _: inputs(config, pattern))
    return _write(lambda config, locks: _lacking(config, options.select, locks))


def _lacking(config: Config, pattern: str, locks: Path) -> tuple[LockRequest, ...]:
    """The locks that a pattern names, and those that its images lack; "" means the catalogue."""
    named, of_images = choose_locks(config, pattern or "*")
    if not pattern:
        named, of_images = {}, named
    return (*named.values(), *(item for item in of_images.values() if lacks(locks, item)))


def _write(
    choose: Callable[[Config, Path], Sequence[LockRequest]],
    *,
    plans: Sequence[Plan] = (),
    notes: Sequence[str] = (),
) -> verb.Result:
    """Resolve the chosen locks, then write all of them, or none if one fails.

    First prints which images of the catalogue change. `plans` are changes to images.yaml, `notes`
    are for a reviewer. With `plans`, removes the locks that the catalogue does not need any more.
    """
    before, workspace, path = verb.config(), verb.workspace(), config_file(verb.ROOT)
    old = text = path.read_text(encoding="utf-8")
    for one in plans:
        text = edit.with_releases(text, one.cuda, one.releases)
    workspace.cache.mkdir(parents=True, exist_ok=True)
    with scratch(workspace.cache, ".lock-") as room:
        new, edited = draft(workspace.locks, room), room / path.name
        edited.write_text(text, encoding="utf-8")
        loaded = load_config(edited)

        config = with_facts(loaded, new.folder)
        lines = resolve_all(choose(config, new.folder), new.folder)
        after = with_facts(loaded, new.folder)
        if plans:
            gone = {item.path(new.folder) for item in inputs(before)}
            gone -= {item.path(new.folder) for item in inputs(after)}
            for file in sorted(file for file in gone if file.exists()):
                file.unlink()
                lines.append(f"{file.stem}: removed")
        changes = report.changed_images(
            identities(before, verb.ROOT, workspace.locks),
            identities(after, verb.ROOT, new.folder),
        )
        print("".join(f"{line}\n" for line in changes), end="", flush=True)
        new.put({path: (old, text)} if text != old else {})
    lines = lines or ["nothing to add: locks/ has all that images.yaml asks for"]
    if decide := [*(one.sentence for one in plans), *notes]:
        lines += ["", "To review:", *(f"- {line}" for line in decide)]
    return verb.Result(text="\n".join(lines))


def _check(options: Lock) -> verb.Result:
    """Print the state of the locked inputs; without --select, also what images.yaml could add."""
    workspace, config = verb.workspace(), verb.config()
    items = inputs(config, options.select or "*")
    resolver = resolver_for(items)
    findings: list[Finding] = []
    errors: list[TorchImagesError] = []
    with PackageIndex(workspace.network) as index:

        def look(item: LockRequest) -> tuple[Finding, ...]:
            return check(item, workspace.locks, resolver, index)

        for checked in side_by_side(items, look, errors, progress="checked"):
            findings += checked
    if not options.select:
        try:
            findings += newer(config, workspace.network)
        except TorchImagesError as error:
            verb.complain("images.yaml", error)
            errors.append(error)
    text = report.findings(findings)

    def then() -> None:
        require(findings)
        if errors:
            raise errors[-1]

    return verb.Result(data={"inputs": [*map(asdict, findings)]}, text=text, then=then)


def _upgrade(options: Lock) -> verb.Result:
    """Add newer releases of torch to images.yaml, as the main index has them, and their locks."""
    current, network = verb.config(), verb.workspace().network
    with PackageIndex(network) as index:
        releases = newer_torch(current, index)
    plans, notes = plan(current, find_cudas(current, releases, network=network, run=Runner()))
    if options.dry_run or not plans:
        lines = [*(one.sentence for one in plans), *notes]
        return verb.Result(text="\n".join(lines) or "torch: nothing is newer")
    known = {item.name for item in inputs(current)}

    def added(config: Config, locks: Path) -> Sequence[LockRequest]:
        return [item for item in _lacking(config, "", locks) if item.name not in known]

    return _write(added, plans=plans, notes=notes)
