"""The verbs, in the order of the flow, from matrix to reproduce and sbom; then test and clean.

Each one parses, calls, prints; the work is in torch_images/. Imports stay inside the verbs, so that
`invoke --list` needs neither Docker nor YAML.
"""

from __future__ import annotations

import errno
import functools
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

if TYPE_CHECKING:
    from torch_images.bake import Planned
    from torch_images.config import Config
    from torch_images.engine import Engine
    from torch_images.verify import VerifyReport
    from torch_images.workplace import Workplace

ROOT = Path(__file__).resolve().parent
_warnings = logging.StreamHandler()  # the project's own; libraries' stay as Python has them
_warnings.setFormatter(logging.Formatter("warning: %(message)s"))
logging.getLogger("torch_images").addHandler(_warnings)
logging.getLogger("urllib3").setLevel(logging.ERROR)  # its retries are no news

_AXES_HELP = {
    "cuda": "CUDA version, such as 13.0",
    "arch": "compute capability such as 12.0, several as 9.0,12.0, or all",
    "source": "where torch comes from: wheel or fork",
    "base": "what the image starts from: bookworm or ubuntu24.04",
    "variant": "what the image holds beside torch, such as runtime",
}
_COMPILING_HELP = {
    "torch-source": "compile torch from PATH, PATH@COMMIT or URL@COMMIT instead",
    "jobs": "compilers to run at once, else what the builder has memory for",
}
_MIRROR_HELP = "mirror of the base's packages: URL or sources.list line; repeatable"


def verb(**options: Any) -> Callable[[Callable[..., None]], Any]:
    """An Invoke task whose errors are one line and an exit code, without a traceback."""

    def decorate(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            from torch_images.errors import DiskError, TorchImagesError

            try:
                function(*args, **kwargs)
            except TorchImagesError as error:
                raise Exit(_red(f"error: {error}"), code=error.exit_code) from None
            except BrokenPipeError:  # `invoke matrix | head`: the reader has what it wanted
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise Exit(code=0) from None
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                where = f" ({error.filename})" if error.filename else ""
                full = DiskError(f"the disk is full{where}", "free some space and try again")
                raise Exit(_red(f"error: {full}"), code=full.exit_code) from None
            except KeyboardInterrupt:
                raise Exit("interrupted; nothing was tagged", code=130) from None

        return task(wrapper, **options)

    return decorate


@verb(
    help={
        "json": "print JSON, for CI matrices",
        "select": "only images whose identifier matches this glob",
        "excluded": "print what is not built, and why",
    }
)
def matrix(c: Context, json: bool = False, select: str = "*", excluded: bool = False) -> None:
    """Print every image of images.yaml by its identifier."""
    from torch_images import matrix as images

    config = _config()
    if excluded:
        for rule in config.excludes:
            axes = {axis: getattr(rule, axis) for axis in _AXES_HELP}
            print(", ".join(f"{k} {v}" for k, v in axes.items() if v) + f": {rule.reason}")
        return
    specs = images.select(config, select)
    if json:
        print(_json({"image": [images.describe(spec) for spec in specs]}))
        return
    width = max(len(spec.id) for spec in specs)
    for spec in specs:
        arches = " ".join(a.name for a in spec.architectures)
        print(f"{spec.id:<{width}}  torch {spec.torch}  {arches}")


@verb(
    positional=["image"],
    help={"image": "identifier, see `invoke matrix`", "output": "write the context to this folder"},
)
def render(c: Context, image: str, output: str = "") -> None:
    """Print an image's Dockerfile, or write its whole build context."""
    from torch_images import build, matrix, render

    config = _config()
    [planned] = build.plan(config, [matrix.find(config, image)], _place().locks)
    context = render.render(config, planned.spec, planned.lock, ROOT)
    if output:
        render.write_context(context, Path(output))
        print(f"wrote {len(context.files)} files to {output}")
    else:
        print(context.dockerfile)


@verb(
    iterable=["mirror"],
    help={
        "select": "only locks whose name matches this glob, such as 'base-*' (see locks/)",
        "check": "change nothing; say what is newer, has vanished, or was altered",
        "mirror": _MIRROR_HELP,
        "verbose": "with --check: name the inputs that are unchanged, too",
        "json": "with --check: print every input as JSON",
    },
)
def lock(
    c: Context,
    select: str = "*",
    check: bool = False,
    mirror: tuple[str, ...] = (),
    verbose: bool = False,
    json: bool = False,
) -> None:
    """Resolve every input - wheels, Debian packages, images, tools - into locks/."""
    from dataclasses import asdict

    from torch_images import relock, report
    from torch_images.errors import TorchImagesError
    from torch_images.inputs import inputs
    from torch_images.lock import update
    from torch_images.resolver import Resolver
    from torch_images.runner import Runner
    from torch_images.setup import can_bootstrap

    chosen, place = inputs(_config(), select), _place()
    images = any(item.image for item in chosen)
    if not can_bootstrap() and any(item.by_apt for item in chosen):
        _engine(bootstraps=True)
    resolver = Resolver(
        root=ROOT,
        network=place.network,
        run=Runner(),
        engine=_engine() if images else None,
        mirrors=_mirrors(mirror),
    )
    findings: list[relock.Finding] = []
    problem: TorchImagesError | None = None
    for item in chosen:
        try:
            if check:
                findings += relock.check(item, place.locks, resolver, place.cache)
            else:
                found = relock.resolve_input(item, resolver, place.cache)
                changed = update(item.path(place.locks), found)
                print(report.locked(item.name, found, changed=changed))
        except TorchImagesError as error:  # the other inputs are none the worse for it
            print(_red(f"{item.name}: {error}"), file=sys.stderr)
            problem = error
    if check:
        text = report.findings(findings, every=verbose)
        print(_json([asdict(finding) for finding in findings]) if json else text)
        relock.require(findings)
    if problem:
        raise problem


@verb(
    iterable=["mirror"],
    help={
        **_AXES_HELP,
        "select": "build every image whose identifier matches this glob, side by side",
        "builder": "buildx builder to use (see `docker buildx ls`)",
        "no-cache": "build from nothing, the base included",
        "progress": "how BuildKit shows progress: auto, plain or tty",
        "mirror": _MIRROR_HELP,
        "compat": "NVIDIA's newer driver libraries: auto (if they can be had), required or off",
        **_COMPILING_HELP,
        "locked": "stop where a locked package has vanished, instead of resolving it afresh",
        "unverified": "stop before verification: the image keeps its candidate tag only",
        "dry-run": "say what would be built and run, change nothing",
        "json": "print the result as JSON",
        "skip-disk-check": "build even if the disk looks too small",
    },
)
def build(
    c: Context,
    cuda: str = "",
    arch: str = "",
    source: str = "",
    base: str = "",
    variant: str = "",
    select: str = "",
    builder: str = "",
    no_cache: bool = False,
    progress: str = "auto",
    mirror: tuple[str, ...] = (),
    compat: str = "",
    torch_source: str = "",
    jobs: int = 0,
    locked: bool = False,
    unverified: bool = False,
    dry_run: bool = False,
    json: bool = False,
    skip_disk_check: bool = False,
) -> None:
    """Build an image, verify it, and give it its tags."""
    from torch_images import build as stage
    from torch_images import jobs as planning
    from torch_images import report
    from torch_images.bake import BuildOptions
    from torch_images.config import COMPAT_MODES
    from torch_images.errors import UsageError, suggest
    from torch_images.matrix import choose
    from torch_images.matrix import select as select_images
    from torch_images.runner import Runner

    config = _config()
    axes = {"cuda": cuda, "arch": arch, "source": source, "base": base, "variant": variant}
    if select and any(axes.values()):
        raise UsageError("--select and single axes exclude each other", "give one or the other")
    if progress not in ("auto", "plain", "tty"):
        raise UsageError(f"unknown progress '{progress}'", "known: auto, plain, tty")
    compat = compat or config.compat.mode
    if compat not in COMPAT_MODES:
        raise UsageError(f"unknown compat mode '{compat}'", suggest(compat, COMPAT_MODES))
    named = {axis: value for axis, value in axes.items() if value}
    specs = select_images(config, select) if select else (choose(config, **named),)
    place = _place()
    planned = stage.plan(config, specs, place.locks)
    if torch_source:
        planned = tuple(stage.with_torch(p, torch_source, place, Runner()) for p in planned)
    options = BuildOptions(
        builder=builder,
        no_cache=no_cache,
        progress=progress,
        mirrors=_mirrors(mirror),
        skip_disk_check=skip_disk_check,
        locked=locked,
        compat=compat,
        jobs=_jobs(jobs),
    )
    if dry_run:
        print(report.plan(config, planned, options, place, planning.measure()))
        return
    from torch_images import publish, sbom

    engine = _engine(bootstraps=any(spec.base.suite for spec in specs))
    results = stage.build(config, planned, place, options, engine=engine, run=Runner())
    outcomes: list[dict[str, Any]] = []
    for result in results:
        if unverified:
            outcomes.append(report.outcome(result, None, (result.planned.candidate,)))
            continue
        proof = _verify(result.digest, config, result.planned, place, engine, reuse=not no_cache)
        tags = publish.tag(config, result.planned, proof, engine)
        sbom.save(result.digest, result.planned.spec.id, place, engine)
        outcomes.append(report.outcome(result, proof, tags))
    print(_json(outcomes) if json else "\n".join(report.built(outcome) for outcome in outcomes))


@verb(
    help={
        **{axis: text for axis, text in _AXES_HELP.items() if axis != "variant"},
        **_COMPILING_HELP,
        "output": "folder for the wheels, else dist/IMAGE",
        "builder": "buildx builder to use (see `docker buildx ls`)",
        "progress": "how BuildKit shows progress: auto, plain or tty",
        "mirror": _MIRROR_HELP,
        "no-cache": "compile from nothing",
        "locked": "stop where a locked input has vanished, instead of resolving it afresh",
        "skip-disk-check": "build even if the disk looks too small",
    },
    iterable=["mirror"],
)
def wheels(
    c: Context,
    cuda: str = "",
    arch: str = "",
    source: str = "",
    base: str = "",
    torch_source: str = "",
    jobs: int = 0,
    output: str = "",
    builder: str = "",
    progress: str = "auto",
    mirror: tuple[str, ...] = (),
    no_cache: bool = False,
    locked: bool = False,
    skip_disk_check: bool = False,
) -> None:
    """Compile torch and Triton, and export their wheels without an image."""
    from torch_images import build as stage
    from torch_images import report
    from torch_images.bake import BuildOptions
    from torch_images.matrix import choose
    from torch_images.runner import Runner

    config, place, run = _config(), _place(), Runner()
    named = {"cuda": cuda, "arch": arch, "source": source or "fork", "base": base}
    spec = choose(config, **{axis: value for axis, value in named.items() if value})
    [planned] = stage.plan(config, [spec], place.locks)
    if torch_source:
        planned = stage.with_torch(planned, torch_source, place, run)
    options = BuildOptions(
        builder=builder,
        no_cache=no_cache,
        progress=progress,
        mirrors=_mirrors(mirror),
        skip_disk_check=skip_disk_check,
        locked=locked,
        compat="off",
        jobs=_jobs(jobs),
    )
    engine = _engine(bootstraps=bool(spec.base.suite))
    folder = Path(output) if output else ROOT / "dist" / spec.id
    files = stage.export(config, planned, place, options, folder, engine=engine, run=run)
    print(report.exported(folder, files))


@verb(
    positional=["image"],
    help={"image": "tag, image id or identifier", "json": "print the whole report as JSON"},
)
def verify(c: Context, image: str, json: bool = False) -> None:
    """Check a built image against images.yaml and its lock."""
    from dataclasses import asdict

    from torch_images import publish, report
    from torch_images.verify import require

    config, place, engine = _config(), _place(), _engine()
    reference, planned = publish.identify(config, image, place, engine)
    proof = _verify(reference, config, planned, place, engine, reuse=False)
    if json:
        print(_json({**asdict(proof), "passed": proof.passed}))
    require(proof)
    if not json:
        print(report.verified(proof))


@verb(
    positional=["image"],
    help={
        "image": "tag, image id or registry reference",
        "repository": "git repository that has the image's revision, if this one does not",
        "json": "print the verdict as JSON",
    },
)
def reproduce(c: Context, image: str, repository: str = "", json: bool = False) -> None:
    """Build an image again from nothing, elsewhere, and compare the two."""
    from dataclasses import asdict

    from torch_images import report
    from torch_images.errors import VerifyError
    from torch_images.reproduce import reproduce as again
    from torch_images.runner import Runner

    config, engine = _config(), _engine(bootstraps=True)
    verdict = again(config, image, _place(), engine=engine, run=Runner(), repository=repository)
    print(_json(asdict(verdict)) if json else report.verdict(verdict))
    if not verdict.reproducible:
        count = len(verdict.differences)
        raise VerifyError(f"{image} is not reproducible: {count} differences")


@verb(positional=["image"], help={"image": "tag, image id or identifier"})
def sbom(c: Context, image: str) -> None:
    """Print the bill of materials of an image: CycloneDX, JSON."""
    from torch_images import publish
    from torch_images.sbom import read

    config, place, engine = _config(), _place(), _engine()
    reference, _ = publish.identify(config, image, place, engine)
    print(read(reference, engine), end="")


@verb(
    help={
        "all": "also what is too slow for every change",
        "fast": "only lint, types and unit tests: no Docker",
    }
)
def test(c: Context, all: bool = False, fast: bool = False) -> None:
    """Lint, check types, and run the tests; all but --fast build and verify real images."""
    tools = Path(sys.executable).parent
    with c.cd(str(ROOT)):
        c.run(f"{tools}/ruff check .", echo=True)
        c.run(f"{tools}/ruff format --check .", echo=True)
        c.run(f"{tools}/mypy", echo=True)
        c.run(f"{tools}/shellcheck inv .ci/run {_shell_scripts()}", echo=True)
        c.run(f"{tools}/pytest tests/unit", echo=True)
        if fast:
            return
        _engine(bootstraps=True)
        slow = "" if all else " -m 'not slow'"
        c.run(f"{tools}/pytest tests/integration{slow}", echo=True)


@verb(
    help={
        "images": "also the images that were built and tagged",
        "cache": "also the builder's whole build cache, whoever filled it",
    }
)
def clean(c: Context, images: bool = False, cache: bool = False) -> None:
    """Remove build contexts and images that were never verified."""
    from torch_images import publish
    from torch_images.runner import Runner

    place = _place()
    removed = publish.clean(_config(), place, _engine(), Runner(), images=images, cache=cache)
    for line in removed:
        print(line)


def _shell_scripts() -> str:
    """The scripts below scripts/ that a shell runs."""
    found = (path for path in (ROOT / "scripts").rglob("*") if path.is_file())
    files = sorted(path for path in found if path.suffix != ".pyc")
    return " ".join(str(p.relative_to(ROOT)) for p in files if "sh" in p.read_text().split("\n")[0])


def _config() -> Config:
    from torch_images.load import load_config

    return load_config(ROOT / "images.yaml")


def _place() -> Workplace:
    from torch_images.network import detect
    from torch_images.workplace import Workplace, default_cache, default_locks

    return Workplace(
        root=ROOT, cache=default_cache(), network=detect(os.environ), locks=default_locks(ROOT)
    )


def _mirrors(named: tuple[str, ...]) -> tuple[str, ...]:
    """The mirrors to use: those of the command line, else TORCH_IMAGES_MIRROR."""
    return tuple(named) or tuple(os.environ.get("TORCH_IMAGES_MIRROR", "").split())


def _jobs(wanted: int) -> int:
    from torch_images.errors import UsageError

    if wanted < 0:
        raise UsageError(
            f"--jobs {wanted} makes no sense", "give a number from 1 on, or leave it out"
        )
    return wanted


def _engine(*, bootstraps: bool = False) -> Engine:
    """The engine; set up where none answers and ./inv allows it."""
    from torch_images.runner import Runner
    from torch_images.setup import ready_engine

    allowed = os.environ.get("TORCH_IMAGES_SETUP", "")
    return ready_engine(ROOT, Runner(), allowed=allowed, bootstraps=bootstraps)


def _verify(
    image: str,
    config: Config,
    planned: Planned,
    place: Workplace,
    engine: Engine,
    *,
    reuse: bool,
) -> VerifyReport:
    from torch_images.runner import Runner
    from torch_images.verify import verify

    print(f"verifying {planned.spec.id}", file=sys.stderr)
    return verify(image, config, planned, place, engine=engine, run=Runner(), reuse=reuse)


def _json(document: Any) -> str:
    return json.dumps(document, indent=2)


def _red(text: str) -> str:
    """Red on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        return f"\x1b[31m{text}\x1b[0m"
    return text


namespace = Collection(matrix, render, lock, build, wheels, verify, reproduce, sbom, test, clean)
