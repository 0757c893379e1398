"""The verbs that say what there is: matrix, pick, render."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.context import Context

from torch_images.cli import verb

if TYPE_CHECKING:
    from torch_images.build.plan import LockedImage
    from torch_images.config.types import Config

_REGISTRY_HELP = {
    "registry": "registry and owner, such as ghcr.io/me, else TORCH_IMAGES_REGISTRY, images.yaml's"
}


@verb.verb(
    help={
        "json": "print JSON, for CI matrices",
        "select": "only images whose identifier matches this glob",
        "platform": "only images for linux/amd64, or only those for linux/arm64",
        "unproved": "only images that the ledger does not prove, with the reason",
        "unpublished": "only images whose inputs the registry has no image of; with their names",
        "registry": "with --unpublished: registry and owner, such as ghcr.io/me",
    },
    example="matrix --select 'cu130-*' --json",
)
def matrix(
    c: Context,
    json: bool = False,
    select: str = "*",
    platform: str = "",
    unproved: bool = False,
    unpublished: bool = False,
    registry: str = "",
) -> None:
    """Print every image of images.yaml by its identifier, and whether it was built and verified."""
    from torch_images.config import selection
    from torch_images.publish import ledger

    config, workspace = verb.config(), verb.workspace()
    specs = selection.select(config, select, platform or selection.ALL)
    names = dict.fromkeys(specs, "")
    if unpublished:
        from torch_images.publish import push

        lookup = verb.registry_lookup(5)
        where = verb.namespace(config, registry)
        names = dict(push.unpublished(config, specs, where, lookup=lookup, workspace=workspace))
    states = ledger.states(config, tuple(names), ledger.read(verb.ROOT), verb.ROOT, workspace.locks)
    if unproved:
        names = {spec: name for spec, name in names.items() if not states[spec].proved}
    if json:
        listed = [
            {
                **selection.describe(spec),
                "proved": states[spec].proved,
                "proof": states[spec].words,
                **({"reference": name} if name else {}),
            }
            for spec, name in names.items()
        ]
        print(verb.as_json({"image": listed}))
        return
    width = max((len(spec.id) for spec in names), default=0)
    lines = (
        f"{spec.id:<{width}}  torch {spec.torch}  {' '.join(a.name for a in spec.architectures)}  "
        f"{states[spec].words}"
        for spec in names
    )
    print("\n".join(lines))


@verb.verb(
    help={
        **_REGISTRY_HELP,
        "gpu": "name as nvidia-smi prints it, such as 'RTX 5090', or compute capability",
        "driver": "version of the host's driver, such as 570.133, or its branch, such as 570",
        "torch": "release of torch, else the newest of each CUDA version",
        "base": "what the image starts from, such as trixie: it decides on Python",
        "variant": "what the image holds beside torch, such as devel",
        "platform": "that of the host: linux/amd64, or linux/arm64 for an Arm one; else the GPU's",
        "json": "print the answer as JSON",
    },
    example="pick --gpu 'RTX 5090' --driver 570",
)
def pick(
    c: Context,
    gpu: str,
    driver: str,
    torch: str = "",
    base: str = "",
    variant: str = "",
    platform: str = "",
    registry: str = "",
    json: bool = False,
) -> None:
    """Say which image to run on a GPU and a driver, how, and why."""
    from torch_images.cli import report
    from torch_images.config.selection import find_image
    from torch_images.locks.image_lock import compat_versions
    from torch_images.publish import ledger
    from torch_images.publish.gpus import find_gpu, host_platform
    from torch_images.publish.pick import answer, build_commands, find_driver, pick

    config, locks = verb.config(), verb.workspace().locks
    proofs = ledger.read(verb.ROOT)
    model = find_gpu(config, gpu)
    asked = driver.strip()
    version = find_driver(config, asked)
    host = host_platform(config, model, platform)
    versions = compat_versions(config, locks, host)
    suggestions = pick(
        config,
        model,
        version,
        lambda cuda: versions[cuda.version],
        torch=torch,
        base=base,
        variant=variant or config.defaults.variant,
        platform=host,
        namespace=verb.namespace(config, registry),
        state=lambda spec: ledger.states(config, [spec], proofs, verb.ROOT, locks)[spec],
    )
    branch = asked if asked != version else ""
    choice = answer(model, version, suggestions, platform=host, branch=branch)
    choice |= build_commands(config, find_image(config, choice["id"]))
    print(verb.as_json(choice) if json else report.picked(choice))


@verb.verb(
    positional=["image"],
    help={
        "image": "identifier, see `invoke matrix`",
        "output": "write the context to this folder",
        "standalone": "write all that plain `docker buildx build` needs to --output",
        "compat": "with --standalone: NVIDIA's newer driver libraries: auto, required or off",
    },
    example="render cu130-sm120-torch2.14.1-trixie-runtime",
)
def render(
    c: Context, image: str, output: str = "", standalone: bool = False, compat: str = ""
) -> None:
    """Print an image's Dockerfile, or write its whole build context."""
    from torch_images.build.plan import lock_image, plan_image
    from torch_images.build.render import write_context
    from torch_images.config.selection import find_image
    from torch_images.errors import UsageError

    if standalone and not output:
        raise UsageError("--standalone writes a folder", "name it with --output FOLDER")
    if compat and not standalone:
        raise UsageError("--compat is for a standalone folder", "add --standalone, or leave it out")
    config, workspace = verb.config(), verb.workspace()
    locked = lock_image(config, find_image(config, image), workspace.locks)
    if standalone:
        _write_standalone(config, locked, Path(output), compat)
        return
    context = plan_image(config, locked, verb.ROOT).context
    if output:
        write_context(context, Path(output), keep=True)
        print(f"wrote {len(context.files)} files to {output}")
    else:
        print(context.dockerfile)


def _write_standalone(config: Config, image: LockedImage, folder: Path, compat: str) -> None:
    """Write a standalone folder, and print how to build it. It needs mmdebstrap, and no engine."""
    from torch_images.build.standalone import check_standalone, write_standalone
    from torch_images.host.runner import Runner
    from torch_images.host.setup import can_bootstrap

    check_standalone(image)
    options = verb.build_options(
        progress="auto", mirror=None, compat=compat or config.compat.mode, jobs="", locked=True
    )
    if not can_bootstrap():  # after all that can be wrong in the command, because it may install
        verb.engine(bootstraps=True)
    write_standalone(config, image, verb.workspace(), options, folder, run=Runner())
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"wrote {size / 1e6:.0f} MB to {folder}")
    print(f"build it with: docker buildx build --tag NAME {shlex.quote(str(folder))}")
