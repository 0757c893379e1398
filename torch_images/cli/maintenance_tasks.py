"""Verbs that maintain the project and this machine."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from torch_images.build.built import forget
from torch_images.cli import report, verb
from torch_images.cli.called import as_called, red
from torch_images.cli.options import DryRun, Json, Options, flag, option, seconds, size
from torch_images.errors import TorchImagesError
from torch_images.host.runner import Runner
from torch_images.maintain import gc as collector


class Test(Options):
    all: bool = flag("also the tests that are too slow for every change")
    fast: bool = flag("only lint, types and unit tests: no Docker")
    golden: bool = flag("write tests/golden anew: the texts that people read")


@verb.verb(Test, example="test --fast")
def test(options: Test) -> None:
    """Lint, check types, and run the tests; --fast without Docker."""
    verb.require_clone("test")
    if options.golden:
        shutil.rmtree(verb.ROOT / "tests/golden", ignore_errors=True)
        _run("-m", "pytest", "tests/unit", "--golden")
        return
    scripts = ["inv", ".ci/run", *_shell_scripts()]
    _run("-m", "ruff", "check", ".")
    _run("-m", "ruff", "format", "--check", ".")
    _run("-m", "mypy")
    _run(*scripts, program=str(Path(sys.executable).with_name("shellcheck")))
    # a test that cannot be collected fails here, before anything waits for an engine
    _run("-m", "pytest", "tests/integration", "--collect-only", "--quiet", "--quiet")
    _run("-m", "pytest", "tests/unit", "--numprocesses=2")
    if options.fast:
        return
    if options.all:
        # New examples every day; a failure prints the seed that reproduces them.
        files = sorted(str(path) for path in (verb.ROOT / "tests/unit").glob("test_hostile_*.py"))
        seed = f"--hypothesis-seed={datetime.now(UTC):%Y%m%d}"
        long = {"HYPOTHESIS_PROFILE": "long"}
        _run("-m", "pytest", *files, seed, "--numprocesses=2", env=long)
    verb.engine(bootstraps=True)
    locks, warning = _usable_locks(every=options.all)
    slow = [] if options.all else ["-m", "not slow"]
    # Two lanes in parallel: see tests/integration/conftest.py.
    lanes = ["--numprocesses=2", "--dist=loadscope", "--verbose", "--durations=30"]
    try:
        _run("-m", "pytest", "tests/integration", *lanes, *slow, env=locks)
    finally:
        print(warning, end="")


def _usable_locks(*, every: bool) -> tuple[dict[str, str], str]:
    """The environment that selects the tests' locks, and a warning if these are not committed.

    Debian's mirrors drop a package when a newer one appears. Then the tests use locks of today.
    Only slow tests use a base other than the default one: with `every`, those of all CUDA versions.
    No test uses forky, which is the default of none.
    """
    config = verb.config()
    names = {cuda.base for cuda in config.cudas if every or cuda.version == config.defaults.cuda}
    bases = ",".join(f"*-{name}*" for name in sorted(names))
    folder = verb.workspace().output / "test-locks"
    if not _code("-m", "torch_images", "lock", "--check", "--select", bases):
        return {}, ""
    warning = as_called(
        "THE COMMITTED LOCKS CANNOT BE BUILT HERE: Debian has moved on, see above. The tests use "
        f"locks of today instead; run `invoke lock --select '{bases}'` and commit the result."
    )
    warning = red(warning)
    print(warning, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(verb.ROOT / "locks", folder)
    env = {"TORCH_IMAGES_LOCKS": str(folder)}
    _run("-m", "torch_images", "lock", "--select", bases, env=env)
    return env, f"{warning}\n"


def _run(*words: str, program: str = sys.executable, env: Mapping[str, str] | None = None) -> None:
    """Run a program of this environment as `_code` does. Raises TorchImagesError where it fails."""
    if code := _code(*words, program=program, env=env):
        raise TorchImagesError(f"exit code {code} from: {shlex.join([program, *words])}")


def _code(*words: str, program: str = sys.executable, env: Mapping[str, str] | None = None) -> int:
    """Run a program of this environment in the project's folder; return its exit code.

    It uses the user's terminal. No shell parses its arguments, which may contain any path.
    """
    command = [program, *words]
    print(shlex.join(command), flush=True)
    return Runner().interact(command, cwd=verb.ROOT, env=env)


class Docs(Options):
    check: bool = flag("change nothing, fail if a table is out of date")


@verb.verb(Docs, example="docs --check")
def docs(options: Docs) -> None:
    """Write the tables of images.yaml in README.md and docs."""
    verb.require_clone("docs")
    words = ["--check"] if options.check else []
    _run("scripts/docs/docs_tables.py", *words, env={"PYTHONPATH": str(verb.ROOT)})


def _shell_scripts() -> list[str]:
    files_below = (path for path in (verb.ROOT / "scripts").rglob("*") if path.is_file())
    files = sorted(path for path in files_below if path.suffix != ".pyc")
    first = {path: path.read_text().split("\n")[0] for path in files}
    shell = re.compile(r"#.*\b(?:ba)?sh\b")  # #!/bin/sh, or a comment for shellcheck
    return [str(path.relative_to(verb.ROOT)) for path, line in first.items() if shell.match(line)]


class Gc(DryRun, Json):
    older: int = option(
        "remove cache that was not used, and images that no build and no tag named, for this long, "
        "such as 12h or 8w (default: 30d)",
        default=seconds("30d"),
        type=seconds,
    )
    keep: int = option(
        "of the rest, keep the most recently used: this size of images, and as much cache",
        default=0,
        type=size,
    )
    images: bool = flag(
        "remove all images built here, however new, except those that containers use"
    )
    cache: bool = flag("also remove the whole build cache of the builder, even of other projects")


@verb.verb(Gc, example="gc --older 8w --keep 100GB --dry-run")
def gc(options: Gc) -> verb.Result:
    """Remove leftovers of builds, old images and old cache."""
    engine, run, now = verb.engine(), Runner(), datetime.now(UTC)
    before = now - timedelta(seconds=options.older)
    workspace = verb.workspace()
    namespace = verb.namespace(verb.config(), "")
    built = collector.images(workspace.cache, engine, namespace)
    items = (
        *collector.containers(engine),
        *collector.abandoned(workspace),
        *collector.leftovers(workspace, engine, now if options.images else now - collector.RUNNING),
        *(built if options.images else collector.surplus(built, before, options.keep)),
        *collector.surplus(collector.cache(workspace.cache), before, options.keep),
    )
    gone = []
    for item in items if options.dry_run else collector.remove(items, engine):
        gone.append(item)
        if not options.json:
            print(report.collected(item, done=not options.dry_run))
    left = collector.staying(workspace.cache, engine, namespace) if options.images else ()
    freed = collector.build_cache(run, prune=options.cache and not options.dry_run)
    if not options.dry_run:
        forget(workspace.cache, engine)
    return verb.Result(
        data=report.collection(gone, left, freed, done=not options.dry_run),
        text="\n".join([*(f"left image {name}" for name in left), as_called(freed)]),
    )
