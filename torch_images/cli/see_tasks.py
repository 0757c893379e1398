"""Verbs that show images before they are built: matrix, pick, render."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from torch_images.cli import verb
from torch_images.cli.called import as_called, bold, called
from torch_images.cli.options import Json, Options, Registry, flag, option, word
from torch_images.errors import TorchImagesError, UsageError
from torch_images.oci.compression import Compression, parse
from torch_images.platforms import native

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch_images.build.plan import LockedImage
    from torch_images.config.types import Config
    from torch_images.host.engine import Engine


class Matrix(Json):
    select: str = option("only images whose identifier matches this glob", default="*")
    platform: str = option("only images for this platform: linux/amd64 or linux/arm64")
    untested: bool = flag("only images that are not tested with today's inputs, with the reason")
    unpublished: bool = flag(
        "only images that the registry lacks with today's inputs, with their names"
    )
    registry: str = option("registry and owner, such as ghcr.io/me", needs="unpublished")
    compression: Compression = option(
        "of the images to publish: fast (default) or small",
        default=Compression.FAST,
        type=parse,
        needs="unpublished",
    )


@verb.verb(Matrix, example="matrix --select 'cu130-*' --json")
def matrix(options: Matrix) -> verb.Result:
    """Print the images of images.yaml, and whether each is tested."""
    from torch_images.config.choose import ALL, choose_glob
    from torch_images.config.image import describe
    from torch_images.verify import ledger

    config, workspace = verb.config(), verb.workspace()
    specs = choose_glob(config, options.select, options.platform or ALL)
    names = dict.fromkeys(specs, "")
    if options.unpublished:
        from torch_images.publish import push

        lookup = verb.registry_lookup()
        where = verb.namespace(config, options.registry)
        small = options.compression is Compression.SMALL
        lacking = push.unpublished(
            config, specs, where, lookup=lookup, workspace=workspace, small=small
        )
        names = dict(lacking)
    state = ledger.reader(config, ledger.read(verb.ROOT), verb.ROOT, workspace.locks)
    if options.untested:
        names = {spec: name for spec, name in names.items() if not state(spec).tested}
    listed = [
        {
            **describe(spec),
            "inputs": state(spec).inputs,
            "tested": state(spec).tested,
            "proof": state(spec).words,
            **({"reference": name} if name else {}),
        }
        for spec, name in names.items()
    ]
    width = max((len(spec.id) for spec in names), default=0)
    lines = (
        f"{spec.id:<{width}}  torch {spec.torch}  {' '.join(a.name for a in spec.architectures)}  "
        f"{state(spec).words}"
        for spec in names
    )
    return verb.Result(data={"images": listed}, text="\n".join(lines))


class Pick(Registry, Json):
    gpu: str = word(
        "name of the GPU, such as 'RTX 5090' or H100 SXM, or its compute capability; several by "
        "commas",
        required=False,
    )
    driver: str = word(
        "the host's driver as nvidia-smi prints it, such as 570.133, or its branch, such as 570 "
        "(default of both: this host's, by nvidia-smi)",
        required=False,
    )
    published: bool = flag("print a pull command if the image is in the registry")
    cuda: str = option("CUDA version (default: the newest that works)")
    torch: str = option("release of torch (default: the newest for each CUDA version)")
    base: str = option("base of the image, such as trixie; it determines the Python version")
    variant: str = option("what the image contains besides torch, such as devel")
    platform: str = option(
        "platform of the host: linux/amd64 or linux/arm64 (default: the GPU's usual one)"
    )

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> Self:
        """As for other verbs, but those of this host if none are given."""
        given = words if {"gpu", "driver"} & words.keys() else {**_here(), **words}
        if not (given.get("gpu") and given.get("driver")):
            raise UsageError(
                "--gpu and --driver must be given", "nvidia-smi on its host prints both"
            )
        return super().of(given)


@verb.verb(Pick, example="pick --gpu 'RTX 5090' --driver 570")
def pick(options: Pick) -> verb.Result:
    """Print which image runs on a GPU and a driver, how, and why."""
    from torch_images.config.choose import choose_id
    from torch_images.pick.pick import commands

    config = verb.config()
    choice = chosen(config, options)
    spec, reference = choose_id(config, choice["id"]), choice["reference"]
    choice |= commands(
        config,
        spec,
        reference,
        published=options.published and _is_published(reference, spec.id),
        locked=choice["locked"],
        program=called(),
        machine=native(),
    )
    return verb.Result(data=choice, text=picked(choice))


def chosen(config: Config, options: Pick) -> dict[str, Any]:
    """The answer of `pick` as plain data, without the commands for it."""
    from torch_images.locks.image_lock import compat_versions
    from torch_images.pick.drivers import find_driver
    from torch_images.pick.gpus import find_gpu, host_platform
    from torch_images.pick.pick import answer, pick
    from torch_images.verify import ledger

    locks = verb.workspace().locks
    model = find_gpu(config, options.gpu)
    driver = find_driver(config, options.driver)
    host = host_platform(config, model, options.platform)
    versions = compat_versions(config, locks, host)
    suggestions = pick(
        config,
        model,
        driver.version,
        lambda cuda: versions[cuda.version],
        cuda=options.cuda,
        torch=options.torch,
        base=options.base,
        variant=options.variant or config.defaults.variant,
        platform=host,
        namespace=verb.namespace(config, options.registry),
        state=ledger.reader(config, ledger.read(verb.ROOT), verb.ROOT, locks),
    )
    return answer(config, model, driver, suggestions, platform=host)


def picked(answer: dict[str, Any]) -> str:
    """Which image to run, from `pick.answer` and `pick.commands`: first, what to type."""
    lines = []
    if answer["published"]:
        lines.append(f"  {answer['image']} is published")
    lines.append(f"  torch {answer['torch']} for {answer['platform']}: {answer['proof']}")
    lines += [f"  {reason}" for reason in answer["why"]]
    lines += [
        f"  {'or' if other['works'] else 'not'} {other['image']}, torch {other['torch']}: "
        f"{other['why']}"
        for other in answer["others"]
    ]
    return "\n".join([bold(answer["command"]), "", *map(as_called, lines)])


def _here() -> dict[str, Any]:
    """The GPUs, driver and platform of this host; {} without a working nvidia-smi."""
    from torch_images.host.runner import Runner

    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        lines = Runner().run(command, seconds=20).output.splitlines()
        gpus, drivers = zip(*(line.rsplit(", ", 1) for line in lines), strict=True)
    except (TorchImagesError, ValueError):
        return {}
    return {"gpu": ", ".join(gpus), "driver": drivers[0], "platform": native().name}


def _is_published(reference: str, identifier: str) -> bool:
    """Whether a registry has an image under a name. Raises as `registry.lookup` does."""
    target = verb.registry_lookup(once=True)(reference)
    return any(one.labels.id == identifier for one in target.manifests) if target else False


class Render(Options):
    image: str = word("identifier, see `invoke matrix`, or local tag")
    output: str = option("write the build context to this folder")
    standalone: bool = flag("write everything to --output that plain `docker buildx build` needs")


@verb.verb(Render, example="render cu130-sm120-torch2.14.1-trixie-runtime")
def render(options: Render) -> verb.Result:
    """Print an image's Dockerfile, or write its build context."""
    from torch_images.build.plan import lock_image, plan_image
    from torch_images.build.render import write_context
    from torch_images.config.choose import choose_named
    from torch_images.host.outputs import filling

    if options.standalone and not options.output:
        raise UsageError("--standalone writes a folder", "name it with --output FOLDER")
    config, workspace = verb.config(), verb.workspace()
    locked = lock_image(config, choose_named(config, options.image), workspace.locks)
    if options.standalone:
        return _write_standalone(config, locked, Path(options.output))
    context = plan_image(config, locked, verb.ROOT).context
    if not options.output:
        return verb.Result(text=context.dockerfile)
    with filling(Path(options.output)) as folder:
        write_context(context, folder)
    return verb.Result(text=f"wrote {len(context.files)} files to {options.output}")


def _write_standalone(config: Config, image: LockedImage, folder: Path) -> verb.Result:
    """Write a standalone folder, and say how to build it.

    Needs no engine, and mmdebstrap only if the cache lacks the base.
    """
    from torch_images.build.job import BuildOptions
    from torch_images.build.prepare import must_bootstrap
    from torch_images.build.standalone import check_standalone, write_standalone
    from torch_images.host.setup import can_bootstrap

    check_standalone(image)
    how = BuildOptions(mirrors=verb.mirrors())
    if must_bootstrap([image], verb.workspace(), how) and not can_bootstrap():
        # Last, because it may install an engine.
        verb.engine(bootstraps=True)
    write_standalone(verb.job(config, cast("Engine", None), how), image, folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    command = f"docker buildx build --tag NAME {shlex.quote(str(folder))}"
    text = f"wrote {size / 1e6:.0f} MB to {folder}\nbuild it with: {command}"
    return verb.Result(text=text)
