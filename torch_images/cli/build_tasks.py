"""Verbs that turn locks into images and wheels: build, wheels."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_images.cli import verb
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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_images.build.bake import BuildOptions
    from torch_images.config.image import ImageSpec
    from torch_images.config.types import Config
    from torch_images.errors import TorchImagesError
    from torch_images.pipeline.make import Shown


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
    compression: str = option(
        "of wheel layers: fast, or small for images that are pulled often", default="fast"
    )
    unverified: bool = flag("skip verification; the image gets only its candidate tag")
    stale: bool = flag("build and record the images that are not tested, see docs/ledger.csv")


@verb.verb(Build, example="build --cuda 13.0 --arch 12.0")
def build(options: Build) -> verb.Result | None:
    """Build an image, verify it, and give it its tags."""
    from torch_images.build.build import with_torch
    from torch_images.build.plan import lock_images
    from torch_images.cli import report
    from torch_images.config.selection import chosen
    from torch_images.errors import UsageError
    from torch_images.host.runner import Runner
    from torch_images.jobs import measure
    from torch_images.oci.compression import parse
    from torch_images.pipeline.make import make

    config, workspace, run = verb.config(), verb.workspace(), Runner()
    specs = chosen(config, options.select or "*" * options.stale, options.axes)
    compression = parse(options.compression)
    how = _how(
        options,
        cache_from=options.cache_from,
        cache_to=options.cache_to,
        compression=compression,
    )
    if options.stale:
        if options.torch_source or options.unverified:
            raise UsageError(
                "--stale verifies images of images.yaml as they are",
                "leave out --torch-source and --unverified",
            )
        if options.json:
            raise UsageError("--stale prints a line for each image", "leave --json out")
        return _build_stale(config, specs, how, dry_run=options.dry_run)
    images = lock_images(config, specs, workspace.locks)
    if tree := options.torch_source:
        obtain = not options.dry_run
        images = tuple(with_torch(i, tree, workspace, run, obtain=obtain) for i in images)
    if options.dry_run:
        planned = report.planned(config, images, how, workspace, measure())
        return verb.Result(data=planned, text=report.plan(planned))
    platforms = [spec.platform for spec in specs]
    engine = verb.engine(bootstraps=True, platforms=platforms)
    made = make(
        config,
        images,
        workspace,
        how,
        engine=engine,
        run=run,
        shown=_shown(),
        unverified=options.unverified,
    )
    outcomes = [report.outcome(one) for one in made]
    return verb.Result(data=outcomes, text="\n".join(map(report.built, outcomes)))


def _build_stale(
    config: Config, specs: Sequence[ImageSpec], how: BuildOptions, *, dry_run: bool
) -> verb.Result | None:
    """Build the images that are not tested, and print each outcome.

    Raises the first error at the end; a full disk ends the run.
    """
    import datetime as dt

    from torch_images.host.runner import Runner
    from torch_images.jobs import measure
    from torch_images.pipeline.make import Shown
    from torch_images.pipeline.stale import StaleRun, to_build
    from torch_images.verify import ledger

    verb.require_clone("build --stale")
    workspace, today = verb.workspace(), dt.datetime.now(dt.UTC).date().isoformat()
    lines = ledger.read(workspace.root)
    states = ledger.states(config, specs, lines, workspace.root, workspace.locks)
    left = to_build(states, lines, today)
    if not left:
        text = "nothing to build: each image is tested, or could not be built today"
        return verb.Result(text=text)
    if dry_run:
        return verb.Result(text="\n".join(f"would build {spec.id}" for spec in left))
    failed: TorchImagesError | None = None
    engine = verb.engine(bootstraps=True, platforms=[spec.platform for spec in left])
    run = StaleRun(
        config=config,
        workspace=workspace,
        options=how,
        engine=engine,
        run=Runner(),
        before=frozenset(engine.tags()),
        machine=measure(),
        today=today,
        # Without a bar for checks: BuildKit shows the next build meanwhile.
        shown=Shown(layers=verb.layer_progress, say=verb.say),
    )
    for done in run.outcomes(left):
        if done.line and not done.line.missing:
            print(f"{done.spec.id}: tested, {done.line.checks} checks passed", flush=True)
        elif done.error:
            verb.complain(done.spec.id, done.error)
            failed = failed or done.error
        else:
            print(
                f"{done.spec.id}: built with inputs that the locks lack; not added to the ledger",
                flush=True,
            )
    if failed:
        raise failed
    return None


class Wheels(Building):
    slice: int = option(
        "stop cleanly after compiling for this long, such as 90m; the next call continues",
        default=0,
        parse=seconds,
    )
    share: str = option(
        "compile only one builder's part, such as 1/2, into a compile cache that builders share",
        parse=fraction,
    )
    output: str = option("folder for the wheels (default: dist/IMAGE)")


@verb.verb(Wheels, example="wheels --cuda 13.0 --arch 9.0,12.0")
def wheels(options: Wheels) -> verb.Result:
    """Compile torch and Triton, and export their wheels without an image."""
    from torch_images.build.build import check_compiles, check_parts, export, with_torch
    from torch_images.build.plan import lock_image
    from torch_images.cli import report
    from torch_images.config.selection import chosen
    from torch_images.host.runner import Runner

    config, workspace, run = verb.config(), verb.workspace(), Runner()
    [spec] = chosen(config, "", {**options.axes, "source": options.source or "fork"})
    image = lock_image(config, spec, workspace.locks)
    check_compiles(image)
    call = secrets.token_hex(8) if options.slice else ""
    how = _how(options, slice=options.slice, call=call, share=options.share)
    check_parts(how, workspace)
    if options.torch_source:
        image = with_torch(image, options.torch_source, workspace, run)
    engine = verb.engine(bootstraps=True)
    folder = Path(options.output) if options.output else workspace.output.parent / "dist" / spec.id
    files = export(
        config, image, workspace, how, folder, engine=engine, run=run, progress=verb.layer_progress
    )
    return verb.Result(text=report.exported(folder, files))


def _shown() -> Shown:
    """How a build shows progress: bars on a terminal, lines elsewhere."""
    from torch_images.pipeline.make import Shown

    return Shown(layers=verb.layer_progress, say=verb.say, checks=verb.check_progress)


def _how(options: Building, **more: Any) -> BuildOptions:
    """Build options from those that building verbs share; `more` adds a verb's own."""
    from torch_images.build.bake import BuildOptions

    return BuildOptions(
        builder=options.builder,
        no_cache=options.no_cache,
        progress=options.progress,
        mirrors=verb.mirrors(),
        skip_disk_check=options.skip_disk_check,
        locked=options.locked,
        jobs=options.jobs,
        **more,
    )
