"""Which engine is spoken to: as the docker CLI decides, and never another one in its place."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shutil
import subprocess
from pathlib import Path

import docker.errors
import pytest
from docker.tls import TLSConfig

import docker
from tests.unit.fakes import FakeRunner, invoke
from torch_images.errors import EngineError, RightsError, UsageError
from torch_images.host import setup
from torch_images.host.connection import Endpoint, current
from torch_images.host.runner import Runner
from torch_images.host.workspace import default_cache

SOCKET = "unix:///var/run/docker.sock"
MEMORY = {"MetadataPath": "<IN MEMORY>", "TLSPath": "<IN MEMORY>"}

# The client alone: no engine is asked for anything.
needs_cli = pytest.mark.skipif(not shutil.which("docker"), reason="there is no docker CLI")


def inspection(host: str, *material: str, skip: bool = False, tls_path: str = "<IN MEMORY>") -> str:
    """The words of `docker context inspect` 28.2."""
    context = {
        "Name": "x",
        "Metadata": {},
        "Endpoints": {"docker": {"Host": host, "SkipTLSVerify": skip}},
        "TLSMaterial": {"docker": list(material)} if material else {},
        "Storage": {**MEMORY, "TLSPath": tls_path},
    }
    return json.dumps([context])


def answer(output: str, code: int = 0) -> FakeRunner:
    return FakeRunner({"docker context inspect": (code, output)})


def tls(engine: Endpoint) -> tuple[object, ...]:
    assert isinstance(engine.tls, TLSConfig)
    return engine.tls.cert, engine.tls.ca_cert, engine.tls.verify


def test_current_has_the_certificates_of_the_context(tmp_path: Path) -> None:
    names = ("ca.pem", "cert.pem", "key.pem")
    for folder in (tmp_path, tmp_path / "docker"):
        folder.mkdir(exist_ok=True)
        for name in names:
            (folder / name).touch()
    for folder, words, environ, verify in (
        (tmp_path, inspection("tcp://h:1", *names), {"DOCKER_CERT_PATH": str(tmp_path)}, True),
        (
            tmp_path / "docker",
            inspection("tcp://h:1", *names, skip=True, tls_path=str(tmp_path)),
            {},
            False,
        ),
    ):
        pair = (str(folder / "cert.pem"), str(folder / "key.pem"))
        engine = current(answer(words), environ)
        assert (engine.host, tls(engine)) == ("tcp://h:1", (pair, str(folder / "ca.pem"), verify))
    engine = current(answer(inspection("tcp://h:1", "ca.pem")), {"DOCKER_CONFIG": str(tmp_path)})
    assert tls(engine) == (None, str(tmp_path / "ca.pem"), True)
    assert tls(current(answer(inspection("tcp://h:1", skip=True)), {})) == (None, None, False)
    assert current(answer(inspection(SOCKET)), {}) == Endpoint(host=SOCKET)


def test_current_needs_a_home_for_certificates_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nameless(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nameless)
    words = inspection("tcp://h:1", "ca.pem")
    for ask in (lambda: default_cache({}), lambda: current(answer(words), {})):
        with pytest.raises(UsageError, match="has no name, and therefore no home; set HOME"):
            ask()
    assert current(answer(inspection(SOCKET)), {}) == Endpoint(host=SOCKET)  # needs no certificates


@pytest.mark.parametrize("allowed", ["", "yes"])
def test_ready_engine_without_rights_on_the_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, allowed: str
) -> None:
    """No engine is set up beside one that only is closed to the user."""

    class Setting(FakeRunner):
        def interact(self, *_: object, **__: object) -> int:
            pytest.fail("an engine was to be set up")

    def refuse(**_: object) -> None:
        cause = PermissionError(13, "Permission denied")
        raise docker.errors.DockerException(f"Error while fetching server API version: {cause}")

    monkeypatch.setattr(docker, "DockerClient", refuse)
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/docker")
    run = Setting({"docker context inspect": (0, inspection(SOCKET))})
    with pytest.raises(RightsError, match=SOCKET):
        setup.ready_engine(tmp_path, run, allowed=allowed)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Docker configuration of its own, without anything in it, and nothing in the environment."""
    folder = tmp_path / "docker config"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("DOCKER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    return folder


def context(config: Path, name: str, host: str) -> Path:
    """Make a context; the file that describes it."""
    command = ["docker", "context", "create", name, "--docker", f"host={host}"]
    subprocess.run(command, check=True, capture_output=True)
    return config / "contexts/meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"


@needs_cli
@pytest.mark.parametrize("allowed", ["", "yes"])
def test_ready_engine_of_an_unknown_context(
    config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, allowed: str
) -> None:
    """./inv may set an engine up, but not in place of the one that was meant."""
    monkeypatch.setenv("DOCKER_CONTEXT", "prodction")
    with pytest.raises(EngineError, match=r"^there is no Docker context 'prodction'; see"):
        setup.ready_engine(tmp_path, Runner(), allowed=allowed)
    monkeypatch.delenv("DOCKER_CONTEXT")
    (config / "config.json").write_text('{"currentContext": "gone"}')
    with pytest.raises(EngineError, match=r"^there is no Docker context 'gone'; see"):
        setup.ready_engine(tmp_path, Runner(), allowed=allowed)


@needs_cli
@pytest.mark.parametrize(
    "host",
    ["ssh://h", "nonsense://x", "tcp://user:secret@[::1", "tcp://127.0.0.1:1/%zz"],
)
def test_connect_to_an_invalid_address_is_one_line(root: Path, config: Path, host: str) -> None:
    done = invoke(root, "sbom", "nothing", DOCKER_HOST=host, DOCKER_CONFIG=str(config))
    assert done.returncode == 4, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "secret" not in line


@needs_cli
def test_setup_engine_starts_none_in_place_of_a_context(root: Path, config: Path) -> None:
    context(config, "far", "tcp://127.0.0.1:1")
    for name in ("far", "gone"):
        env = {**os.environ, "DOCKER_CONTEXT": name, "TORCH_IMAGES_ENGINE_PID": os.devnull}
        command = [str(root / "scripts/setup-engine"), "--dry-run"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 3
        assert "no engine answers at the current Docker context; start it" in done.stderr


def test_current_hides_a_password() -> None:
    host = "http://me:secret@[::1"
    with pytest.raises(EngineError, match=r"names no engine: parse .* DOCKER_HOST") as caught:
        current(answer(f'parse "{host}": bad', 1), {"DOCKER_HOST": host})
    assert "secret" not in str(caught.value)
