"""The examples of docs/derive.md, built and run as users do."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.integration.support import ROOT, TESTS, Built, docker, invoke, make_image, running
from tests.releases import T130
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace

DERIVE = ROOT / "docs" / "examples" / "derive"
TORCH = f"{T130}+cu130"


@pytest.fixture(scope="module")
def image(built: Built) -> str:
    return built.tags[0]


@pytest.fixture(scope="module")
def reaching(
    image: str, workspace: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with made_reaching(image, workspace, tmp_path_factory.mktemp("reaching")) as tag:
        yield tag


@contextlib.contextmanager
def made_reaching(image: str, workspace: Workspace, folder: Path) -> Iterator[str]:
    """An image that also knows how this machine reaches the index. So examples build unchanged."""
    network = workspace.network
    variables = dict(network.proxies)
    if network.index:
        variables |= dict.fromkeys(("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), network.index)
    lines = [f"FROM {image}"]
    if network.ca_bundle:
        shutil.copy(network.ca_bundle, folder / "ca.crt")
        lines.append("COPY --chmod=644 ca.crt /etc/ssl/reaching.crt")
        variables |= dict.fromkeys(("PIP_CERT", "SSL_CERT_FILE"), "/etc/ssl/reaching.crt")
    lines += [f'ENV {name}="{value}"' for name, value in variables.items()]
    (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
    tag = f"{TESTS}:{folder.name}"  # two of them may exist at once
    done = docker("buildx", "build", "--load", f"--tag={tag}", str(folder))
    assert done.returncode == 0, done.stdout[-3000:]
    yield tag
    docker("rmi", tag)


@pytest.fixture
def example(request: pytest.FixtureRequest, reaching: str, workspace: Workspace) -> Iterator[str]:
    with built_example(request.param, reaching, workspace) as tag:
        yield tag


@contextlib.contextmanager
def built_example(name: str, image: str, workspace: Workspace) -> Iterator[str]:
    """The image that an example makes, unchanged, on another."""
    tag = f"{TESTS}:example-{name}"
    host = ("--network=host",) if workspace.network.on_loopback else ()
    words = (f"--file={DERIVE / name}.Dockerfile", f"--build-arg=IMAGE={image}", *host)
    done = docker("buildx", "build", "--load", f"--tag={tag}", *words, str(DERIVE))
    assert done.returncode == 0, done.stdout[-3000:]
    yield tag
    docker("rmi", tag)


SHOW = """
import sys, torch
from importlib.metadata import distribution
wheel = distribution(sys.argv[1])
print(torch.__version__, wheel.version, wheel.locate_file(""))
"""


def shown(engine: Engine, image: str, name: str) -> list[str]:
    """The release of torch, that of another distribution, and where this one is."""
    done = engine.run(image, "-c", SHOW, name, entrypoint=["python"], network_mode="none")
    assert done.code == 0, done.output
    return done.output.splitlines()[-1].split()


@pytest.mark.parametrize("example", ["pip", "uv", "requirements"], indirect=True)
def test_package_example(example: str, engine: Engine) -> None:
    torch, _, folder = shown(engine, example, "einops")
    assert torch == TORCH
    assert folder.startswith("/opt/venv/lib/")


@pytest.mark.parametrize("example", ["lifted"], indirect=True)
def test_constraints_that_are_lifted(example: str, engine: Engine) -> None:
    assert shown(engine, example, "torchvision")[:2] == [TORCH, "0.25.0"]


@pytest.mark.parametrize("example", ["environment", "project"], indirect=True)
def test_environment_example(example: str, engine: Engine, request: pytest.FixtureRequest) -> None:
    """It has torch from the image, and a package of its own."""
    mine = {"environment": ("einops", "/opt/mine/"), "project": ("accelerate", "/project/.venv/")}
    name, folder = mine[request.node.callspec.params["example"]]
    torch, _, location = shown(engine, example, name)
    assert torch == TORCH
    assert location.startswith(folder)
    assert shown(engine, example, "torch")[2].startswith("/opt/venv/lib/")


@pytest.mark.parametrize("example", ["pip"], indirect=True)
def test_sbom_of_a_derived_image(example: str, image: str) -> None:
    """The file in it is of the image that it was built on."""
    wheels = []
    for name in (image, example):
        done = invoke("sbom", name)
        assert done.returncode == 0, done.stderr
        assert ("is derived from torch-cu130:" in done.stderr) is (name == example)
        parts = json.loads(done.stdout)["components"]
        wheels.append({(part["name"], part["version"]) for part in parts})
    [(name, _)] = wheels[1] - wheels[0]
    assert name == "einops"
    assert wheels[0] <= wheels[1]


@pytest.mark.slow  # it compiles in an image with a toolkit
@pytest.mark.parametrize("example", ["extension"], indirect=True)
def test_extension_example(example: str, engine: Engine) -> None:
    code = "import torch, doubling; print(doubling.doubled(torch.ones(2)).tolist())"
    done = engine.run(example, "-c", code, entrypoint=["python"], network_mode="none")
    assert done.output.splitlines()[-1] == "[2.0, 2.0]", done.output


@pytest.mark.slow  # nvcc compiles
def test_cuda_extension_example(engine: Engine, workspace: Workspace, tmp_path: Path) -> None:
    devel = make_image("--variant", "devel")
    code = "import torch, causal_conv1d, causal_conv1d_cuda; print(causal_conv1d.__version__)"
    with (
        made_reaching(devel.tags[0], workspace, tmp_path) as image,
        built_example("kernels", image, workspace) as tag,
    ):
        done = engine.run(tag, "-c", code, entrypoint=["python"], network_mode="none")
    for name in devel.tags:
        engine.untag(name)
    assert done.output.splitlines()[-1] == "1.7.0", done.output


@pytest.mark.slow
@pytest.mark.parametrize("example", ["caches"], indirect=True)
def test_volume_keeps_compiled_kernels(example: str) -> None:
    """For a user without a name, too."""
    volume = f"{TESTS}-cache"
    words = ["run", "--rm", "--network=none", "--user=12345", f"--volume={volume}:/cache"]
    words += [f"--volume={DERIVE}:/workspace:ro", example, "python", "/workspace/compiled.py"]
    docker("volume", "rm", volume)
    try:
        lines = [docker(*words).stdout.splitlines()[-1] for _ in range(2)]
    finally:
        docker("volume", "rm", volume)
    assert lines == ["compiled", "from the cache"]


@pytest.mark.parametrize("example", ["user"], indirect=True)
def test_another_user_by_default(example: str, engine: Engine) -> None:
    code = "import einops, getpass, os; print(getpass.getuser(), os.getcwd(), os.environ['HOME'])"
    done = engine.run(example, "python", "-c", code, network_mode="none")
    assert done.output.splitlines()[-1] == "trainer /home/trainer /home/trainer", done.output


@pytest.mark.parametrize(
    ("options", "works"), [((), False), (("--shm-size=1g",), True), (("--ipc=host",), True)]
)
def test_batches_larger_than_shared_memory(
    image: str, options: tuple[str, ...], works: bool
) -> None:
    words = ("--network=none", f"--volume={DERIVE}:/workspace:ro", *options, image)
    done = docker("run", "--rm", *words, "python", "/workspace/loader.py")
    assert (done.returncode == 0) is works, done.stdout
    batches = [line for line in done.stdout.splitlines() if line.startswith("(32, 3, 1024, 256)")]
    assert batches == (["(32, 3, 1024, 256) 15.5", "(32, 3, 1024, 256) 47.5"] if works else [])
    full = "unable to allocate shared memory(shm)" in done.stdout
    assert full is not works, done.stdout


# What ComfyUI's published requirements.txt names.
COMFYUI = """
comfyui-frontend-package==1.45.15 comfyui-workflow-templates==0.9.98 comfyui-embedded-docs==0.5.3
comfy-kitchen==0.2.10 comfy-aimdo==0.4.10 PyOpenGL glfw torch torchsde torchvision torchaudio numpy>=1.25.0 einops transformers>=4.50.3 tokenizers>=0.13.3
sentencepiece safetensors>=0.4.2 aiohttp>=3.11.8 yarl>=1.18.0 pyyaml Pillow scipy tqdm psutil alembic
SQLAlchemy>=2.0.0 filelock av>=16.0.0 requests simpleeval>=1.0.0 blake3 kornia>=0.7.1 spandrel
pydantic~=2.0 pydantic-settings~=2.0
"""
# A program that is started as ComfyUI is, with the same libraries, and answers with torch's release.
SERVER = """
import argparse, av, comfy_aimdo, comfy_kitchen, comfyui_frontend_package, comfyui_workflow_templates
import kornia, spandrel, torch, torchaudio, torchsde, torchvision, transformers
from aiohttp import web
asked = argparse.ArgumentParser()
asked.add_argument("--listen", nargs="?", const="0.0.0.0,::")
host = asked.parse_args().listen.split(",")[0]
program = web.Application()
program.router.add_get("/", lambda request: web.Response(text=torch.__version__))
web.run_app(program, host=host, port=8188)
"""


@pytest.mark.slow
def test_comfyui_example(reaching: str, workspace: Workspace, tmp_path: Path) -> None:
    """With what the real one requires; a small server stands in for the program itself."""
    program = tmp_path / "comfyui"
    program.mkdir()
    (program / "requirements.txt").write_text("\n".join(COMFYUI.split()))
    (program / "main.py").write_text(SERVER)
    shutil.copy(DERIVE / "comfyui.Dockerfile", tmp_path)
    tag = f"{TESTS}:comfyui"
    words = [f"--file={tmp_path}/comfyui.Dockerfile", f"--build-arg=IMAGE={reaching}"]
    words += ["--network=host"] if workspace.network.on_loopback else []
    words += ["--load", f"--tag={tag}", "--build-arg=COMFYUI=comfyui", str(tmp_path)]
    done = docker("buildx", "build", *words)
    assert done.returncode == 0, done.stdout[-3000:]
    try:
        published = ("--publish=127.0.0.1::8188", "--env=PYTHONUNBUFFERED=1")
        with running(tag, options=published, until="Running on", network="bridge") as name:
            [address] = docker("port", name, "8188").stdout.split()
            answer = requests.get(f"http://{address}/", timeout=60).text
    finally:
        docker("rmi", tag)
    assert answer == TORCH
