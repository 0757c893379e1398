"""The engine to use: the same as the docker CLI, and so buildx, uses.

The CLI itself is asked, because only it knows how it reads DOCKER_HOST, DOCKER_CONTEXT, config.json
and the contexts. docker-py uses the default engine whenever it cannot read one of those.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker.errors
import requests
from docker.tls import TLSConfig

import docker
from torch_images.errors import CommandError, EngineError, RightsError, TorchImagesError
from torch_images.host.diagnose import Diagnosis, refusal
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.workspace import home

MINIMUM = (25, 0)  # the first release whose containerd image store is not experimental
_HINT = "see `docker context ls`, and DOCKER_HOST and DOCKER_CONTEXT in the environment"
_CONTEXT = (
    Diagnosis(
        r'context "(?P<name>.*)"(?:: context not found| does not exist)',
        EngineError,
        "there is no Docker context '{name}'",
        _HINT,
    ),
    Diagnosis("", EngineError, "the docker CLI names no engine: {message}", _HINT),
)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An engine's address, e.g. "unix:///var/run/docker.sock" or "tcp://host:2376".

    `tls` has its certificates; False without TLS.
    """

    host: str
    tls: TLSConfig | bool = False


def current(run: Runner, environ: Mapping[str, str] = os.environ) -> Endpoint:
    """The engine that the docker CLI would use; it need not be running.

    Raises EngineError for an unknown or damaged context, for an invalid DOCKER_HOST, and if there
    is no CLI.
    """
    try:
        done = run.run(["docker", "context", "inspect"])
    except CommandError as error:
        raise refusal(_CONTEXT, error.output.strip().rpartition("\n")[2]) from None
    except TorchImagesError as error:  # there is no CLI
        raise EngineError(error.message, error.hint) from None
    return _endpoint(json.loads(done.output)[0], environ)


def connect(run: Runner | None = None, endpoint: Endpoint | None = None) -> Engine:
    """The engine at an endpoint; without one, the engine that the docker CLI would use.

    Raises EngineError if none answers, if it is too old, if it lacks the containerd image store
    (without it there are no zstd layers, and no image digests before a push), and as `current`
    does. Raises RightsError if the user may not use its socket.
    """
    endpoint = endpoint or current(run or Runner())
    if endpoint.host.startswith("ssh://"):
        raise EngineError(
            f"the engine at {endpoint.host} is behind SSH, which this program cannot use",
            "forward its socket with `ssh -L`, and name the forwarded one in DOCKER_HOST",
        )
    try:
        client = docker.DockerClient(
            base_url=endpoint.host,
            tls=endpoint.tls,
            timeout=600,  # seconds; the engine is silent while it unpacks layers
        )
        number = client.version()["Version"]
    except (
        docker.errors.DockerException,
        requests.RequestException,
        ValueError,  # from urllib3, for an invalid address
    ) as error:
        if "Permission denied" in str(error):
            raise RightsError(
                f"you have no rights on the Docker socket {endpoint.host}",
                "add yourself to group docker: `sudo usermod -aG docker $USER`, and log in again",
            ) from None
        raise EngineError(
            f"no Docker Engine at {endpoint.host}: no answer",
            "start it; in a clone of the project, scripts/setup-engine sets one up",
        ) from None
    if tuple(int(part) for part in number.split(".")[:2] if part.isdigit()) < MINIMUM:
        raise EngineError(
            f"Docker Engine {number} is too old", f"{MINIMUM[0]}.{MINIMUM[1]} or newer is needed"
        )
    engine = Engine(client)
    if not engine.uses_containerd():
        raise EngineError(
            "the engine's containerd image store is off",
            'add "features": {"containerd-snapshotter": true} to /etc/docker/daemon.json and '
            "restart it; the images it has now are hidden until you switch back",
        )
    return engine


def _endpoint(context: Any, environ: Mapping[str, str]) -> Endpoint:
    engine = context["Endpoints"]["docker"]
    material, skip = context["TLSMaterial"].get("docker") or [], bool(engine["SkipTLSVerify"])
    folder = Path(context["Storage"]["TLSPath"], "docker")
    # "<IN MEMORY>": certificates of the environment, in the default context
    if material and not folder.is_absolute():
        path = environ.get("DOCKER_CERT_PATH") or environ.get("DOCKER_CONFIG")
        folder = Path(path or home() / ".docker")
    pair = str(folder / "cert.pem"), str(folder / "key.pem")
    tls = (bool(material) or skip) and TLSConfig(
        client_cert=pair if {"cert.pem", "key.pem"} <= set(material) else None,
        ca_cert=str(folder / "ca.pem") if "ca.pem" in material else None,
        verify=not skip,
    )
    host = str(engine["Host"])
    return Endpoint(host=host, tls=tls if host.startswith("tcp://") else False)
