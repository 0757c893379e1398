"""Images that others build on ours: what they install with pip and uv leaves torch as it is."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uv

from tests.integration.support import ROOT, Built, online, quiet, running
from tests.releases import T130
from torch_images.config.load import load_config
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace

# The torchvision that fits the release.
_EXTRAS = {extra.name: extra for extra in load_config(ROOT / "images.yaml").extras}
VISION = dict(pin.split("==") for pin in _EXTRAS["vision"].pinned(T130) or ())["torchvision"]
LIBRARIES = ("accelerate", "diffusers", "lightning", "timm", "transformers")
# What each installs for good; what pip would do with all of them is asked for below.
INSTALLED = {"pip": ("timm",), "uv": LIBRARIES}
COMMANDS = {"pip": "pip install --no-cache-dir --no-compile", "uv": "uv pip install --no-cache"}

# Torch's own distributions by version, and their files by name, size and time.
LOOK = """
import json, pathlib, re
from importlib.metadata import distributions
held = {}
for wheel in distributions(path=["/opt/venv/lib/python3.13/site-packages"]):
    name = re.sub("[-_.]+", "-", wheel.metadata["Name"]).lower()
    if name in ("torch", "triton") or name.startswith(("nvidia-", "cuda-")):
        stats = [(str(f), f.locate().lstat()) for f in wheel.files if f.locate().exists()]
        held[name] = [wheel.version, sorted((n, s.st_size, s.st_mtime_ns) for n, s in stats)]
print(json.dumps(held))
"""
WORKS = """
import importlib, sys, torch, torchvision
for name in sys.argv[1:]: importlib.import_module(name)
boxes = torch.tensor([[0., 0., 2., 2.], [0., 0., 2., 2.], [5., 5., 6., 6.]])
kept = torchvision.ops.nms(boxes, torch.tensor([.9, .8, .7]), .5).tolist()  # compiled for torch
print(torch.__version__, torchvision.__version__.partition("+")[0], kept)
"""


@pytest.fixture(scope="module")
def image(built: Built) -> str:
    return built.tags[0]  # a Dockerfile takes no digest of an image without a registry


def look(engine: Engine, image: str) -> dict[str, Any]:
    done = engine.run(image, "-c", LOOK, entrypoint=["python"], network_mode="none")
    assert done.code == 0, done.output
    files: dict[str, Any] = json.loads(done.output)
    return files


@contextlib.contextmanager
def derived(tool: str, image: str, workspace: Workspace) -> Iterator[str]:
    """An image that starts from ours and installs what people install."""
    network, tag = workspace.network, f"torch-images-test:derived-{tool}"
    build_args = dict(network.proxies)  # BuildKit knows these arguments; an index must be declared
    index = dict.fromkeys(("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), network.index or "")
    build_args |= index if network.index else {}
    arguments = "\n".join(f"ARG {name}" for name in index if network.index)
    steps = f"""
FROM {image}
{arguments}
RUN --mount=type=bind,from=uv,source=uv,target=/usr/local/bin/uv \\
    --mount=type=secret,id=ca \\
    if [ -s /run/secrets/ca ]; then \\
        export PIP_CERT=/run/secrets/ca SSL_CERT_FILE=/run/secrets/ca; \\
    fi; \\
    {COMMANDS[tool]} {" ".join(INSTALLED[tool])}
"""
    command = ["docker", "buildx", "build", "--load", f"--tag={tag}", "--file=-"]
    command += [f"--build-context=uv={Path(uv.find_uv_bin()).parent}"]
    command += [f"--build-arg={name}={value}" for name, value in build_args.items()]
    command += [f"--secret=id=ca,src={network.ca_bundle}"] if network.ca_bundle else []
    command += ["--network=host"] if network.on_loopback else []
    done = subprocess.run(
        [*command, str(Path(__file__).parent / "stubs")],
        input=steps,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    try:
        yield tag
    finally:
        subprocess.run(["docker", "rmi", tag], check=True, capture_output=True)


@pytest.mark.parametrize(
    "tool", [pytest.param(t, marks=() if t == "pip" else pytest.mark.slow) for t in COMMANDS]
)
def test_install_on_top_keeps_torch(
    image: str, engine: Engine, workspace: Workspace, tool: str
) -> None:
    before = look(engine, image)
    assert {"torch", "triton", "nvidia-cudnn-cu13"} <= before.keys()
    assert len(before["torch"][1]) > 5000
    with derived(tool, image, workspace) as tag:
        assert look(engine, tag) == before
        words = ("-c", WORKS, *INSTALLED[tool])
        done = engine.run(tag, *words, entrypoint=["python"], network_mode="none")
        assert done.output.splitlines()[-1] == f"{T130}+cu130 {VISION} [0, 2]", done.output


ASKS = {"pip": "pip install --dry-run", "uv": "uv pip install --dry-run"}
REFUSALS = {
    "pip": f"The user requested (constraint) torchvision=={VISION}",
    "uv": f"require torchvision==0.25.0 and torchvision=={VISION}",
}


@pytest.fixture(scope="module")
def resting(image: str, workspace: Workspace) -> Iterator[str]:
    """A container with uv that reaches the package index."""
    with connected(image, workspace, f"--volume={uv.find_uv_bin()}:/usr/local/bin/uv:ro") as name:
        yield name


def connected(
    image: str, workspace: Workspace, *options: str
) -> contextlib.AbstractContextManager[str]:
    """A container that does nothing and reaches the package index."""
    network = "host" if workspace.network.on_loopback else "bridge"
    words = ("sh", "-c", "echo ready; exec sleep infinity")
    return running(image, *words, options=(*options, *online(workspace.network)), network=network)


def within(container: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What `docker exec` gives, without a shell unless `words` start one."""
    command = ["docker", "exec", container, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("tool", ASKS)
def test_install_refuses_a_release_for_another_torch(resting: str, tool: str) -> None:
    done = within(resting, *ASKS[tool].split(), "torchvision==0.25.0")
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert REFUSALS[tool] in " ".join(output.split())


@pytest.mark.parametrize(
    "words",
    [
        "UV_CONSTRAINT=",
        "UV_CONSTRAINT=/tmp/own.txt",
        "-u UV_CONSTRAINT HOME=/",
        "UV_SYSTEM_PYTHON=1",
    ],
)
def test_uv_keeps_torch_in_any_environment(resting: str, words: str) -> None:
    """Debian's Python takes no packages, and says where they belong."""
    within(resting, "sh", "-c", "echo einops==0.7.0 >/tmp/own.txt")
    done = within(resting, "env", *words.split(), *ASKS["uv"].split(), "torch==2.13.0")
    assert done.returncode != 0
    stderr = " ".join(done.stderr.split())
    expected = f"you require torch==2.13.0 and torch=={T130}"
    if words == "UV_SYSTEM_PYTHON=1":
        expected = "Packages of this image belong in /opt/venv"
    assert expected in stderr


@pytest.mark.parametrize("tool", ASKS)
@pytest.mark.parametrize("package", ["nvidia-nccl-cu12==2.26.2", "xgboost==2.1.4"])
def test_install_refuses_a_wheel_that_replaces_a_library(
    resting: str, tool: str, package: str
) -> None:
    done = within(resting, *ASKS[tool].split(), package)
    assert done.returncode != 0
    assert "0+not.beside.nvidia.nccl.cu13" in done.stdout + done.stderr


def test_torch_info_shows_how_to_restore_a_library(resting: str) -> None:
    lifted = ("env", "PIP_CONSTRAINT=", "pip", "install", "--no-deps", "nvidia-nccl-cu12==2.26.2")
    assert within(resting, *lifted).returncode == 0
    line = within(resting, "torch-info").stdout.splitlines()[0]
    assert line.startswith(
        "nvidia-nccl-cu12 2.26.2 replaced libnccl.so.2 of nvidia-nccl-cu13 2.30.7, which torch needs: "
    )
    assert line in within(resting, "cuda-doctor").stdout
    assert within(resting, "sh", "-c", line.partition(": ")[2]).returncode == 0
    assert within(resting, "torch-info").stdout.startswith(f"PyTorch {T130}")


@pytest.mark.parametrize("tool", ASKS)
def test_variables_lift_the_constraints(resting: str, tool: str) -> None:
    lifted = ("env", "PIP_CONSTRAINT=", "UV_CONSTRAINT=", "UV_NO_CONFIG=1")
    done = within(resting, *lifted, *ASKS[tool].split(), "--no-deps", "torchvision==0.25.0")
    assert done.returncode == 0, done.stderr
    assert "torchvision-0.25.0" in (done.stdout + done.stderr).replace("==", "-")


PYPROJECT = """
[project]
name = "example"
version = "1.0"
requires-python = ">=3.13,<3.14"
dependencies = ["accelerate", "torch=={torch}"]
[[tool.poetry.source]]
name = "index"
url = "{index}"
priority = "primary"
"""
CODE = ("cuda-bindings", "cuda-pathfinder")
LOCKED = 100_000  # kB: what tools keep of a lock is a few MB, torch and CUDA are 3 GB


@pytest.fixture(scope="module")
def project(resting: str, workspace: Workspace) -> str:
    """The folder of a project that needs this torch, in that container."""
    index = workspace.network.index or "https://pypi.org/simple/"
    text = PYPROJECT.format(torch=T130, index=index)
    words = ("sh", "-c", 'mkdir /project && echo "$0" >/project/pyproject.toml', text)
    assert within(resting, *words).returncode == 0
    return "/project"


def untouched(container: str) -> dict[str, Any]:
    """What must stay in a container: all of LOOK but NVIDIA's packages of Python code."""
    files = json.loads(within(container, "/opt/venv/bin/python", "-c", LOOK).stdout)
    return {name: facts for name, facts in files.items() if name not in CODE}


@pytest.mark.parametrize(
    "command",
    [
        "uv lock",
        "uv sync",
        "uv sync --active",
        "UV_PROJECT_ENVIRONMENT=/opt/venv uv sync",
        "UV_NO_BINARY_PACKAGE= uv lock && uv sync --frozen --active",
        "uv run python -c 1",
    ],
)
def test_uv_project_is_refused_its_own_torch(resting: str, project: str, command: str) -> None:
    """It would replace the image's, or download 3 GB of the same; nothing of it is fetched."""
    before = untouched(resting)
    done = within(resting, "sh", "-c", f"cd {project} && rm -f uv.lock && {command}")
    assert done.returncode != 0
    assert "--no-binary" in done.stderr
    assert untouched(resting) == before
    kept = within(resting, "du", "-sk", "/root/.cache/uv").stdout.split()
    assert int(kept[0]) < LOCKED


def test_pip_works_for_an_id_without_a_name(image: str, workspace: Workspace) -> None:
    options = ("--user=12345", "--read-only", "--tmpfs=/tmp:exec")
    with connected(image, workspace, *options) as name:
        done = within(name, "pip", "install", "jupyterlab")
        assert done.returncode == 0, done.stderr
        assert "cache has been disabled" not in done.stderr  # pip's own folder can be written, too
        assert (
            within(name, "torch-entrypoint", "jupyter", "--version").returncode == 0
        )  # in ~/.local
        # What the image has cannot be shadowed by a home: pip says so.
        done = within(
            name, "env", "PIP_CONSTRAINT=", "pip", "install", "--no-deps", "torch==2.10.0"
        )
        assert "lack sys.path precedence to torch in /opt/venv" in done.stderr


def test_workspace_takes_a_folder_bin_and_any_user(
    image: str, engine: Engine, tmp_path: Path
) -> None:
    """In "/", `COPY . .` failed at the link /bin, and no other user could write."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").write_text("told")
    recipe, tag = f"FROM {image}\nCOPY . .\n", "torch-images-test:copied"
    command = ["docker", "buildx", "build", "--load", f"--tag={tag}", "--file=-", str(tmp_path)]
    subprocess.run(command, input=recipe, text=True, check=True, capture_output=True)
    try:
        code = "open('out', 'w').write(open('bin/tool').read()); print(open('out').read())"
        for user in ("1000:1000", "12345", "0"):
            done = engine.run(tag, "python", "-c", code, user=user, **quiet())
            assert (done.code, done.output) == (0, "told\n")
    finally:
        subprocess.run(["docker", "rmi", tag], check=True, capture_output=True)


def test_sudo_keeps_to_the_image(image: str, workspace: Workspace) -> None:
    """Debian's own settings find no pip and no python, and drop pip's constraints."""
    installs = """
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update && apt-get -qq install -y --no-install-recommends sudo >/dev/null
useradd --create-home --uid 1000 me && echo 'me ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/me
chmod 440 /etc/sudoers.d/me
visudo --check --quiet && ls -A /var/cache/apt/archives
"""
    with connected(image, workspace) as name:
        done = within(name, "sh", "-ec", installs)
        assert (done.returncode, done.stdout.split()) == (0, ["lock", "partial"]), done.stderr
        user = ("setpriv", "--reuid=1000", "--regid=1000", "--init-groups")
        kept = "--preserve-env=PIP_INDEX_URL,PIP_CERT,HTTPS_PROXY,https_proxy"
        sudo = (*user, "sudo", kept)
        result = within(name, *sudo, "python", "-c", "import sys; print(sys.prefix)")
        assert result.stdout == "/opt/venv\n"
        done = within(name, *sudo, *ASKS["pip"].split(), "torchvision==0.25.0")
        assert REFUSALS["pip"] in " ".join((done.stdout + done.stderr).split())
