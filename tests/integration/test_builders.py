"""More than one machine: a second engine, a cache that both share in a registry, a far builder."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults import copy
from tests.integration.standins import served, small_project
from tests.integration.support import invoke, registry, second_engine
from tests.loopback import running
from tests.releases import T130
from torch_images.host.engine import Engine

pytestmark = pytest.mark.slow  # a second engine starts from nothing
# Not the images that other modules build meanwhile: a candidate has one name in the engine.
CANDIDATE = f"torch-images-candidate:cu130-sm100-torch{T130}-trixie-runtime"
BUILD = (
    *("build", "--arch", "10.0"),
    *("--unverified", "--json", "--skip-disk-check"),
)


@dataclass(frozen=True)
class Shared:
    """What both engines can reach: a small project, its wheels, a registry, the second engine."""

    folder: Path
    env: dict[str, str]
    cache: str
    second: str


@pytest.fixture(scope="module")
def shared(
    small_locks: Path, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    scratch = tmp_path_factory.mktemp("builders")
    folder = scratch / "project"
    pages = small_project(folder, small_locks, scratch / "wheels")
    with (
        registry(scratch / "registry") as host,
        served(pages) as index,
        second_engine() as second,
    ):
        cache = f"type=registry,ref={host}/cache:{{id}}"
        yield Shared(folder, {"UV_DEFAULT_INDEX": index}, cache, second)
    engine.untag(CANDIDATE)


@pytest.fixture(scope="module")
def first(shared: Shared) -> str:
    """The digest of a first build, which fills the cache."""
    words = ("--cache-to", f"{shared.cache},mode=max,compression=zstd,oci-mediatypes=true")
    done = invoke(*BUILD, *words, cwd=shared.folder, env=shared.env)
    assert done.returncode == 0, done.stderr[-2000:]
    return str(json.loads(done.stdout)["images"][0]["digest"])


def test_a_second_engine_builds_from_the_cache_of_the_first(shared: Shared, first: str) -> None:
    """All of it, to the same image; without the cache it could not build anything."""
    env = {**shared.env, "DOCKER_HOST": shared.second}
    done = invoke(*BUILD, cwd=shared.folder, env=env)
    assert done.returncode == 1
    assert "/run/build/" in done.stderr.strip().splitlines()[-1]
    done = invoke(*BUILD, "--cache-from", shared.cache, cwd=shared.folder, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["images"][0]["digest"] == first


@contextlib.contextmanager
def buildkit(engine: str, folder: Path) -> Iterator[str]:
    """The address of an engine's BuildKit as buildx's remote driver wants it: plain gRPC.

    The engine hands it out on its own socket, after an upgrade of HTTP.
    """

    class Upgrade(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as server:
                server.connect(engine.removeprefix("unix://"))
                server.sendall(
                    b"POST /grpc HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\n"
                    b"Upgrade: h2c\r\n\r\n"
                )
                answer = b""
                while not answer.endswith(b"\r\n\r\n"):
                    answer += server.recv(1)
                assert b" 101 " in answer.partition(b"\r\n")[0]
                back = threading.Thread(target=copy, args=(server, self.request), daemon=True)
                back.start()
                copy(self.request, server)
                back.join()

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

    path = folder / "buildkit.sock"
    with Server(str(path), Upgrade) as server, running(server):
        yield f"unix://{path}"


def test_a_builder_elsewhere_gives_its_image_to_this_engine(
    shared: Shared, first: str, engine: Engine, tmp_path: Path
) -> None:
    """Buildx's remote driver, with the second engine's BuildKit behind it."""
    engine.untag(CANDIDATE)
    config = {"DOCKER_CONFIG": str(tmp_path / "config")}
    with buildkit(shared.second, tmp_path) as address:
        create = ["docker", "buildx", "create", "--name", "far", "--driver", "remote", address]
        subprocess.run(create, env={**os.environ, **config}, check=True, capture_output=True)
        words = ("--builder", "far", "--cache-from", shared.cache)
        done = invoke(*BUILD, *words, cwd=shared.folder, env=shared.env | config)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["images"][0]["digest"] == first
    assert engine.inspect(CANDIDATE).id == first
