"""A published image -> a working pod template for RunPod.

The body is that of `POST /v2/templates`, which refuses unknown fields, and has none for a readme
(https://docs.runpod.io/api-reference-v2/templates/create-a-template, read in November 2026). The
project never has the user's key: the printed command of curl sends the template.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from torch_images.config.image import ImageSpec, short
from torch_images.config.types import Config
from torch_images.errors import UsageError, shown
from torch_images.pick.gpus import Gpu
from torch_images.pick.pick import judge
from torch_images.platforms import AMD64
from torch_images.publish.tag_rules import Manifest
from torch_images.verify.identify import spec_of

_GB = 10**9
# Unpacked bytes per byte to pull: a registry only has the latter. Images have 2.0 to 2.1
# (docs/performance.md); this is more, because a disk that is too small stops a pod.
_UNPACKED = 3
_COMPAT = re.compile(r"[0-9]{3}(?:\.[0-9]{1,3}){1,2}")
PLATFORM = AMD64.name  # of RunPod's machines
# Services that RunPod's console connects to, by port.
SERVICES = {22: "sshd", 8888: "JupyterLab"}
CONSOLE = "https://console.runpod.io/user"


@dataclass(frozen=True, kw_only=True)
class PodImage:
    """The facts of a published image that a template needs.

    `reference`: its name in a registry. `compat`: the version of its compat library, or "".
    `size`: an upper bound of its unpacked bytes.
    """

    reference: str
    spec: ImageSpec
    compat: str
    size: int


def pod_image(config: Config, reference: str, image: Manifest, size: int) -> PodImage:
    """An image as its registry describes it; `size` is the bytes to pull.

    Raises UsageError for an image that is not this project's or that no pod can start, and for an
    invalid label.
    """
    spec, compat = spec_of(config, reference, image.labels), image.labels.compat.partition("-")[0]
    _require_pod(config, spec)
    if compat and not _COMPAT.fullmatch(compat):
        raise UsageError(
            f"the label of {reference} has no valid compat version: {shown(compat)}",
            "use another image",
        )
    return PodImage(reference=reference, spec=spec, compat=compat, size=_UNPACKED * size)


def _require_pod(config: Config, spec: ImageSpec) -> None:
    """Raise UsageError for an image of another platform than RunPod's, or without its services."""
    if spec.platform != AMD64:
        raise UsageError(
            f"RunPod's machines are {PLATFORM}, and {spec.id} is for {spec.platform}",
            f"use an image for {PLATFORM}",
        )
    lacking = [f"{name} (port {n})" for n, name in SERVICES.items() if n not in spec.variant.ports]
    if lacking:
        raise UsageError(
            f"{spec.id} has no {' and no '.join(lacking)}, so nobody could connect to its pod",
            f'set variant = "{config.pods.variant}" in its table'
            if spec.own
            else f"build an image with them: `invoke build --variant {config.pods.variant}`",
        )


def body(
    config: Config, image: PodImage, *, geforce: bool = False, credentials: str = ""
) -> dict[str, Any]:
    """The template of an image, in the form of the API.

    A template of an image with the compat library allows older machines, too. With `geforce`, it
    allows only machines on which GeForce GPUs work too: compat libraries do not support those.
    `credentials` is the account's id of credentials for a private registry; without it a template
    keeps its own. Raises UsageError if the image works on no machine, because an empty list would
    allow all of them.
    """
    pods, spec = config.pods, image.spec
    suffix = " geforce" if geforce else ""
    works_on = hosts(config, image, geforce=geforce)
    if not works_on:
        raise UsageError(
            f"{image.reference} works on none of the hosts that pods.hosts in images.yaml lists",
            "use an image of an older CUDA version"
            + ("" if spec.compat else ", or one with the compat library: --compat"),
        )
    return {
        "name": f"{config.owner}/{spec.repository}:{short(config, spec)}{suffix}",
        "image": image.reference,
        **({"registry": credentials} if credentials else {}),
        "args": "",  # the image's own command, which starts sshd and JupyterLab
        "category": "NVIDIA",
        "disk": math.ceil(image.size / _GB) + pods.room,
        "ports": list(pods.ports),
        "env": dict(pods.environment),
        "mounts": {"persistent": {"size": pods.volume, "path": pods.volume_path}},
        "allowedCudaVersions": works_on,
        # RunPod then sets PUBLIC_KEY and JUPYTER_PASSWORD, with which the image starts both.
        "startSsh": True,
        "startJupyter": True,
        "public": False,
        "serverless": False,
    }


def hosts(config: Config, image: PodImage, *, geforce: bool) -> list[str]:
    """The CUDA versions of machines on which an image works, as its start would decide there.

    A machine that reports a version has at least that version's first driver. Includes machines
    that need NVIDIA's compat library. A machine counts if the image works with any of its GPUs.
    """
    spec = image.spec
    gpus = [
        Gpu(name="GPU", capability=arch.capability, architecture=arch, geforce=geforce)
        for arch in spec.architectures
    ]

    def works(gpu: Gpu, branch: str) -> bool:
        return judge(spec.cuda, gpu, f"{branch}.999", compat=image.compat).works

    return [cuda for cuda, branch in config.pods.hosts if any(works(g, branch) for g in gpus)]


def command(config: Config) -> str:
    """The command that sends a template, saved as pod.json, to RunPod.

    The key is on no command line, which all users of a machine can see.
    """
    return (
        """printf 'header = "Authorization: Bearer %s"' "$RUNPOD_API_KEY" | """
        f"curl --config - --fail-with-body --json @pod.json {config.pods.api}/templates"
    )
