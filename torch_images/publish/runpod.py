"""A published image -> a working pod template for RunPod.

The body is that of `POST /v2/templates`, which refuses unknown fields
(https://docs.runpod.io/api-reference-v2/templates/create-a-template, read in November 2026). API v2
has no field for a template's readme. v1 has one, but is retired and answers 410
(https://docs.runpod.io/api-reference-v2/migrate-from-v1, https://github.com/dstackai/dstack/issues/4167).
So the readme is printed, for pasting into RunPod's console.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import requests

from torch_images.build import labels
from torch_images.config.choose import choose
from torch_images.config.image import ImageSpec, short
from torch_images.config.matrix import of_the_project
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
from torch_images.publish.tag_rules import TagTarget
from torch_images.verify.identify import VerifiedImage, spec_of

_GB = 10**9
# Unpacked bytes per byte to pull: a registry only has the latter. Images have 2.0 to 2.1
# (docs/performance.md); this is more, because a disk that is too small stops a pod.
_UNPACKED = 3
_PAGES = 1000  # of a list at most
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
PLATFORM = AMD64.name  # of RunPod's machines
# Services that RunPod's console connects to, by port.
SERVICES = {22: "sshd", 8888: "JupyterLab"}
CONSOLE = "https://console.runpod.io/user"


@dataclass(frozen=True, kw_only=True)
class PodImage:
    """The facts of an image that a template needs.

    `reference`: its name in a registry. `compat`: the version of its compat library, or "".
    `size`: its unpacked bytes. `versions`: pairs of a component's name and version.
    `note`: a caveat for readers, or "".
    """

    reference: str
    spec: ImageSpec
    compat: str
    size: int
    versions: tuple[tuple[str, str], ...]
    note: str = ""


def built(
    config: Config,
    image: VerifiedImage,
    namespace: str,
    lookup: Callable[[str], TagTarget | None],
) -> PodImage:
    """A verified image of the engine, by its immutable name in a registry that has it.

    `lookup(name)`: the target of a name in the registry, or None. Raises UsageError for an image
    that no pod can start, and if the registry lacks the image or has another one.
    """
    spec = image.plan.spec
    _require_pod(config, spec)
    found, seen = labels.read(image.info.labels), image.report.observed
    reference = f"{namespace}/{spec.repository}:{found.version}"
    target = lookup(reference)
    if target is None:
        raise UsageError(
            f"{reference} is not in its registry, so no pod can pull it",
            f"run `invoke push {spec.id} --registry {namespace}` first",
        )
    if target.digest != image.info.id:
        raise UsageError(
            f"{reference} is another image in the registry than here",
            f"for a template of the registry's image, give --image {reference}",
        )
    return PodImage(
        reference=reference,
        spec=spec,
        compat=found.compat.partition("-")[0],
        size=image.info.size,
        versions=(("PyTorch", seen["torch"]), ("CUDA", seen["cuda"]), ("Triton", seen["triton"])),
    )


def in_registry(config: Config, reference: str, image: Published) -> PodImage:
    """An image that is known only from its registry.

    Raises UsageError for an image that is not this project's or that no pod can start, and for
    contradictory labels.
    """
    spec, found = spec_of(config, reference, image.labels), image.labels
    _require_pod(config, spec)
    if found.torch != spec.torch:
        raise UsageError(
            f"the labels of {reference} contradict: torch {found.torch or 'none'}, but {spec.id}",
            "use another image",
        )
    return PodImage(
        reference=reference,
        spec=spec,
        compat=found.compat.partition("-")[0],
        size=_UNPACKED * image.size,
        versions=(("PyTorch", spec.torch), ("CUDA", spec.cuda.version)),
        note="Its facts are from its labels: it was not verified where this template was made.",
    )


def _require_pod(config: Config, spec: ImageSpec) -> None:
    """Raise UsageError for an image of another platform than RunPod's, or without its services."""
    if spec.platform != AMD64:
        raise UsageError(
            f"RunPod's machines are {PLATFORM}, and {spec.id} is for {spec.platform}",
            f"use an image for {PLATFORM}",
        )
    lacking = [f"{name} (port {n})" for n, name in SERVICES.items() if n not in spec.variant.ports]
    if lacking:
        words = " ".join(_pod_variant(config, spec).arguments)
        raise UsageError(
            f"{spec.id} has no {' and no '.join(lacking)}, so nobody could connect to its pod",
            f"build an image with them: `invoke build {words}`",
        )


def _pod_variant(config: Config, spec: ImageSpec) -> ImageSpec:
    """The image for pods that corresponds to another image, else the default one."""
    pods = {"variant": config.pods.variant, "platform": PLATFORM}
    same = {axis: spec.axes[axis] for axis in ("cuda", "base", "source", "compat")}
    same |= {} if spec.source.compiled else {"torch": spec.release.version}
    with contextlib.suppress(UsageError):
        if of_the_project(config, choose(config, **pods, **same)):
            # An image for fewer architectures has the same locks.
            return choose(
                config, **pods, **same, arch=None if spec.whole else ",".join(spec.arches)
            )
    return choose(config, **pods)


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


def readme(config: Config, image: PodImage, template: Mapping[str, Any]) -> str:
    """The readme of a template, in Markdown."""
    spec, allowed = image.spec, ", ".join(template["allowedCudaVersions"])
    older = "it uses NVIDIA's compat library where the driver is older than its CUDA version"
    if not spec.compat:
        sister = replace(spec, compat=True)
        other = f"the image for older ones, with NVIDIA's compat library, is {spec.repository}:"
        other += short(config, sister)
        older = other if of_the_project(config, sister) else "older ones have a driver too old"
    rows = [*image.versions, ("Image", f"`{template['image']}`"), ("Machines", f"CUDA {allowed}")]
    facts = "\n".join(table(["", ""], rows))
    return (
        f"# {template['name']}\n\n{spec.description}.\n\n"
        f"{facts}\n\n"
        f"The machines are those that report one of these versions; {older}. "
        f"{image.note}{' ' if image.note else ''}"
        "Each start says which libcuda it uses and why; `cuda-doctor` prints the whole reasoning. "
        f"Files in `{template['mounts']['persistent']['path']}` outlive the pod's restarts.\n\n"
        f"{config.homepage}\n"
    )


class Templates:
    """The templates of an account. Errors never show the key."""

    def __init__(self, config: Config, key: str, network: Network) -> None:
        self._api = config.pods.api

        def bearer(request: requests.PreparedRequest) -> requests.PreparedRequest:
            request.headers["Authorization"] = f"Bearer {key}"
            return request

        self._session = Session(network)
        self._session.auth = bearer  # ~/.netrc would replace a mere header

    def find(self, name: str) -> dict[str, Any] | None:
        """The template of a name; None if there is none. Raises UsageError for several."""
        templates = [each for each in self._all("templates") if each["name"] == name]
        if len(templates) > 1:
            ids = ", ".join(t["id"] for t in templates)
            raise UsageError(f"several templates are called '{name}': {ids}", "remove all but one")
        return templates[0] if templates else None

    def require_credentials(self, identifier: str) -> None:
        """Raise UsageError unless the account has registry credentials with this id."""
        known = {each["id"]: shown(each["name"]) for each in self._all("registries")}
        if identifier not in known:
            has = ", ".join(f"{own} ({name})" for own, name in known.items()) or "none"
            raise UsageError(
                f"this RunPod account has no registry credentials with id '{shown(identifier)}'",
                f"it has {has}; add some at {CONSOLE}/settings",
            )

    def save(self, template: Mapping[str, Any], existing: Mapping[str, Any] | None) -> str:
        """Create a template, or update the existing one. Returns its id."""
        if existing:
            identifier = _identifier(existing)
            self._ask("PATCH", f"{self._api}/templates/{identifier}", template)
        else:
            created = self._ask("POST", f"{self._api}/templates", template)
            with _understood():
                identifier = _identifier(created)
        return identifier

    def _all(self, what: str) -> list[dict[str, Any]]:
        """All templates, or registries, of the account, each with a name and an identifier."""
        entries: list[dict[str, Any]] = []
        cursor = ""
        seen = {cursor}
        while True:
            query = f"?{urlencode({'cursor': cursor})}" if cursor else ""
            page = self._ask("GET", f"{self._api}/{what}{query}")
            with _understood():
                entries += _entries(page, what)
                cursor = _next(page)
                if not cursor:
                    return entries
                if cursor in seen or len(seen) == _PAGES:
                    raise MalformedError(f"its list of {what} never ends")
            seen.add(cursor)

    def _ask(self, method: str, url: str, document: Mapping[str, Any] | None = None) -> Any:
        try:
            answer = self._session.request(method, url, json=document)
        except requests.RequestException as error:
            raise NetworkError(
                f"RunPod could not be reached: {cause(error)}", "try later"
            ) from None
        if answer.status_code in (requests.codes.unauthorized, requests.codes.forbidden):
            raise UsageError(
                f"RunPod refuses RUNPOD_API_KEY: {_detail(answer)}",
                f"create a key that may write templates at {CONSOLE}/settings",
            )
        if answer.status_code == requests.codes.gone:
            raise UsageError(
                f"RunPod answers 410 at {self._api}: {_detail(answer)}",
                "give pods.api in images.yaml the address of the API that RunPod documents "
                "(https://docs.runpod.io/api-reference-v2)",
            )
        if answer.status_code in (requests.codes.bad_request, requests.codes.unprocessable_entity):
            raise UsageError(f"RunPod rejects the template: {_detail(answer)}")
        if not answer.ok:
            raise NetworkError(
                f"RunPod answers {answer.status_code}: {_detail(answer)}", "try later"
            )
        with _understood():
            return parse(answer.content)


def _entries(page: Any, what: str) -> Iterator[dict[str, Any]]:
    """The entries of a page, each with a name and an identifier. Raises MalformedError."""
    for number in range(len(member(page, what, kind=list))):
        entry = member(page, what, number, kind=dict)
        member(entry, "name", kind=str)
        _identifier(entry)
        yield entry


def _next(page: Any) -> str:
    """The cursor of the next page; "" on the last one. Raises MalformedError."""
    return optional(optional(page, "pagination", kind=dict), "nextCursor", kind=str)


def _identifier(entry: Any) -> str:
    """The identifier of an entry, safe for use in a URL. Raises MalformedError."""
    identifier = member(entry, "id", kind=str)
    if not _IDENTIFIER.fullmatch(identifier):
        raise MalformedError(f"{shown(identifier)} is not an identifier")
    return identifier


@contextlib.contextmanager
def _understood() -> Iterator[None]:
    """Turn MalformedError into a NetworkError that names RunPod."""
    try:
        yield
    except MalformedError as error:
        raise NetworkError(f"RunPod sent an invalid answer: {error}", "try later") from None


def changes(template: Mapping[str, Any], existing: Mapping[str, Any] | None) -> list[str]:
    """The changes of applying a template, a line for each field."""
    return [
        f"{key}: {json.dumps((existing or {}).get(key))} -> {json.dumps(value)}"
        for key, value in template.items()
        if (existing or {}).get(key) != value
    ]


def _detail(answer: requests.Response) -> str:
    """The message of an answer, from application/problem+json if possible.

    `errors` name the invalid fields; `detail` then only says that there are some.
    """
    try:
        document = parse(answer.content)
        errors = document.get("errors") or ()
        message = "; ".join(map(str, errors))
        message = message or str(document.get("detail") or document.get("title") or document)
    except (MalformedError, AttributeError, TypeError):
        message = answer.text
    return shown(" ".join(message.split())) or shown(answer.reason or "")
