"""The examples of docs/derive.md and docs/places.md, built and run as users do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.support import ROOT, TESTS, Built, compose_command, invoke
from tests.releases import T130
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace

DERIVE = ROOT / "docs" / "examples" / "derive"
PLACES = ROOT / "docs" / "examples" / "places"
TORCH = f"{T130}+cu130"
TRAINED = "processes on cpu, loss 0."


@pytest.fixture(scope="module")
def image(built: Built) -> str:
    return built.tags[0]


def docker(*words: str) -> subprocess.CompletedProcess[str]:
    """What a command of docker's says, on both of its streams."""
    return subprocess.run(
        ["docker", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def reaching(
    image: str, workspace: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Our image, which also knows how this machine reaches the index. So examples build unchanged."""
    network, folder = workspace.network, tmp_path_factory.mktemp("reaching")
    told = dict(network.proxies)
    if network.index:
        told |= dict.fromkeys(("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), network.index)
    lines = [f"FROM {image}"]
    if network.ca_bundle:
        shutil.copy(network.ca_bundle, folder / "ca.crt")
        lines.append("COPY --chmod=644 ca.crt /etc/ssl/reaching.crt")
        told |= dict.fromkeys(("PIP_CERT", "SSL_CERT_FILE"), "/etc/ssl/reaching.crt")
    lines += [f'ENV {name}="{value}"' for name, value in told.items()]
    (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
    tag = f"{TESTS}:reaching"
    done = docker("buildx", "build", "--load", f"--tag={tag}", str(folder))
    assert done.returncode == 0, done.stdout[-3000:]
    yield tag
    docker("rmi", tag)


@pytest.fixture
def example(request: pytest.FixtureRequest, reaching: str, workspace: Workspace) -> Iterator[str]:
    """The image that an example makes, unchanged."""
    name = request.param
    tag = f"{TESTS}:example-{name}"
    host = ("--network=host",) if workspace.network.on_loopback else ()
    words = (f"--file={DERIVE / name}.Dockerfile", f"--build-arg=IMAGE={reaching}", *host)
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


@pytest.mark.parametrize("example", ["pip", "uv"], indirect=True)
def test_a_package(example: str, engine: Engine) -> None:
    torch, _, folder = shown(engine, example, "einops")
    assert torch == TORCH
    assert folder.startswith("/opt/venv/lib/")


@pytest.mark.parametrize("example", ["environment", "project"], indirect=True)
def test_an_environment_on_top(
    example: str, engine: Engine, request: pytest.FixtureRequest
) -> None:
    """It has torch from the image, and a package of its own."""
    mine = {"environment": ("einops", "/opt/mine/"), "project": ("accelerate", "/project/.venv/")}
    name, folder = mine[request.node.callspec.params["example"]]
    torch, _, found = shown(engine, example, name)
    assert torch == TORCH
    assert found.startswith(folder)
    assert shown(engine, example, "torch")[2].startswith("/opt/venv/lib/")


@pytest.mark.parametrize("example", ["pip"], indirect=True)
def test_the_sbom_of_a_derived_image_lists_what_is_installed(example: str, image: str) -> None:
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
def test_an_extension(example: str, engine: Engine) -> None:
    code = "import torch, doubling; print(doubling.doubled(torch.ones(2)).tolist())"
    done = engine.run(example, "-c", code, entrypoint=["python"], network_mode="none")
    assert done.output.splitlines()[-1] == "[2.0, 2.0]", done.output


@pytest.mark.slow
@pytest.mark.parametrize("example", ["caches"], indirect=True)
def test_a_volume_keeps_what_was_compiled(example: str) -> None:
    """For a user without a name, too."""
    volume = f"{TESTS}-cache"
    words = ["run", "--rm", "--network=none", "--user=12345", f"--volume={volume}:/cache"]
    words += [f"--volume={DERIVE}:/workspace:ro", example, "python", "/workspace/compiled.py"]
    docker("volume", "rm", volume)
    try:
        said = [docker(*words).stdout.splitlines()[-1] for _ in range(2)]
    finally:
        docker("volume", "rm", volume)
    assert said == ["compiled", "from the cache"]


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


def test_compose(image: str, tmp_path: Path) -> None:
    """Docker Compose reads the file as it is, and runs it without GPUs."""
    unpacked = tmp_path / "compose"
    unpacked.mkdir()
    for name in ("compose.yaml", "train.py"):
        shutil.copy(PLACES / name, tmp_path)
    (tmp_path / "here.yaml").write_text(
        f"services: {{train: {{image: '{image}', deploy: !reset null, network_mode: bridge}}}}"
    )
    command = [*compose_command(unpacked), f"--project-name={TESTS}"]
    read = subprocess.run(
        [*command, "config", "--format=json"], cwd=tmp_path, capture_output=True, check=True
    )
    service = json.loads(read.stdout)["services"]["train"]
    [device] = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["capabilities"], device["count"]) == (["gpu"], -1)
    assert service["shm_size"] == str(8 * 1024**3)
    command += ["--file=compose.yaml", "--file=here.yaml"]
    try:
        done = subprocess.run(
            [*command, "run", "--rm", "--no-TTY", "train"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        subprocess.run([*command, "down", "--volumes"], cwd=tmp_path, check=True)
    assert done.returncode == 0, done.stderr
    assert TRAINED in done.stdout


def test_the_job_of_kubernetes_runs_without_rights(image: str) -> None:
    """Its arguments, user and read-only file system; not its GPUs, which only a cluster has."""
    job = yaml.safe_load((PLACES / "kubernetes-job.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    context = pod["securityContext"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    words = [f"--user={context['runAsUser']}:{context['runAsGroup']}", "--read-only"]
    words += ["--tmpfs=/tmp:exec", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
    words += [f"--volume={PLACES}:/workspace:ro", image, *container["args"]]
    done = docker("run", "--rm", *words)
    assert done.returncode == 0, done.stdout
    assert TRAINED in done.stdout


# The image's environment and the mounts, not its entrypoint.
SRUN = """#!/bin/bash
for word; do
    case $word in
        --container-image=*) ;;
        --container-mounts=*) mounts=${word#*=} ;;
        --container-workdir=*) folder=${word#*=} ;;
        *) break ;;
    esac
    shift
done
program=$1
shift
exec docker run --rm --entrypoint="$program" --volume="$mounts:ro" --workdir="$folder" "$IMAGE" "$@"
"""


def test_a_job_of_slurm_with_pyxis(image: str, tmp_path: Path) -> None:
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/sh\necho localhost\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "IMAGE": image}
    env |= {"SLURM_JOB_NODELIST": "localhost", "SLURM_NNODES": "1", "SLURM_JOB_ID": "7"}
    done = subprocess.run(
        ["bash", PLACES / "slurm-pyxis.sbatch"],
        cwd=PLACES,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "torch-images: CUDA 13.0 cannot work" in done.stderr  # the start was there
    assert TRAINED in done.stdout


@pytest.mark.slow
def test_a_dev_container(image: str, tmp_path: Path) -> None:
    """By the tool behind VS Code. What it starts without a shell has the choice of a login shell."""
    if not shutil.which("npm"):
        pytest.skip("needs npm, for the Dev Container CLI")
    install = [
        "npm",
        "install",
        "--silent",
        "--prefix",
        str(tmp_path / "cli"),
        "@devcontainers/cli",
    ]
    subprocess.run(install, check=True, capture_output=True)
    project = tmp_path / "project"
    (project / ".devcontainer").mkdir(parents=True)
    told = json.loads((PLACES / "devcontainer.json").read_text()) | {"image": image}
    told["mounts"][0]["source"] = f"{TESTS}-dev"
    (project / ".devcontainer" / "devcontainer.json").write_text(json.dumps(told))
    tool = [str(tmp_path / "cli/node_modules/.bin/devcontainer")]
    folder = [f"--workspace-folder={project}"]
    up = subprocess.run([*tool, "up", *folder], capture_output=True, text=True, check=False)
    assert up.returncode == 0, up.stdout + up.stderr
    made = json.loads(up.stdout.splitlines()[-1])
    try:
        code = "import json, os, sys; print(json.dumps([sys.executable, dict(os.environ)]))"
        done = subprocess.run(
            [*tool, "exec", *folder, "python", "-c", code],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        executable, environment = json.loads(done.stdout.splitlines()[-1])
    finally:
        docker("rm", "--force", "--volumes", made["containerId"])
        docker("volume", "rm", f"{TESTS}-dev")
    assert (
        executable == told["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    )
    assert environment["TORCH_IMAGE_STARTED"] == "1"
    assert environment["HF_HOME"] == "/cache/huggingface"
