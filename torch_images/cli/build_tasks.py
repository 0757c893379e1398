"""The verbs from locks to built images: build, wheels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.context import Context

from torch_images.cli import verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_images.build.bake import BuildOptions
    from torch_images.config.image import ImageSpec
    from torch_images.config.types import Config
    from torch_images.errors import TorchImagesError

_AXES_HELP = {
    "cuda": "CUDA version",
    "torch": "release of torch, else the newest that the image is built with",
    "arch": "code for this compute capability alone, several as 9.0,12.0; else for all",
    "source": "where torch comes from",
    "base": "what the image starts from",
    "variant": "what the image holds beside torch",
    "platform": "linux/amd64, linux/arm64 or all, else this machine's; a foreign one is emulated",
}
_COMPILING_HELP = {
    "torch-source": "compile torch from PATH, PATH@COMMIT or URL@COMMIT instead",
    "jobs": "compilers to run at once, else what the builder has memory for",
}
MIRROR_HELP = "mirror of the base's packages: URL or sources.list line; repeatable"


@verb.verb(
    iterable=["mirror", "cache_from", "cache_to"],
    help={
        **_AXES_HELP,
        "cache-from": "cache to use, in buildx's words, with {id} for the image; repeatable",
        "cache-to": "cache to fill, such as type=registry,ref=HOST/cache:{id},mode=max; repeatable",
        "select": "build every image whose identifier matches this glob, side by side",
        "builder": "buildx builder to use (see `docker buildx ls`)",
        "no-cache": "build from nothing, the base included",
        "progress": "how BuildKit shows progress: auto, plain or tty",
        "mirror": MIRROR_HELP,
        "compat": "NVIDIA's newer driver libraries: auto (if they can be had), required or off",
        "compression": "of the layers of wheels: fast, or small for images that are pulled often",
        **_COMPILING_HELP,
        "locked": "stop where a locked package has vanished, instead of resolving it afresh",
        "unverified": "stop before verification: the image keeps its candidate tag only",
        "stale": "build each image of --select that docs/ledger.csv does not prove, and write it",
        "dry-run": "say what would be built and run, change nothing",
        "json": "print the result as JSON",
        "skip-disk-check": "build even if the disk looks too small",
    },
    example="build --cuda 13.0 --arch 12.0",
)
def build(
    c: Context,
    cuda: str = "",
    torch: str = "",
    arch: str = "",
    source: str = "",
    base: str = "",
    variant: str = "",
    platform: str = "",
    select: str = "",
    builder: str = "",
    no_cache: bool = False,
    progress: str = "auto",
    mirror: list[str] | None = None,
    cache_from: list[str] | None = None,
    cache_to: list[str] | None = None,
    compat: str = "",
    compression: str = "fast",
    torch_source: str = "",
    jobs: str = "",
    locked: bool = False,
    unverified: bool = False,
    stale: bool = False,
    dry_run: bool = False,
    json: bool = False,
    skip_disk_check: bool = False,
) -> None:
    """Build an image, verify it, and give it its tags."""
    from torch_images.build.build import check_compression, with_torch
    from torch_images.build.plan import lock_images
    from torch_images.cli import report
    from torch_images.config.selection import chosen
    from torch_images.errors import UsageError
    from torch_images.host.runner import Runner
    from torch_images.jobs import measure
    from torch_images.publish.pipeline import make

    config, workspace, run = verb.config(), verb.workspace(), Runner()
    axes = {"cuda": cuda, "torch": torch, "arch": arch, "source": source}
    axes |= {"base": base, "variant": variant, "platform": platform}
    specs = chosen(config, select or "*" * stale, axes)
    options = verb.build_options(
        builder=builder,
        no_cache=no_cache,
        progress=progress,
        mirror=mirror,
        skip_disk_check=skip_disk_check,
        locked=locked,
        compat=compat or config.compat.mode,
        jobs=jobs,
        cache_from=cache_from,
        cache_to=cache_to,
        compression=compression,
    )
    check_compression(specs, options.compression)
    if stale:
        if torch_source or unverified:
            raise UsageError(
                "--stale builds what images.yaml has, and verifies it", "leave the rest"
            )
        _build_stale(config, specs, options, dry_run=dry_run)
        return
    images = lock_images(config, specs, workspace.locks)
    if torch_source:
        obtain = not dry_run
        images = tuple(with_torch(i, torch_source, workspace, run, obtain=obtain) for i in images)
    if dry_run:
        print(report.plan(config, images, options, workspace, measure()))
        return
    platforms = [spec.platform for spec in specs]
    bootstraps = any(spec.base.suite for spec in specs)
    engine = verb.engine(bootstraps=bootstraps, platforms=platforms)
    made = make(
        config,
        images,
        workspace,
        options,
        engine=engine,
        run=run,
        progress=verb.layer_progress,
        unverified=unverified,
        say=verb.say,
        checking=verb.check_progress,
    )
    outcomes = [report.outcome(one) for one in made]
    print(verb.as_json(outcomes) if json else "\n".join(map(report.built, outcomes)))


def _build_stale(
    config: Config, specs: Sequence[ImageSpec], options: BuildOptions, *, dry_run: bool
) -> None:
    """Build what the ledger does not prove, one after the other, and say what became of each.

    Raises the first error of an image that was not built, or failed its checks.
    """
    import datetime as dt

    from torch_images.host.runner import Runner
    from torch_images.jobs import measure
    from torch_images.publish.stale import build_stale, to_build

    verb.require_clone("build --stale")
    workspace, today = verb.workspace(), dt.datetime.now(dt.UTC).date()
    left = to_build(config, specs, workspace, today)
    if not left:
        print("nothing to build: each image has a proof, or could not be had today")
        return
    if dry_run:
        print("\n".join(f"would build {spec.id}" for spec in left))
        return
    failed: TorchImagesError | None = None
    bootstraps = any(spec.base.suite for spec in left)
    engine = verb.engine(bootstraps=bootstraps, platforms=[spec.platform for spec in left])
    for done in build_stale(
        config,
        left,
        workspace,
        options,
        engine=engine,
        run=Runner(),
        machine=measure(),
        today=today,
        progress=verb.layer_progress,
        say=verb.say,
        checking=verb.check_progress,
    ):
        if done.line and not done.line.missing:
            print(f"{done.spec.id}: proved, {done.line.checks} checks passed", flush=True)
        elif done.error:
            print(verb.red(f"{done.spec.id}: {done.error}"), file=sys.stderr, flush=True)
            failed = failed or done.error
        else:
            print(
                f"{done.spec.id}: built of other inputs than the locks have; no proof", flush=True
            )
    if failed:
        raise failed


@verb.verb(
    help={
        **{
            axis: text
            for axis, text in _AXES_HELP.items()
            if axis not in ("torch", "variant", "platform")
        },
        **_COMPILING_HELP,
        "slice": "stop cleanly after compiling so long, such as 90m; the next call goes on",
        "share": "compile one builder's part only, such as 1/2, into a cache that builders share",
        "output": "folder for the wheels, else dist/IMAGE",
        "builder": "buildx builder to use (see `docker buildx ls`)",
        "progress": "how BuildKit shows progress: auto, plain or tty",
        "mirror": MIRROR_HELP,
        "no-cache": "compile from nothing",
        "locked": "stop where a locked input has vanished, instead of resolving it afresh",
        "skip-disk-check": "build even if the disk looks too small",
    },
    iterable=["mirror"],
    example="wheels --cuda 13.0 --arch 9.0,12.0",
)
def wheels(
    c: Context,
    cuda: str = "",
    arch: str = "",
    source: str = "",
    base: str = "",
    torch_source: str = "",
    jobs: str = "",
    slice: str = "",
    share: str = "",
    output: str = "",
    builder: str = "",
    progress: str = "auto",
    mirror: list[str] | None = None,
    no_cache: bool = False,
    locked: bool = False,
    skip_disk_check: bool = False,
) -> None:
    """Compile torch and Triton, and export their wheels without an image."""
    from torch_images.build.build import check_compiles, check_parts, export, with_torch
    from torch_images.build.plan import lock_image
    from torch_images.cli import report
    from torch_images.config.selection import chosen
    from torch_images.host.runner import Runner

    config, workspace, run = verb.config(), verb.workspace(), Runner()
    axes = {"cuda": cuda, "arch": arch, "source": source or "fork", "base": base}
    [spec] = chosen(config, "", axes)
    image = lock_image(config, spec, workspace.locks)
    check_compiles(image)
    options = verb.build_options(
        builder=builder,
        no_cache=no_cache,
        progress=progress,
        mirror=mirror,
        skip_disk_check=skip_disk_check,
        locked=locked,
        compat="off",
        jobs=jobs,
        slice=slice,
        share=share,
    )
    check_parts(options, workspace)
    if torch_source:
        image = with_torch(image, torch_source, workspace, run)
    engine = verb.engine(bootstraps=bool(spec.base.suite))
    folder = Path(output) if output else workspace.output.parent / "dist" / spec.id
    files = export(
        config,
        image,
        workspace,
        options,
        folder,
        engine=engine,
        run=run,
        progress=verb.layer_progress,
    )
    print(report.exported(folder, files))
