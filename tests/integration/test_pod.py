"""Containers of pods. A real ssh client and real HTTP requests reach them over the engine's network.

What starts in a pod is looked at in a small image. The real one, which is devel and more, is built and
verified like every image.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from tests.integration.standins import replace, served, small_project
from tests.integration.support import Built, invoke, make_image, running
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace
from torch_images.layers.plan import layer_plans
from torch_images.locks.image_lock import image_lock
from torch_images.verify.verify import read_report, report_path

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


# A variant with what a pod starts, in place of devel.
STARTS = """\
    description: x
    packages: [openssh-server]
    command: pod-start
    folder: /workspace
    ports: [22]
"""


@pytest.fixture(scope="module")
def image(
    small_locks: Path, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A small image for pods; its digest."""
    scratch = tmp_path_factory.mktemp("pod")
    folder = scratch / "project"
    pages = small_project(folder, small_locks, scratch / "wheels")
    text = (folder / "images.yaml").read_text()
    devel = text.partition("  devel:\n")[2].partition("  pod:\n")[0]
    replace(folder, "images.yaml", devel, STARTS)
    done = invoke("lock", "--select", "base-trixie-devel", cwd=folder)
    assert done.returncode == 0, done.stderr
    words = ("build", "--variant", "devel", "--unverified", "--json")
    with served(pages) as index:
        done = invoke(*words, cwd=folder, env={"UV_DEFAULT_INDEX": index})
    assert done.returncode == 0, done.stderr[-3000:]
    [result] = json.loads(done.stdout)["images"]
    yield result["digest"]
    for tag in result["tags"]:
        engine.untag(tag)


@pytest.fixture(scope="module")
def real(engine: Engine) -> Iterator[Built]:
    """The image for pods."""
    result = make_image("--variant", "pod")
    yield result
    for tag in result.tags:
        engine.untag(tag)


@pytest.mark.slow  # an image with a toolkit and many packages more
def test_the_real_image(
    real: Built, built: Built, config: Config, workspace: Workspace, engine: Engine
) -> None:
    """Toolkit and extras were checked; the layers of the plain image are shared."""
    assert real.tags[-1] == "torch-cu130:pod"
    report = read_report(report_path(workspace, real.digest))
    assert report is not None
    passed = {check.name for check in report.checks if check.outcome == "passed"}
    assert passed >= {
        *TOOLKIT,
        "image/test_pod/test_sshd_takes_keys_only",
        *(f"container/test_extras/test_imports[{name}]" for name in EXTRAS),
        "container/test_extras/test_inductor_finds_cutlass",
    }
    # The base, the wheels, the environment and what is compiled of them.
    spec = choose(config)
    groups = layer_plans(config, spec, image_lock(config, spec, workspace.locks))
    count = 3 + sum(len(plans) for plans in groups.values())
    ours, plain = (engine.inspect(x.digest).layers for x in (real, built))
    assert ours[:count] == plain[:count]
    assert len(plain) - count in (2, 3)  # the image's own files, its description, perhaps compat


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
def client(image: str) -> Iterator[Client]:
    """Another container of the same image, which has the client, too."""
    make = "ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519 && echo ready && sleep infinity"
    words = ("sh", "-c", f"mkdir -m 700 /root/.ssh; {make}")
    with running(image, *words, network="bridge") as name:
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
    image: str,
    until: str,
    *words: str,
    env: dict[str, str] | None = None,
    options: tuple[str, ...] = (),
) -> Iterator[str]:
    """A container as a pod starts it, once its log says `until`."""
    given = tuple(f"--env={name}={value}" for name, value in (env or {}).items())
    with running(image, *words, options=(*given, *options), until=until, network="bridge") as name:
        yield name


def log(name: str) -> str:
    """All that a container has printed."""
    done = subprocess.run(["docker", "logs", name], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def test_ssh_with_the_key(image: str, client: Client) -> None:
    given = {"PUBLIC_KEY": client.key, "ODD": ODD, "JUPYTER_PASSWORD": TOKEN, "PEM": "one\ntwo"}
    with pod(image, "sshd listens", env=given) as name:
        host = address(name)
        show = "python -c 'import json, os, sys; print(json.dumps([sys.prefix, dict(os.environ)]))'"
        done = client.ssh(host, show)
        assert done.returncode == 0, done.stderr
        prefix, environment = json.loads(done.stdout.splitlines()[-1])
        assert prefix == "/opt/venv"
        assert environment["ODD"] == ODD
        assert environment["TORCH_IMAGE_STARTED"] == "1"
        assert environment["HOME"] == "/root"
        assert not {"PUBLIC_KEY", "JUPYTER_PASSWORD", "PEM"} & environment.keys()
        assert (
            "pod-start: logins over ssh lack the variables that contain line breaks: PEM\n"
            in log(name)
        )
        assert {"permitrootlogin without-password", "passwordauthentication no"} <= {
            *inside(name, "/usr/sbin/sshd", "-T").splitlines()
        }
        written = ("/root/.ssh/authorized_keys", "/etc/ssh/sshd_config.d/environment.conf")
        assert inside(name, "stat", "--format=%a", *written) == "600\n600\n"
        # On a terminal: what cuda-doctor says, then a shell with the same programs.
        seen = client.ssh(host, typed="command -v python; exit 7\n")
        assert seen.returncode == 7, seen.stderr
        assert "CUDA does not work here." in seen.stdout
        assert "/opt/venv/bin/python" in seen.stdout


def test_ssh_with_another_key(image: str, client: Client) -> None:
    other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGQw8jZ5YQ6s1cHhUFyOg7HcAzxVLXTXd3Q3V1m6q6bX other"
    with pod(image, "sshd listens", env={"PUBLIC_KEY": other}) as name:
        done = client.ssh(address(name), "true")
        assert done.returncode == 255
        # No password is asked for: this is the only way in.
        assert "Permission denied (publickey)." in done.stderr


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({}, ""),
        (
            {"PUBLIC_KEY": "not a key"},
            "pod-start: PUBLIC_KEY: line 1 is not a public key and was ignored\n",
        ),
    ],
    ids=["none", "broken"],
)
def test_pod_without_a_key_has_no_sshd(
    image: str, client: Client, env: dict[str, str], message: str
) -> None:
    with pod(image, "no JupyterLab", env=env) as name:
        none = "no sshd: neither PUBLIC_KEY nor /root/.ssh/authorized_keys has a public key"
        lines = f"{message}pod-start: {none}\npod-start: no JupyterLab"
        assert lines in log(name)
        done = client.ssh(address(name), "true")
        assert done.returncode == 255
        assert "Connection refused" in done.stderr


def test_every_container_has_keys_of_its_own(image: str, client: Client) -> None:
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


@pytest.mark.slow
def test_jupyter_wants_its_token(real: Built) -> None:
    with pod(real.digest, "is running at", env={"JUPYTER_PASSWORD": TOKEN}) as name:
        # It says so a moment before it listens.
        assert jupyter(name, TOKEN, patience=10) == requests.codes.ok
        assert jupyter(name, "another") == requests.codes.forbidden
        assert jupyter(name, "") == requests.codes.forbidden
        assert TOKEN not in log(name)
        # Nor does any command line show it, to whoever may list processes.
        lines = inside(name, "sh", "-c", "cat /proc/[0-9]*/cmdline").replace("\0", " ")
        assert "jupyter" in lines
        assert TOKEN not in lines


def test_hooks_and_command(image: str, tmp_path: Path) -> None:
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
            "pod-start: no sshd: neither PUBLIC_KEY nor /root/.ssh/authorized_keys has a public key",
            "pod-start: no JupyterLab: JUPYTER_PASSWORD is not set",
            "pod-start: running /post_start.sh",
            "two",
            "/workspace",
        ]
