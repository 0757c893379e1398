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

import docker
from tests.unit.fakes import FakeRunner, invoke
from torch_images.errors import EngineError, RightsError, UsageError
from torch_images.host import connection, setup
from torch_images.host.connection import Endpoint, current
from torch_images.host.runner import Runner
from torch_images.host.workspace import default_cache

SOCKET = "unix:///var/run/docker.sock"
MEMORY = {"MetadataPath": "<IN MEMORY>", "TLSPath": "<IN MEMORY>"}

# The client alone: no engine is asked for anything.
needs_cli = pytest.mark.skipif(not shutil.which("docker"), reason="there is no docker CLI")


def said(host: str, *material: str, skip: bool = False, tls_path: str = "<IN MEMORY>") -> str:
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


@pytest.mark.parametrize(
    ("words", "environ", "wanted"),
    [
        (said(SOCKET), {}, Endpoint(host=SOCKET)),
        (
            said("tcp://h:2376", "key.pem", "ca.pem", "cert.pem"),
            {"DOCKER_CERT_PATH": "/certs"},
            Endpoint(
                host="tcp://h:2376",
                tls=True,
                ca=Path("/certs/ca.pem"),
                client=(Path("/certs/cert.pem"), Path("/certs/key.pem")),
            ),
        ),
        (
            said("tcp://h:2376", "ca.pem"),
            {"DOCKER_CONFIG": "/config"},
            Endpoint(host="tcp://h:2376", tls=True, ca=Path("/config/ca.pem")),
        ),
        (
            said("tcp://h:1", "ca.pem", "cert.pem", "key.pem", skip=True, tls_path="/c/tls/5c"),
            {"DOCKER_CERT_PATH": "/certs"},
            Endpoint(
                host="tcp://h:1",
                tls=True,
                verify=False,
                ca=Path("/c/tls/5c/docker/ca.pem"),
                client=(Path("/c/tls/5c/docker/cert.pem"), Path("/c/tls/5c/docker/key.pem")),
            ),
        ),
        (said("tcp://h:1", skip=True), {}, Endpoint(host="tcp://h:1", tls=True, verify=False)),
    ],
)
def test_what_the_cli_says(words: str, environ: dict[str, str], wanted: Endpoint) -> None:
    assert current(answer(words), environ) == wanted


def test_an_id_without_a_name_and_a_home_is_told_to_set_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nameless(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nameless)
    words = said("tcp://h:1", "ca.pem")
    for ask in (lambda: default_cache({}), lambda: current(answer(words), {})):
        with pytest.raises(UsageError, match="has no name, and therefore no home; set HOME"):
            ask()
    assert current(answer(said(SOCKET)), {}) == Endpoint(host=SOCKET)  # needs no certificates


def test_certificates_reach_the_client(tmp_path: Path) -> None:
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).touch()
    pair = (tmp_path / "cert.pem", tmp_path / "key.pem")
    found = connection._tls(
        Endpoint(host="tcp://h:1", tls=True, ca=tmp_path / "ca.pem", client=pair)
    )
    assert not isinstance(found, bool)
    assert (found.verify, found.ca_cert) == (True, str(tmp_path / "ca.pem"))
    assert found.cert == tuple(map(str, pair))
    found = connection._tls(Endpoint(host="tcp://h:1", tls=True, verify=False))
    assert not isinstance(found, bool)
    assert not found.verify
    assert connection._tls(Endpoint(host="tcp://h:1")) is False
    assert connection._tls(Endpoint(host=SOCKET, tls=True)) is False


@pytest.mark.parametrize("allowed", ["", "yes"])
def test_rights_on_the_socket_are_what_is_missing(
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
    run = Setting({"docker context inspect": (0, said(SOCKET))})
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
def test_a_mistyped_context_is_no_other_engine(
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
@pytest.mark.parametrize("text", ["{bad", '{"currentContext": 5}'])
def test_a_broken_configuration_is_no_default_engine(
    config: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (config / "config.json").write_text(text)
    with pytest.raises(EngineError, match=r"^Docker's configuration cannot be read: .*; correct"):
        current(Runner())
    monkeypatch.setenv("DOCKER_CONTEXT", "default")  # as the CLI: it has no say then
    assert current(Runner()).host == SOCKET


@needs_cli
@pytest.mark.parametrize(
    "host",
    ["ssh://h", "nonsense://x", "tcp://user:secret@[::1", "tcp://127.0.0.1:1/%zz"],
)
def test_addresses_that_lead_nowhere(root: Path, config: Path, host: str) -> None:
    done = invoke(root, "sbom", "nothing", DOCKER_HOST=host, DOCKER_CONFIG=str(config))
    assert done.returncode == 4, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "secret" not in line


@needs_cli
def test_no_engine_is_started_in_place_of_another(root: Path, config: Path) -> None:
    context(config, "far", "tcp://127.0.0.1:1")
    for name in ("far", "gone"):
        env = {**os.environ, "DOCKER_CONTEXT": name, "TORCH_IMAGES_ENGINE_PID": os.devnull}
        command = [str(root / "scripts/setup-engine"), "--dry-run"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 3
        assert "no engine answers at the current Docker context; start it" in done.stderr


def test_a_password_is_not_repeated() -> None:
    host = "http://me:secret@[::1"
    with pytest.raises(
        EngineError, match=r"^DOCKER_HOST names no engine; give an address"
    ) as caught:
        current(answer(f'parse "{host}": bad', 1), {"DOCKER_HOST": host})
    assert "secret" not in str(caught.value)
