"""The variant for pods, which is devel and more: verified like every image, and little beside the
plain one. A real ssh client and real HTTP requests reach it over the engine's network.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from tests.integration.support import Built, invoke, quiet, running
from tests.releases import T130
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace
from torch_images.layers.plan import layer_plans
from torch_images.locks.image_lock import image_lock
from torch_images.verify.verify import read_report, report_path

pytestmark = pytest.mark.slow  # an image with a toolkit and many packages more

BUILD = ("build", "--cuda", "13.0", "--arch", "9.0,12.0", "--variant", "pod")
EXTRAS: tuple[str, ...] = (
    "cuda-python",
    "cupy-cuda13x",
    "nvidia-cutlass-dsl",
    "torchao",
    "torchaudio",
)
EXTRAS += ("torchvision", "jupyterlab")

# The checks of a variant with nvcc.
TOOLKIT = {
    "container/test_toolkit/test_an_extension_of_torch_is_compiled",
    "container/test_toolkit/test_cmake_finds_every_part",
    "container/test_toolkit/test_nvcc_compiles_links_and_runs",
    "container/test_toolkit/test_nvcc_is_of_the_cuda_version",
    "image/test_toolkit/test_links_lead_somewhere",
}


@pytest.fixture(scope="module")
def image(engine: Engine) -> Iterator[dict[str, Any]]:
    """What the build says of itself."""
    done = invoke(*BUILD, "--progress", "plain", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    [found] = json.loads(done.stdout)
    yield found
    for tag in found["tags"]:
        engine.untag(tag)


def test_its_name_says_what_it_is(image: dict[str, Any], config: Config) -> None:
    exact, short = image["tags"]
    assert exact.startswith(f"torch-cu130:{choose(config).torch}-sm90_sm120-pod-")
    assert short == "torch-cu130:sm90_sm120-pod"


def test_toolkit_and_extras_were_checked(image: dict[str, Any], workspace: Workspace) -> None:
    report = read_report(report_path(workspace, image["digest"]))
    assert report is not None
    passed = {check.name for check in report.checks if check.outcome == "passed"}
    assert passed >= {
        *TOOLKIT,
        "image/test_pod/test_sshd_takes_keys_only",
        *(f"container/test_extras/test_imports[{name}]" for name in EXTRAS),
        "container/test_extras/test_inductor_finds_cutlass",
    }


def test_layers_of_the_plain_image_are_shared(
    image: dict[str, Any],
    built: Built,
    config: Config,
    workspace: Workspace,
    engine: Engine,
) -> None:
    """The base, the wheels, the environment and what is compiled of them."""
    spec = choose(config)
    groups = layer_plans(config, spec, image_lock(config, spec, workspace.locks))
    count = 3 + sum(len(plans) for plans in groups.values())
    ours, plain = (engine.inspect(x).layers for x in (image["digest"], built.digest))
    assert ours[:count] == plain[:count]
    assert len(plain) - count in (2, 3)  # the image's own files, its description, perhaps compat


def test_it_compiles_as_any_user(image: dict[str, Any], engine: Engine) -> None:
    code = "echo 'int main() { return 7; }' >/tmp/x.cu && nvcc -o /tmp/x /tmp/x.cu && /tmp/x"
    options = quiet(user="1000:1000", tmpfs={"/tmp": "exec"})
    assert engine.run(image["digest"], "sh", "-c", code, **options).code == 7


TOKEN = "secret-token"  # noqa: S105
# A value that a careless quoting would change.
ODD = """a "b" \\ 'c' $HOME #d"""


@dataclass(frozen=True)
class Client:
    """A container with an ssh client and a key."""

    name: str
    key: str

    def ssh(
        self, host: str, *words: str, typed: str | None = None, attempts: int = 1
    ) -> CompletedProcess[str]:
        """Log in as root, or run a command there; `typed` is what a person types on a terminal."""
        options = ["BatchMode=yes", "ConnectTimeout=20", f"ConnectionAttempts={attempts}"]
        options += ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"]
        command = ["docker", "exec", "--interactive", self.name, "ssh"]
        command += [word for option in options for word in ("-o", option)]
        command += ["-tt"] if typed is not None else []
        return subprocess.run(
            [*command, f"root@{host}", *words],
            input=typed,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def client(image: dict[str, Any]) -> Iterator[Client]:
    """Another container of the same image, which has the client, too."""
    make = "ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519 && echo ready && sleep infinity"
    words = ("sh", "-c", f"mkdir -m 700 /root/.ssh; {make}")
    with running(image["digest"], *words, network="bridge") as name:
        yield Client(name, inside(name, "cat", "/root/.ssh/id_ed25519.pub").strip())


def inside(name: str, *words: str) -> str:
    """What a command in a container prints."""
    done = subprocess.run(
        ["docker", "exec", name, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def address(name: str) -> str:
    """A container's address in the engine's network."""
    form = "{{.NetworkSettings.Networks.bridge.IPAddress}}"
    words = ["docker", "inspect", "--format", form, name]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def pod(
    image: dict[str, Any],
    until: str,
    *words: str,
    env: dict[str, str] | None = None,
    options: tuple[str, ...] = (),
) -> Iterator[str]:
    """A container as a pod starts it, once its log says `until`."""
    given = tuple(f"--env={name}={value}" for name, value in (env or {}).items())
    with running(
        image["digest"], *words, options=(*given, *options), until=until, network="bridge"
    ) as name:
        yield name


def log(name: str) -> str:
    """All that a container has printed."""
    done = subprocess.run(["docker", "logs", name], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def test_ssh_with_the_key(image: dict[str, Any], client: Client) -> None:
    given = {"PUBLIC_KEY": client.key, "ODD": ODD, "JUPYTER_PASSWORD": TOKEN}
    with pod(image, "sshd listens", env=given) as name:
        host = address(name)
        show = "python -c 'import json, os, sys; print(json.dumps([sys.prefix, dict(os.environ)]))'"
        done = client.ssh(host, show)
        assert done.returncode == 0, done.stderr
        prefix, environment = json.loads(done.stdout.splitlines()[-1])
        assert prefix == "/opt/venv"
        assert environment["ODD"] == ODD
        assert environment["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
        assert environment["HOME"] == "/root"
        assert not {"PUBLIC_KEY", "JUPYTER_PASSWORD"} & environment.keys()
        # On a terminal: what cuda-doctor says, then a shell with the same programs.
        seen = client.ssh(host, typed="nvcc --version; command -v python; exit 7\n")
        assert seen.returncode == 7, seen.stderr
        assert "CUDA does not work here." in seen.stdout
        assert "release 13.0," in seen.stdout
        assert "/opt/venv/bin/python" in seen.stdout


def test_ssh_with_another_key(image: dict[str, Any], client: Client) -> None:
    other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGQw8jZ5YQ6s1cHhUFyOg7HcAzxVLXTXd3Q3V1m6q6bX other"
    with pod(image, "sshd listens", env={"PUBLIC_KEY": other}) as name:
        done = client.ssh(address(name), "true")
        assert done.returncode == 255
        # No password is asked for: this is the only way in.
        assert "Permission denied (publickey)." in done.stderr


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({}, "no sshd: PUBLIC_KEY is not set"),
        ({"PUBLIC_KEY": "not a key"}, "PUBLIC_KEY has a line that is no public key: not a key"),
    ],
    ids=["none", "broken"],
)
def test_without_a_key_there_is_no_sshd(
    image: dict[str, Any], client: Client, env: dict[str, str], said: str
) -> None:
    with pod(image, "no JupyterLab", env=env) as name:
        assert said in log(name)
        done = client.ssh(address(name), "true")
        assert done.returncode == 255
        assert "Connection refused" in done.stderr


def test_every_container_has_keys_of_its_own(image: dict[str, Any], client: Client) -> None:
    key = {"PUBLIC_KEY": client.key}
    look = ("sh", "-c", "cat /etc/ssh/ssh_host_*_key.pub")
    with (
        pod(image, "sshd listens", env=key) as one,
        pod(image, "sshd listens", env=key) as other,
    ):
        first = inside(one, *look)
        assert not set(first.split()[1::3]) & set(inside(other, *look).split()[1::3])
        subprocess.run(["docker", "restart", "--time=1", one], check=True, capture_output=True)
        done = client.ssh(address(one), *look[2:], attempts=60)
        assert done.stdout == first, done.stderr


def jupyter(name: str, token: str, *, patience: int = 0) -> int:
    """What JupyterLab's API answers to a token; it is asked again where nobody answers yet."""
    session = requests.Session()
    again = Retry(connect=patience, read=0, backoff_factor=0.1)
    session.mount("http://", HTTPAdapter(max_retries=again))
    session.trust_env = False  # no proxy on the way to a container
    header = {"Authorization": f"token {token}"} if token else {}
    url = f"http://{address(name)}:8888/api/contents"
    return session.get(url, headers=header, timeout=60).status_code


def test_jupyter_wants_its_token(image: dict[str, Any]) -> None:
    with pod(image, "is running at", env={"JUPYTER_PASSWORD": TOKEN}) as name:
        # It says so a moment before it listens.
        assert jupyter(name, TOKEN, patience=10) == requests.codes.ok
        assert jupyter(name, "another") == requests.codes.forbidden
        assert jupyter(name, "") == requests.codes.forbidden
        assert TOKEN not in log(name)
        # Nor does any command line show it, to whoever may list processes.
        lines = inside(name, "sh", "-c", "cat /proc/[0-9]*/cmdline").replace("\0", " ")
        assert "jupyter" in lines
        assert TOKEN not in lines


def test_without_a_token_there_is_no_jupyter(image: dict[str, Any]) -> None:
    with (
        pod(image, "no JupyterLab: JUPYTER_PASSWORD is not set") as name,
        pytest.raises(requests.ConnectionError),
    ):
        jupyter(name, "")


def test_hooks_and_command(image: dict[str, Any], tmp_path: Path) -> None:
    """In their order, with the container's environment; the last one becomes the command."""
    for hook, code in (("pre_start", 'echo "one $WORD"; exit 3'), ("post_start", "echo two")):
        (tmp_path / hook).write_text(code)
    mounts = tuple(f"--volume={tmp_path / h}:/{h}.sh:ro" for h in ("pre_start", "post_start"))
    words = ("pod-start", "sh", "-c", "pwd; echo ready; exec sleep infinity")
    with pod(image, "ready", *words, options=mounts, env={"WORD": "given"}) as name:
        lines = [x for x in log(name).splitlines() if x.startswith(("one", "two", "/work", "pod-"))]
        assert lines == [
            "pod-start: running /pre_start.sh",
            "one given",
            "pod-start: /pre_start.sh ended with 3",
            "pod-start: no sshd: PUBLIC_KEY is not set, and /root/.ssh/authorized_keys has no key",
            "pod-start: no JupyterLab: JUPYTER_PASSWORD is not set",
            "pod-start: running /post_start.sh",
            "two",
            "/workspace",
        ]


def test_a_read_only_pod_still_starts(image: dict[str, Any], client: Client) -> None:
    key, options = {"PUBLIC_KEY": client.key}, ("--read-only",)
    with pod(image, "no JupyterLab", env=key, options=options) as name:
        assert "start sshd failed: " in log(name)


def test_devel_is_verified(built: Built, engine: Engine, workspace: Workspace) -> None:
    """What a pod's image has more is not in the plainer variant; its toolkit is the same."""
    words = [word.replace("pod", "devel") for word in BUILD]
    done = invoke(*words, "--progress", "plain", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    [found] = json.loads(done.stdout)
    for tag in found["tags"]:
        engine.untag(tag)
    report = read_report(report_path(workspace, found["digest"]))
    assert report is not None
    assert report.id == f"cu130-sm90_sm120-torch{T130}-trixie-devel"
    assert not report.failed
    passed = {check.name for check in report.checks if check.outcome == "passed"}
    assert passed >= TOOLKIT
    assert "container/test_extras/test_imports[torchvision]" not in passed
    assert found["checks"] == {
        outcome: report.count(outcome) for outcome in ("passed", "failed", "skipped")
    }
