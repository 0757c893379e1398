"""A verified image -> a pod template of RunPod's.

The body is that of `POST /v2/templates` (https://docs.runpod.io/api-reference-v2, read 2026). That
API has no word for a readme, so that one goes through `PATCH /v1/templates/{id}`.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from torch_images.config import Config
from torch_images.errors import NetworkError, UsageError
from torch_images.network import Network, cause
from torch_images.pick import Gpu, judge
from torch_images.publish import Proved
from torch_images.render import LABEL_PREFIX
from torch_images.tagging import short

_TIMEOUT = 60.0  # seconds
_GB = 10**9
SSH, JUPYTER = 22, 8888  # the ports of sshd and JupyterLab


def body(config: Config, image: Proved, namespace: str, *, geforce: bool = False) -> dict[str, Any]:
    """The template of an image, as the API takes it.

    With `geforce`, it names only machines on which GeForce GPUs work, too: compat libraries do not
    run on those.
    """
    pods, spec = config.pods, image.planned.spec
    version = image.info.labels["org.opencontainers.image.version"]
    suffix = " geforce" if geforce else ""
    return {
        "name": f"{config.owner}/{spec.repository}:{short(config, spec)}{suffix}",
        "image": f"{namespace}/{spec.repository}:{version}",
        # What only prints and ends must be kept alive, or the pod would start it again for ever.
        "args": pods.args or ("" if spec.variant.ports else "sleep infinity"),
        "category": "NVIDIA",
        "disk": math.ceil(image.info.size / _GB) + pods.room,
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


def hosts(config: Config, image: Proved, *, geforce: bool) -> list[str]:
    """The CUDA versions of machines on which an image works, as its start would decide there.

    A machine that reports a version has at least that version's first driver. Those that only
    NVIDIA's compat library serves are among them.
    """
    spec = image.planned.spec
    found = image.info.labels.get(f"{LABEL_PREFIX}.compat", "none")
    compat = "" if found == "none" else found.partition("-")[0]
    arch = spec.architectures[-1]
    gpu = Gpu(name="GPU", capability=arch.capability, architecture=arch, geforce=geforce)
    return [
        cuda
        for cuda, branch in config.pods.hosts
        if judge(config, spec.cuda, gpu, f"{branch}.999", compat=compat, name="").works
    ]


def readme(image: Proved, template: Mapping[str, Any]) -> str:
    """What a template's page says, Markdown."""
    labels, seen = image.info.labels, image.report.observed
    rows = "\n".join(
        f"| {name} | {seen[key]} |"
        for name, key in (("PyTorch", "torch"), ("CUDA", "cuda"), ("Triton", "triton"))
    )
    return (
        f"# {template['name']}\n\n{labels['org.opencontainers.image.description']}.\n\n"
        f"| | |\n|---|---|\n{rows}\n| Image | `{template['image']}` |\n\n"
        "Each start says which libcuda it uses and why; `cuda-doctor` prints the whole reasoning. "
        f"Files in `{template['mounts']['persistent']['path']}` outlive the pod's restarts.\n\n"
        f"{labels['org.opencontainers.image.url']}\n"
    )


def command(template: Mapping[str, Any], text: str) -> str:
    """The same for RunPod's own program, which has no word for the filter of CUDA versions."""
    volume = template["mounts"]["persistent"]
    words = ["runpodctl", "template", "create", "--name", template["name"]]
    words += ["--image", template["image"], "--container-disk-in-gb", str(template["disk"])]
    words += ["--ports", ",".join(template["ports"]), "--env", json.dumps(template["env"])]
    words += ["--volume-in-gb", str(volume["size"]), "--volume-mount-path", volume["path"]]
    if template["args"]:
        words += ["--docker-start-cmd", ",".join(shlex.split(template["args"]))]
    return shlex.join([*words, "--readme", text])


class Templates:
    """The templates of an account. Errors never show the key."""

    def __init__(self, config: Config, key: str, network: Network) -> None:
        self._api, self._readme_api = config.pods.api, config.pods.readme_api
        self._session = requests.Session()
        self._session.verify = network.verify
        self._session.headers["Authorization"] = f"Bearer {key}"
        # POST is not among them: a template might then be there twice.
        again = Retry(
            total=4,
            backoff_factor=0.5,
            status_forcelist=(429, 500, 502, 503, 504),
            allowed_methods={"GET", "PATCH"},
            raise_on_status=False,
        )
        for prefix in ("https://", "http://"):
            self._session.mount(prefix, HTTPAdapter(max_retries=again))

    def find(self, name: str) -> dict[str, Any] | None:
        """The template of this name; None for none. Raises UsageError where there are several."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            query = f"?cursor={cursor}" if cursor else ""
            page = self._ask("GET", f"{self._api}/templates{query}")
            found += [t for t in page["templates"] if t["name"] == name]
            cursor = (page.get("pagination") or {}).get("nextCursor") or ""
            if not cursor:
                break
        if len(found) > 1:
            ids = ", ".join(t["id"] for t in found)
            raise UsageError(f"several templates are called '{name}': {ids}", "remove all but one")
        return found[0] if found else None

    def save(
        self, template: Mapping[str, Any], text: str, existing: Mapping[str, Any] | None
    ) -> str:
        """Create a template, or change the one that exists; its id."""
        if existing:
            identifier = str(existing["id"])
            self._ask("PATCH", f"{self._api}/templates/{identifier}", template)
        else:
            identifier = str(self._ask("POST", f"{self._api}/templates", template)["id"])
        self._ask("PATCH", f"{self._readme_api}/templates/{identifier}", {"readme": text})
        return identifier

    def _ask(self, method: str, url: str, document: Mapping[str, Any] | None = None) -> Any:
        try:
            answer = self._session.request(method, url, json=document, timeout=_TIMEOUT)
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
        return answer.json()


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
        found = answer.json()
        return " ".join(str(found.get("detail") or found.get("title") or found).split())[:300]
    except (ValueError, AttributeError):
        return " ".join(answer.text.split())[:300] or answer.reason
