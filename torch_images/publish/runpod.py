"""A verified or a published image -> a pod template of RunPod's.

The body is that of `POST /v2/templates` (https://docs.runpod.io/api-reference-v2, read 2026). That
API has no word for a readme, so that one goes through `PATCH /v1/templates/{id}`.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import requests

from torch_images.build import labels
from torch_images.config.image import ImageSpec, short
from torch_images.config.types import Config
from torch_images.errors import NetworkError, UsageError, shown
from torch_images.host.network import Network, cause
from torch_images.host.web import Session
from torch_images.jsondoc import MalformedError, member, optional, parse
from torch_images.markdown import table
from torch_images.platforms import AMD64
from torch_images.publish.gpus import Gpu
from torch_images.publish.pick import judge
from torch_images.publish.registry import Published
from torch_images.verify.identify import VerifiedImage, spec_of

_GB = 10**9
# Unpacked bytes for each byte to pull, which is all that a registry says. Images have 2.0 to 2.1
# (docs/performance.md); a disk that is too small stops a pod.
_UNPACKED = 3
_PAGES = 1000  # of a list of templates
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
PLATFORM = AMD64.name  # of RunPod's machines
SSH, JUPYTER = 22, 8888  # the ports of sshd and JupyterLab


@dataclass(frozen=True, kw_only=True)
class PodImage:
    """What a template needs to know of an image.

    `reference`: its name in a registry. `compat`: the version of its compat library, or "".
    `size`: its unpacked bytes. `versions`: name and version of what it has, in pairs.
    `note`: what a reader should know before using it, or "".
    """

    reference: str
    spec: ImageSpec
    compat: str
    size: int
    versions: tuple[tuple[str, str], ...]
    note: str = ""


def built(image: VerifiedImage, namespace: str) -> PodImage:
    """A verified image of the engine, by its immutable name in a registry.

    Raises UsageError for an image of another platform than RunPod's machines have.
    """
    _require_platform(image.plan.spec)
    said, seen = labels.read(image.info.labels), image.report.observed
    return PodImage(
        reference=f"{namespace}/{image.plan.spec.repository}:{said.version}",
        spec=image.plan.spec,
        compat=said.compat.partition("-")[0],
        size=image.info.size,
        versions=(("PyTorch", seen["torch"]), ("CUDA", seen["cuda"]), ("Triton", seen["triton"])),
    )


def in_registry(config: Config, reference: str, image: Published) -> PodImage:
    """An image that is only known by what its registry says.

    Raises UsageError for one that is not ours, is not for RunPod's machines, or whose labels
    contradict each other.
    """
    spec, said = spec_of(config, reference, image.labels), image.labels
    _require_platform(spec)
    if said.torch != spec.torch:
        raise UsageError(
            f"{reference} says that it has torch {said.torch or 'none'}, and that it is {spec.id}",
            "its labels cannot both be right; use another image",
        )
    return PodImage(
        reference=reference,
        spec=spec,
        compat=said.compat.partition("-")[0],
        size=_UNPACKED * image.size,
        versions=(("PyTorch", spec.torch), ("CUDA", spec.cuda.version)),
        note="Its labels say what it is; it was not verified where this template was made.",
    )


def _require_platform(spec: ImageSpec) -> None:
    if spec.platform != AMD64:
        raise UsageError(
            f"RunPod's machines are {PLATFORM}, and {spec.id} is for {spec.platform}",
            f"use an image for {PLATFORM}",
        )


def body(config: Config, image: PodImage, *, geforce: bool = False) -> dict[str, Any]:
    """The template of an image, as the API takes it.

    With `geforce`, it names only machines on which GeForce GPUs work, too: compat libraries do not
    run on those.
    """
    pods, spec = config.pods, image.spec
    suffix = " geforce" if geforce else ""
    return {
        "name": f"{config.owner}/{spec.repository}:{short(config, spec)}{suffix}",
        "image": image.reference,
        # What only prints and ends must be kept alive, or the pod would start it again for ever.
        "args": "" if spec.variant.ports else "sleep infinity",
        "category": "NVIDIA",
        "disk": math.ceil(image.size / _GB) + pods.room,
        "ports": list(pods.ports),
        "env": dict(pods.environment),
        "mounts": {"persistent": {"size": pods.volume, "path": pods.volume_path}},
        "allowedCudaVersions": hosts(config, image, geforce=geforce),
        # What RunPod hands a key and a password for, where the image starts it.
        "startSsh": SSH in spec.variant.ports,
        "startJupyter": JUPYTER in spec.variant.ports,
        "public": False,
        "serverless": False,
    }


def hosts(config: Config, image: PodImage, *, geforce: bool) -> list[str]:
    """The CUDA versions of machines on which an image works, as its start would decide there.

    A machine that reports a version has at least that version's first driver. Those that only
    NVIDIA's compat library serves are among them. A machine counts if the image works with any GPU
    that it serves.
    """
    spec = image.spec
    gpus = [
        Gpu(name="GPU", capability=arch.capability, architecture=arch, geforce=geforce)
        for arch in spec.architectures
    ]

    def works(gpu: Gpu, branch: str) -> bool:
        return judge(spec.cuda, gpu, f"{branch}.999", compat=image.compat, name="").works

    return [cuda for cuda, branch in config.pods.hosts if any(works(g, branch) for g in gpus)]


def readme(config: Config, image: PodImage, template: Mapping[str, Any]) -> str:
    """What a template's page says, Markdown."""
    facts = "\n".join(table(["", ""], [*image.versions, ("Image", f"`{template['image']}`")]))
    return (
        f"# {template['name']}\n\n{image.spec.description}.\n\n"
        f"{facts}\n\n"
        f"{image.note}{' ' if image.note else ''}"
        "Each start says which libcuda it uses and why; `cuda-doctor` prints the whole reasoning. "
        f"Files in `{template['mounts']['persistent']['path']}` outlive the pod's restarts.\n\n"
        f"{config.homepage}\n"
    )


class Templates:
    """The templates of an account. Errors never show the key."""

    def __init__(self, config: Config, key: str, network: Network) -> None:
        self._api, self._readme_api = config.pods.api, config.pods.readme_api

        def bearer(request: requests.PreparedRequest) -> requests.PreparedRequest:
            request.headers["Authorization"] = f"Bearer {key}"
            return request

        self._session = Session(network)
        self._session.auth = bearer  # ~/.netrc would replace a mere header

    def find(self, name: str) -> dict[str, Any] | None:
        """The template of this name; None for none. Raises UsageError where there are several."""
        templates: list[dict[str, Any]] = []
        cursor = ""
        seen = {cursor}
        while True:
            query = f"?{urlencode({'cursor': cursor})}" if cursor else ""
            page = self._ask("GET", f"{self._api}/templates{query}")
            with _understood():
                templates += [t for t in _templates(page) if t["name"] == name]
                cursor = _next(page)
                if not cursor:
                    break
                if cursor in seen or len(seen) == _PAGES:
                    raise MalformedError("its list of templates never ends")
            seen.add(cursor)
        if len(templates) > 1:
            ids = ", ".join(t["id"] for t in templates)
            raise UsageError(f"several templates are called '{name}': {ids}", "remove all but one")
        return templates[0] if templates else None

    def save(
        self, template: Mapping[str, Any], text: str, existing: Mapping[str, Any] | None
    ) -> str:
        """Create a template, or change the one that exists; its id."""
        if existing:
            identifier = _identifier(existing)
            self._ask("PATCH", f"{self._api}/templates/{identifier}", template)
        else:
            made = self._ask("POST", f"{self._api}/templates", template)
            with _understood():
                identifier = _identifier(made)
        self._ask("PATCH", f"{self._readme_api}/templates/{identifier}", {"readme": text})
        return identifier

    def _ask(self, method: str, url: str, document: Mapping[str, Any] | None = None) -> Any:
        try:
            answer = self._session.request(method, url, json=document)
        except requests.RequestException as error:
            raise NetworkError(f"RunPod could not be asked: {cause(error)}", "try later") from None
        if answer.status_code in (requests.codes.unauthorized, requests.codes.forbidden):
            raise UsageError(
                f"RunPod refuses RUNPOD_API_KEY: {_detail(answer)}",
                "make a key that may write templates (console.runpod.io/user/settings)",
            )
        if answer.status_code in (requests.codes.bad_request, requests.codes.unprocessable_entity):
            raise UsageError(f"RunPod does not take the template: {_detail(answer)}")
        if not answer.ok:
            raise NetworkError(
                f"RunPod answers {answer.status_code}: {_detail(answer)}", "try later"
            )
        with _understood():
            return parse(answer.content)


def _templates(page: Any) -> Iterator[dict[str, Any]]:
    """The templates of a page, each with a name and an identifier. Raises MalformedError."""
    for number in range(len(member(page, "templates", kind=list))):
        template = member(page, "templates", number, kind=dict)
        member(template, "name", kind=str)
        _identifier(template)
        yield template


def _next(page: Any) -> str:
    """Where the list goes on; "" where it ends. Raises MalformedError."""
    return optional(optional(page, "pagination", kind=dict), "nextCursor", kind=str)


def _identifier(template: Any) -> str:
    """A template's identifier, which addresses have in them. Raises MalformedError."""
    identifier = member(template, "id", kind=str)
    if not _IDENTIFIER.fullmatch(identifier):
        raise MalformedError(f"{shown(identifier)} is not the identifier of a template")
    return identifier


@contextlib.contextmanager
def _understood() -> Iterator[None]:
    """Say whose answer is none that its documentation has."""
    try:
        yield
    except MalformedError as error:
        raise NetworkError(f"RunPod's answer cannot be understood: {error}", "try later") from None


def changes(template: Mapping[str, Any], existing: Mapping[str, Any] | None) -> list[str]:
    """What applying a template would change, a line for each field."""
    return [
        f"{key}: {json.dumps((existing or {}).get(key))} -> {json.dumps(value)}"
        for key, value in template.items()
        if (existing or {}).get(key) != value
    ]


def _detail(answer: requests.Response) -> str:
    """The words of an answer: those of application/problem+json, if it is that."""
    try:
        document = parse(answer.content)
        said = str(document.get("detail") or document.get("title") or document)
    except (MalformedError, AttributeError):
        said = answer.text
    return shown(" ".join(said.split())) or shown(answer.reason or "")
