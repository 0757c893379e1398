"""Verbs that turn locks into images and wheels: build, wheels."""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch_images.build.build import alone, check_compiles, check_parts, export, with_torch
from torch_images.build.job import BuildOptions
from torch_images.build.plan import lock_image, lock_images
from torch_images.build.prepare import must_bootstrap
from torch_images.cli import report, verb
from torch_images.cli.options import (
    Building,
    DryRun,
    Json,
    flag,
    fraction,
    option,
    seconds,
    several,
)
from torch_images.config.choose import choose_images
from torch_images.config.image import ImageSpec
from torch_images.config.types import Config
from torch_images.errors import TorchImagesError, UsageError, shown, suggest
from torch_images.host.runner import Runner
from torch_images.jobs import measure
from torch_images.oci.compression import Compression, parse
from torch_images.pipeline.make import make


class Build(Building, DryRun, Json):
    torch: str = option("release of torch (default: the newest for the CUDA version)")
    variant: str = option("what the image contains besides torch")
    platform: str = option(
        "linux/amd64, linux/arm64 or all (default: this machine's); others are emulated"
    )
    select: str = option("build every image whose identifier matches this glob, in parallel")
    cache_from: tuple[str, ...] = several(
        "build cache to read, in buildx's syntax, with {id} for the image"
    )
    cache_to: tuple[str, ...] = several(
        "build cache to write, such as type=registry,ref=HOST/cache:{id},mode=max"
    )
    compat: bool = flag("add NVIDIA's compat library, for hosts with an older driver")
    compression: Compression = option(
        "of wheel layers: fast, or small for images that are pulled often",
        default=Compression.FAST,
        type=parse,
    )
    unverified: bool = flag("skip verification; the image gets only its candidate tag")
    stale: bool = flag("build and record the images that are not tested, see docs/ledger.csv")


@verb.verb(Build, example="build --cuda 13.0 --arch 12.0")
def build(options: Build) -> verb.Result | None:
    """Build an image, verify it, and give it its tags."""
    config, workspace = verb.config(), verb.workspace()
    specs = choose_images(config, options.select or "*" * options.stale, options.axes)
    how = _how(options)
    if options.stale:
        printed = options.json and not options.dry_run
        if config.own or options.torch_source or how.small or options.unverified or printed:
            raise UsageError(
                "--stale verifies images of images.yaml as they are, and prints a line for each",
                "leave out --torch-source, --compression small, --unverified and --json; "
                "run it outside of your project",
            )
        return _build_stale(config, specs, how, dry_run=options.dry_run)
    images = lock_images(config, specs, workspace.locks)
    if tree := options.torch_source:
        obtain = not options.dry_run
        images = tuple(with_torch(i, tree, workspace, Runner(), obtain=obtain) for i in images)
    if options.dry_run:
        planned = report.planned(config, images, how, workspace)
        return verb.Result(data=planned, text=report.plan(planned))
    bootstraps = must_bootstrap(images, workspace, how)
    engine = verb.engine(bootstraps=bootstraps, platforms=[spec.platform for spec in specs])
    made = make(verb.job(config, engine, how), images, unverified=options.unverified)
    outcomes = [report.outcome(one) for one in made]
    return verb.Result(data={"images": outcomes}, text="\n".join(map(report.built, outcomes)))


def _build_stale(
    config: Config, specs: Sequence[ImageSpec], how: BuildOptions, *, dry_run: bool
) -> verb.Result | None:
    """Build the images that are not tested, and print each outcome.

    Raises the first error at the end; a full disk ends the run.
    """
    from torch_images.pipeline.room import loaded_first
    from torch_images.pipeline.stale import StaleRun, to_build
    from torch_images.verify import ledger

    verb.require_clone("build --stale")
    workspace, today = verb.workspace(), dt.datetime.now(dt.UTC).date().isoformat()
    lines = ledger.read(workspace.root)
    state = ledger.reader(config, lines, workspace.root, workspace.locks)
    left = to_build({spec: state(spec) for spec in specs}, lines, today)
    if not left:
        text = "nothing to build: each image is tested, or could not be built today"
        return verb.Result(data={"images": []}, text=text)
    if dry_run:
        text = "\n".join(f"would build {spec.id}" for spec in left)
        return verb.Result(data={"images": [{"id": spec.id} for spec in left]}, text=text)
    failed: TorchImagesError | None = None
    engine = verb.engine(bootstraps=True, platforms=[spec.platform for spec in left])
    job = verb.job(config, engine, how)
    run = StaleRun(
        job=job,
        before=frozenset(engine.tags()),
        machine=measure(),
        today=today,
    )
    for done in run.outcomes(loaded_first(job, left)):
        if done.line and not done.line.missing:
            print(f"{done.spec.id}: tested, {done.line.checks} checks passed", flush=True)
        elif done.error:
            verb.complain(done.spec.id, done.error)
            failed = failed or done.error
    if failed:
        raise failed
    return None


class Wheels(Building):
    slice: int = option(
        "stop cleanly after compiling for this long, such as 90m; the next call continues",
        default=0,
        type=seconds,
    )
    share: str = option(
        "compile only one builder's part, such as 1/2, into a compile cache that builders share",
        type=fraction,
    )
    extension: str = option("compile this extension of torch instead, such as flash-attn")
    output: str = option("folder for the wheels (default: dist/IMAGE)")


@verb.verb(Wheels, example="wheels --cuda 13.0 --arch 9.0,12.0")
def wheels(options: Wheels) -> verb.Result:
    """Compile torch and Triton, or an extension, into wheels."""
    config, workspace = verb.config(), verb.workspace()
    axes = {**options.axes, "source": options.source or "fork"}
    if options.extension:
        axes |= {"source": options.source, "variant": _with_extension(config, options.extension)}
    [spec] = choose_images(config, "", axes)
    image = lock_image(config, spec, workspace.locks)
    if options.extension:
        image = alone(image, options.extension)
    check_compiles(image)
    call = secrets.token_hex(8) if options.slice else ""
    how = _how(options, call=call)
    check_parts(how, workspace)
    if options.torch_source:
        image = with_torch(image, options.torch_source, workspace, Runner())
    engine = verb.engine(bootstraps=True)
    folder = Path(options.output) if options.output else workspace.output.parent / "dist" / spec.id
    files = export(verb.job(config, engine, how), image, folder)
    lines = [f"{file.name}  {file.stat().st_size / 1e6:.1f} MB" for file in files]
    return verb.Result(text="\n".join([*lines, f"in {folder}"]))


def _with_extension(config: Config, name: str) -> str:
    """The variant whose locks have an extension. Raises UsageError for another name."""
    known = {extra.package: v.name for v in config.variants for extra in v.sources}
    if name not in known:
        raise UsageError(f"no variant has an extension '{shown(name)}'", suggest(name, known))
    return known[name]


def _how(options: Building, **more: Any) -> BuildOptions:
    """Build options from a verb's options of the same names; `more` are further ones."""
    names = [field.name for field in fields(BuildOptions) if hasattr(options, field.name)]
    given = {name: getattr(options, name) for name in names}
    return BuildOptions(**{**given, "mirrors": verb.mirrors(), **more})
