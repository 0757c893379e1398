"""Planned images -> the bake definition and the command that builds it. Pure.

Format: https://docs.docker.com/build/bake/reference/
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_images.build import labels
from torch_images.build.job import BuildOptions, Job
from torch_images.build.plan import ImagePlan, LockedImage
from torch_images.fetch.bootstrap import ReadyBase
from torch_images.host.network import Network

# Each bake has its own folder below the output folder, with this file.
FOLDERS, FILE = ".bake-", "docker-bake.json"
# A named context with one file: the certificates that the host trusts.
CERTIFICATES, CA_FILE = "certificates", "ca.pem"
_COMPILE = ("type=env,id=compile,env=TORCH_IMAGES_COMPILE",)
_MOUNT = "    --mount=type=secret,id={} \\\n"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The prepared inputs of an image's build.

    `contexts` are the named contexts, folder or image by name, see supplies.py. `compiled` are
    those that stand for the stages that compile, see compiled.py. `compat_note` is the ELF note of
    the compat library, "" without one.
    """

    base: ReadyBase
    contexts: Mapping[str, str] = field(default_factory=dict)
    compiled: Mapping[str, str] = field(default_factory=dict)
    compat_note: str = ""


def bake_command(files: Sequence[Path], options: BuildOptions) -> list[str]:
    """The command that builds every target of bake files; later files override earlier ones.

    It adds no attestations, so that an image's digest depends on its content alone.
    """
    command = ["docker", "buildx", "bake", *(f"--file={file}" for file in files)]
    command += ["--provenance=false", "--sbom=false"]
    if options.builder:
        command.append(f"--builder={options.builder}")
    if options.no_cache:
        command.append("--no-cache")
    return command


def bake_file(
    job: Job,
    images: Sequence[ImagePlan],
    parts: Mapping[str, Parts],
    *,
    folder: Path,
    tools: Mapping[str, str],
    namespace: str = "",
) -> dict[str, Any]:
    """The bake definition, a target per image: `parts` by target, `tools` folders by lock.

    The context of each image is the folder of its identifier in `folder`.
    Proxies may hold secrets, so the definition only names variables for them; bake takes the values
    from the environment, see `environment`. `namespace` separates the build's cache mounts from
    those of other builds.
    """
    network, options = job.workspace.network, job.options
    secrets = ["type=env,id=index,env=TORCH_IMAGES_INDEX"] if network.index else []
    if network.ca_bundle:
        secrets.append(f"type=file,id=ca,src={network.ca_bundle}")
    certificates = {CERTIFICATES: str(folder / CERTIFICATES)} if network.ca_bundle else {}
    targets = {}
    for image in images:
        part = parts[image.target]
        targets[image.target] = {
            "context": str(folder / image.spec.id),
            "contexts": {
                "tools": tools[image.lock.build.name],
                "sbom": tools[image.lock.sbom.name],
                **certificates,
                **part.contexts,
                **part.compiled,
            },
            "platforms": [image.spec.platform.name],
            "args": {
                "SOURCE_DATE_EPOCH": str(image.lock.epoch),
                **({"BUILDKIT_CACHE_MOUNT_NS": namespace} if namespace else {}),
                **{name: f"${{{name}}}" for name, _ in network.proxies},
            },
            "labels": labels.write(job.config, image)
            | labels.write_built(part.base.digest, part.compat_note, small=image.small),
            "secret": [*secrets, *(_COMPILE if image.lock.sources else ())],
            "output": [output(image)],
            "cache-from": [cache.replace("{id}", image.spec.id) for cache in options.cache_from],
            "cache-to": [cache.replace("{id}", image.spec.id) for cache in options.cache_to],
        }
    bake: dict[str, Any] = {
        "group": {"default": {"targets": [image.target for image in images]}},
        "target": targets,
    }
    if network.proxies:
        bake["variable"] = {name: {"default": ""} for name, _ in network.proxies}
    return bake


def needs_no_secrets(image: LockedImage, part: Parts, options: BuildOptions) -> bool:
    """Whether an image may be built by the Dockerfile of `without_secrets`.

    A file that is mounted is part of a step's key in BuildKit's cache, where a secret is not. So
    secrets stay where other certificates would cost hours of compiling, or the cache of another
    machine.
    """
    compiles = image.lock.sources and not part.compiled
    return not (compiles or options.cache_from or options.cache_to)


def without_secrets(dockerfile: str, network: Network) -> str:
    """The Dockerfile without secrets that it need not have: only a user's own index stays one.

    The certificates become a bind mount. Before a step with a secret, BuildKit of Docker 26.1.5
    hashes all files below it, 5 to 11 s for an image with torch; newer ones leave secrets out of
    `getMountDeps`. No history records a mount, so the image is the same.
    """
    bind = f"    --mount=type=bind,from={CERTIFICATES},source={CA_FILE},target=/run/secrets/ca \\\n"
    dockerfile = dockerfile.replace(_MOUNT.format("ca"), bind if network.ca_bundle else "")
    return dockerfile if network.index else dockerfile.replace(_MOUNT.format("index"), "")


def host_network(images: Sequence[LockedImage]) -> dict[str, Any]:
    """A Compose file that gives every target the host's network.

    Bake reads it before its own file, which overrides the contexts. The bake format itself has no
    key for the network before buildx 0.14.
    """
    build = {"context": ".", "network": "host"}
    return {"services": {image.target: {"build": build} for image in images}}


def output(image: LockedImage, archive: Path | None = None) -> str:
    """The exporter: into the engine, or for a remote builder to an archive that is loaded later."""
    if archive:
        where = f"type=docker,name={image.candidate},{destination(archive)}"
    else:
        where = f"type=image,name={image.candidate},unpack=true"
    return f"{where},oci-mediatypes=true,compression=zstd,force-compression=true"


def destination(path: Path) -> str:
    """The file that an exporter writes, as one of its comma-separated fields."""
    return '"dest={}"'.format(str(path).replace('"', '""'))


def environment(network: Network, options: BuildOptions) -> dict[str, str | None]:
    """The environment of the bake command, with the values that its definition only names."""
    index = {"TORCH_IMAGES_INDEX": network.index} if network.index else {}
    # A secret does not count as input: number of jobs and place of a cache must not matter.
    settings: dict[str, Any] = {"jobs": options.jobs, "environment": dict(network.compile_cache)}
    if options.slice:
        settings |= {"slice": options.slice, "call": options.call}
    if options.share:
        settings["share"] = options.share
    return {
        "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
        # buildx 0.20 and newer ask before they read folders elsewhere, and end without a terminal.
        # The bake file is ours, and names the cache and the user's certificates.
        "BUILDX_BAKE_ENTITLEMENTS_FS": "0",
        "TORCH_IMAGES_COMPILE": json.dumps(settings),
        **dict(network.proxies),
        **index,
    }
