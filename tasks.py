"""The verbs, in the order of the flow: matrix, render, lock, build, verify; then test and clean.

Each one parses, calls, prints; the work is in torch_images/. Imports stay inside the verbs, so that
`invoke --list` needs neither Docker nor YAML.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

if TYPE_CHECKING:
    from torch_images.build import BuildOptions, BuildResult, Planned
    from torch_images.config import Config
    from torch_images.engine import Engine
    from torch_images.verify import VerifyReport
    from torch_images.workplace import Workplace

ROOT = Path(__file__).resolve().parent

_AXES_HELP = {
    "cuda": "CUDA version, such as 13.0",
    "arch": "compute capability such as 12.0, several as 9.0,12.0, or all",
    "source": "where torch comes from: wheel or fork",
    "base": "what the image starts from: bookworm or ubuntu24.04",
    "variant": "what the image holds beside torch, such as runtime",
}


def verb(**options: Any) -> Callable[[Callable[..., None]], Any]:
    """An Invoke task whose errors are one line and an exit code, without a traceback."""

    def decorate(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            from torch_images.errors import TorchImagesError

            try:
                function(*args, **kwargs)
            except TorchImagesError as error:
                raise Exit(_red(f"error: {error}"), code=error.exit_code) from None
            except BrokenPipeError:  # `invoke matrix | head`: the reader has what it wanted
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise Exit(code=0) from None
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
    [planned] = build.plan([matrix.find(config, image)], ROOT)
    context = render.render(config, planned.spec, planned.lock, ROOT)
    if output:
        render.write_context(context, Path(output))
        print(f"wrote {len(context.files)} files to {output}")
    else:
        print(context.dockerfile)


@verb()
def lock(c: Context) -> None:
    """Resolve the wheels of every CUDA version, and the tools, into locks/."""
    import datetime as dt

    from torch_images import lock, matrix
    from torch_images.runner import Runner

    config, place, today = _config(), _place(), dt.datetime.now(dt.UTC).date()
    wanted = {
        lock.lock_path(ROOT, spec.source.name, spec.cuda.short, spec.base.python): (
            (f"torch=={spec.torch}", *config.packages),
            spec.base.python,
        )
        for spec in matrix.matrix(config)
    }
    wanted[ROOT / "locks" / "tools-build.txt"] = (("uv",), "3.11")
    wanted[ROOT / "locks" / "tools-verify.txt"] = (("pytest",), "3.11")
    for path, (requirements, python) in wanted.items():
        found = lock.resolve(requirements, python, today, place.network, Runner())
        changed = lock.write_lock(path, found)
        size = f"{found.size / 1e9:.2f} GB"
        state = "changed" if changed else "unchanged"
        print(f"locks/{path.name}: {len(found.wheels)} wheels, {size}, {state}")


@verb(
    iterable=["mirror"],
    help={
        **_AXES_HELP,
        "select": "build every image whose identifier matches this glob, side by side",
        "builder": "buildx builder to use (see `docker buildx ls`)",
        "no-cache": "build from nothing, the base included",
        "progress": "how BuildKit shows progress: auto, plain or tty",
        "mirror": "Debian mirror for a bootstrapped base: URL or sources.list line; repeatable",
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
    dry_run: bool = False,
    json: bool = False,
    skip_disk_check: bool = False,
) -> None:
    """Build an image, verify it, and give it its tags."""
    from torch_images import build as stage
    from torch_images.errors import UsageError
    from torch_images.matrix import choose
    from torch_images.matrix import select as select_images

    config = _config()
    axes = {"cuda": cuda, "arch": arch, "source": source, "base": base, "variant": variant}
    if select and any(axes.values()):
        raise UsageError("--select and single axes exclude each other", "give one or the other")
    if progress not in ("auto", "plain", "tty"):
        raise UsageError(f"unknown progress '{progress}'", "known: auto, plain, tty")
    named = {axis: value for axis, value in axes.items() if value}
    specs = select_images(config, select) if select else (choose(config, **named),)
    planned, place = stage.plan(specs, ROOT), _place()
    options = stage.BuildOptions(
        builder=builder,
        no_cache=no_cache,
        progress=progress,
        mirrors=tuple(mirror) or tuple(os.environ.get("TORCH_IMAGES_MIRROR", "").split()),
        skip_disk_check=skip_disk_check,
    )
    if dry_run:
        _print_plan(config, planned, options, place)
        return
    from torch_images import publish
    from torch_images.runner import Runner

    engine = _engine(bootstraps=any(spec.base.suite for spec in specs))
    results = stage.build(config, planned, place, options, engine=engine, run=Runner())
    outcomes: list[dict[str, Any]] = []
    for result in results:
        report = _verify(result.digest, config, result.planned, place, engine, reuse=not no_cache)
        tags = publish.tag(config, result.planned, report, engine)
        outcomes.append(_outcome(result, report, tags))
    if json:
        print(_json(outcomes))
        return
    for outcome in outcomes:
        _print_outcome(outcome)


@verb(
    positional=["image"],
    help={"image": "tag, image id or identifier", "json": "print the whole report as JSON"},
)
def verify(c: Context, image: str, json: bool = False) -> None:
    """Check a built image against images.yaml and its lock."""
    from dataclasses import asdict

    from torch_images import build, publish
    from torch_images.verify import require

    config = _config()
    engine = _engine()
    reference, spec = publish.identify(config, image, engine)
    [planned] = build.plan([spec], ROOT)
    report = _verify(reference, config, planned, _place(), engine, reuse=False)
    if json:
        print(_json({**asdict(report), "passed": report.passed}))
    require(report)
    if not json:
        _print_report(report)


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
    files = sorted(path for path in (ROOT / "scripts").rglob("*") if path.is_file())
    return " ".join(str(p.relative_to(ROOT)) for p in files if "sh" in p.read_text().split("\n")[0])


def _config() -> Config:
    from torch_images.config import load_config

    return load_config(ROOT / "images.yaml")


def _place() -> Workplace:
    from torch_images.network import detect
    from torch_images.workplace import Workplace, default_cache

    return Workplace(root=ROOT, cache=default_cache(), network=detect(os.environ))


def _engine(*, bootstraps: bool = False) -> Engine:
    """The engine; ./inv allows setting one up where none answers, plain `invoke` does not.

    With `bootstraps`, the tool that makes bookworm bases counts as part of it.
    """
    from torch_images.engine import connect
    from torch_images.errors import EngineError

    allowed = os.environ.get("TORCH_IMAGES_SETUP")
    try:
        engine = connect()
        if not (allowed and bootstraps and shutil.which("mmdebstrap") is None):
            return engine
    except EngineError:
        if allowed is None:
            raise
    import subprocess

    yes = ["--yes"] if allowed == "yes" else []
    if subprocess.run([ROOT / "scripts" / "setup-engine", *yes], check=False).returncode:
        raise EngineError("no Docker Engine was set up", "the lines above say why") from None
    return connect()


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


def _outcome(result: BuildResult, report: VerifyReport, tags: tuple[str, ...]) -> dict[str, Any]:
    return {
        "id": result.planned.spec.id,
        "digest": result.digest,
        "size": result.size,
        "seconds": {"build": round(result.seconds, 1), "verify": report.seconds},
        "tags": list(tags),
        "observed": dict(report.observed),
        "checks": {o: report.count(o) for o in ("passed", "failed", "skipped")},
    }


def _print_outcome(outcome: dict[str, Any]) -> None:
    print(f"\n{outcome['id']}")
    print(f"  digest    {outcome['digest']}")
    print(f"  size      {outcome['size'] / 1e9:.2f} GB unpacked")
    print("  time      {build} s to build, {verify} s to verify".format(**outcome["seconds"]))
    print(f"  verified  {outcome['checks']['passed']} checks passed")
    for name, value in outcome["observed"].items():
        print(f"            {name}: {value}")
    print("  tags      " + "\n            ".join(outcome["tags"]))
    command = "import torch; print(torch.__version__, torch.version.cuda)"
    print(f'  next      docker run --rm {outcome["tags"][-1]} python -c "{command}"')


def _print_report(report: VerifyReport) -> None:
    print(f"{report.id}: {report.count('passed')} checks passed in {report.seconds} s")
    for name, value in report.observed.items():
        print(f"  {name}: {value}")


def _print_plan(
    config: Config, planned: tuple[Planned, ...], options: BuildOptions, place: Workplace
) -> None:
    import shlex

    from torch_images import build, publish

    for image in planned:
        spec = image.spec
        print(f"would build {spec.id}")
        print(
            f"  torch {spec.torch}, {len(image.lock.wheels)} wheels, lock {image.lock.digest[:12]}"
        )
        print(f"  tags: {', '.join(publish.tags(config, image))}")
    print(f"  disk: about {build.disk_needed(planned) / 1e9:.0f} GB from nothing")
    print(f"  {shlex.join(build.bake_command((place.output / 'docker-bake.json',), options))}")


def _json(document: Any) -> str:
    return json.dumps(document, indent=2)


def _red(text: str) -> str:
    """Red on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        return f"\x1b[31m{text}\x1b[0m"
    return text


namespace = Collection(matrix, render, lock, build, verify, test, clean)
