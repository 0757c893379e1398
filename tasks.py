"""The verbs, in the order of the flow, from matrix to reproduce and sbom; then test and clean.

Each one parses, calls, prints; the work is in torch_images/. Imports stay inside the verbs, so that
`invoke --list` needs neither Docker nor YAML.
"""

from __future__ import annotations

import sys
from pathlib import Path

from invoke.collection import Collection
from invoke.context import Context

from torch_images.program import adopt

adopt()  # before the imports that take a while

from torch_images.cli import bench_tasks, maintenance_tasks, publish_tasks, verb  # noqa: E402

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


@verb.verb(
    help={
        "json": "print JSON, for CI matrices",
        "select": "only images whose identifier matches this glob",
        "excluded": "print what is not built, and why",
        "unpublished": "only images whose inputs the registry has no image of; with their names",
        "registry": "with --unpublished: registry and owner, such as ghcr.io/me",
    }
)
def matrix(
    c: Context,
    json: bool = False,
    select: str = "*",
    excluded: bool = False,
    unpublished: bool = False,
    registry: str = "",
) -> None:
    """Print every image of images.yaml by its identifier."""
    from torch_images.config import matrix as images

    config = verb.config()
    if excluded:
        for rule in config.excludes:
            axes = {axis: getattr(rule, axis) for axis in _AXES_HELP}
            print(", ".join(f"{k} {v}" for k, v in axes.items() if v) + f": {rule.reason}")
        return
    specs = images.select(config, select)
    names = dict.fromkeys(specs, "")
    if unpublished:
        from torch_images.publish import push

        lookup, workspace = verb.registry_lookup(5), verb.workspace()
        where = verb.namespace(config, registry)
        names = dict(push.unpublished(config, specs, where, lookup=lookup, workspace=workspace))
    if json:
        found = [
            {**images.describe(spec), **({"reference": name} if name else {})}
            for spec, name in names.items()
        ]
        print(verb.as_json({"image": found}))
        return
    width = max((len(spec.id) for spec in names), default=0)
    specs = tuple(names)
    for spec in specs:
        arches = " ".join(a.name for a in spec.architectures)
        print(f"{spec.id:<{width}}  torch {spec.torch}  {arches}")


@verb.verb(
    positional=["image"],
    help={"image": "identifier, see `invoke matrix`", "output": "write the context to this folder"},
)
def render(c: Context, image: str, output: str = "") -> None:
    """Print an image's Dockerfile, or write its whole build context."""
    from torch_images.build.plan import plan_images
    from torch_images.build.render import write_context
    from torch_images.config.matrix import ImageSpec

    config = verb.config()
    spec = ImageSpec.parse(image, config)
    [plan] = plan_images(config, [spec], verb.ROOT, verb.workspace().locks)
    context = plan.context
    if output:
        write_context(context, Path(output), keep=True)
        print(f"wrote {len(context.files)} files to {output}")
    else:
        print(context.dockerfile)


@verb.verb(
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
    mirror: list[str] | None = None,
    verbose: bool = False,
    json: bool = False,
) -> None:
    """Resolve every input - wheels, Debian packages, images, tools - into locks/."""
    from dataclasses import asdict

    from torch_images.cli import report
    from torch_images.config.lock_requests import inputs
    from torch_images.errors import TorchImagesError
    from torch_images.fetch import update as relock
    from torch_images.fetch.apt import Resolver
    from torch_images.host.runner import Runner
    from torch_images.host.setup import can_bootstrap
    from torch_images.locks.image_lock import update

    chosen, workspace = inputs(verb.config(), select), verb.workspace()
    images = any(item.image for item in chosen)
    if not can_bootstrap() and any(item.by_apt for item in chosen):
        verb.engine(bootstraps=True)
    resolver = Resolver(
        root=verb.ROOT,
        network=workspace.network,
        run=Runner(),
        engine=verb.engine() if images else None,
        mirrors=verb.mirrors(mirror),
    )
    findings: list[relock.Finding] = []
    problem: TorchImagesError | None = None
    for item in chosen:
        try:
            if check:
                findings += relock.check(item, workspace.locks, resolver, workspace.cache)
            else:
                found = relock.resolve_input(item, workspace.locks, resolver, workspace.cache)
                changed = update(item.path(workspace.locks), found)
                print(report.locked(item.name, found, changed=changed))
        except TorchImagesError as error:  # the other inputs are none the worse for it
            print(verb.red(f"{item.name}: {error}"), file=sys.stderr)
            problem = error
    if check:
        text = report.findings(findings, every=verbose)
        print(verb.as_json([asdict(finding) for finding in findings]) if json else text)
        relock.require(findings)
    if problem:
        raise problem


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
        "mirror": _MIRROR_HELP,
        "compat": "NVIDIA's newer driver libraries: auto (if they can be had), required or off",
        **_COMPILING_HELP,
        "prune": "leave out what only other architectures and debuggers need, see images.yaml",
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
    mirror: list[str] | None = None,
    cache_from: list[str] | None = None,
    cache_to: list[str] | None = None,
    compat: str = "",
    torch_source: str = "",
    jobs: str = "",
    prune: bool = False,
    locked: bool = False,
    unverified: bool = False,
    dry_run: bool = False,
    json: bool = False,
    skip_disk_check: bool = False,
) -> None:
    """Build an image, verify it, and give it its tags."""
    from torch_images import jobs as planning
    from torch_images.build.build import with_torch
    from torch_images.build.plan import lock_images
    from torch_images.cli import report
    from torch_images.config.matrix import chosen
    from torch_images.host.runner import Runner
    from torch_images.publish.pipeline import make

    config, workspace, run = verb.config(), verb.workspace(), Runner()
    axes = {"cuda": cuda, "arch": arch, "source": source, "base": base, "variant": variant}
    specs = chosen(config, select, axes, prune=prune)
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
    )
    images = lock_images(config, specs, workspace.locks)
    if torch_source:
        obtain = not dry_run
        images = tuple(with_torch(i, torch_source, workspace, run, obtain=obtain) for i in images)
    if dry_run:
        print(report.plan(config, images, options, workspace, planning.measure()))
        return
    engine = verb.engine(bootstraps=any(spec.base.suite for spec in specs))
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
    )
    outcomes = [report.outcome(one) for one in made]
    print(verb.as_json(outcomes) if json else "\n".join(map(report.built, outcomes)))


@verb.verb(
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
    jobs: str = "",
    output: str = "",
    builder: str = "",
    progress: str = "auto",
    mirror: list[str] | None = None,
    no_cache: bool = False,
    locked: bool = False,
    skip_disk_check: bool = False,
) -> None:
    """Compile torch and Triton, and export their wheels without an image."""
    from torch_images.build.build import check_compiles, export, with_torch
    from torch_images.build.plan import lock_image
    from torch_images.cli import report
    from torch_images.config.matrix import chosen
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
    )
    if torch_source:
        image = with_torch(image, torch_source, workspace, run)
    engine = verb.engine(bootstraps=bool(spec.base.suite))
    folder = Path(output) if output else verb.ROOT / "dist" / spec.id
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


@verb.verb(
    positional=["image"],
    help={
        "image": "tag, image id or identifier",
        "gpus": "also run what needs a GPU, on these: all, a number, or device=0,1",
        "json": "print the whole report as JSON",
    },
)
def verify(c: Context, image: str, gpus: str = "", json: bool = False) -> None:
    """Check a built image against images.yaml and its lock."""
    from dataclasses import asdict

    from torch_images.cli import report
    from torch_images.host.gpus import gpu_options
    from torch_images.verify.identify import identify
    from torch_images.verify.verify import require

    gpu_options(gpus)  # a wrong word is said before anything is looked at
    config, workspace, engine = verb.config(), verb.workspace(), verb.engine()
    reference, plan = identify(config, image, workspace, engine)
    proof = verb.verified(reference, config, plan, workspace, engine, reuse=False, gpus=gpus)
    if json:
        print(verb.as_json({**asdict(proof), "passed": proof.passed}))
    require(proof)
    if not json:
        print(report.verified(proof))


@verb.verb(
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

    from torch_images.cli import report
    from torch_images.errors import VerifyError
    from torch_images.host.runner import Runner
    from torch_images.verify.reproduce import reproduce as again

    config, engine = verb.config(), verb.engine(bootstraps=True)
    verdict = again(
        config, image, verb.workspace(), engine=engine, run=Runner(), repository=repository
    )
    print(verb.as_json(asdict(verdict)) if json else report.verdict(verdict))
    if not verdict.reproducible:
        count = len(verdict.differences)
        raise VerifyError(f"{image} is not reproducible: {count} differences")


@verb.verb(positional=["image"], help={"image": "tag, image id or identifier"})
def sbom(c: Context, image: str) -> None:
    """Print the bill of materials of an image: CycloneDX, JSON."""
    from torch_images.verify.identify import identify
    from torch_images.verify.sbom import read

    config, workspace, engine = verb.config(), verb.workspace(), verb.engine()
    reference, _ = identify(config, image, workspace, engine)
    print(read(reference, engine), end="")


namespace = Collection(
    *(matrix, render, lock, build, wheels, verify, reproduce, sbom),
    *(publish_tasks.tag, publish_tasks.push, publish_tasks.manifest),
    *(publish_tasks.pick, publish_tasks.runpod),
    *(bench_tasks.bench, bench_tasks.bench_report, bench_tasks.bench_compare),
    *(
        maintenance_tasks.test,
        maintenance_tasks.docs,
        maintenance_tasks.clean,
        maintenance_tasks.prune,
    ),
)
