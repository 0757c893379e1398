"""The examples of docs/places.md, run as users run them, without a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import requests
import yaml

from tests.integration.support import (
    ROOT,
    TESTS,
    Built,
    Registry,
    docker,
    unpacked,
)
from torch_images.host.engine import Engine

PLACES = ROOT / "docs" / "examples" / "places"
TRAINED = "processes on cpu, loss 0."


@pytest.fixture(scope="module")
def image(built: Built) -> str:
    return built.tags[0]


def compose_command(folder: Path) -> list[str]:
    """Docker Compose 2: this machine's, or else Debian's, unpacked into a folder."""
    installed = ["docker", "compose"]
    probe = subprocess.run([*installed, "version"], check=False, capture_output=True)
    if probe.returncode == 0:
        return installed
    # bookworm's own is version 1; scripts/setup-engine has made trixie known there.
    suite = "/trixie" if "bookworm" in Path("/etc/os-release").read_text() else ""
    program = unpacked(folder, f"docker-compose{suite}")
    return [str(program / "usr" / "libexec" / "docker" / "cli-plugins" / "docker-compose")]


def test_compose(image: str, tmp_path: Path) -> None:
    """Docker Compose reads the file as it is, and runs it without GPUs."""
    (tmp_path / "compose").mkdir()
    for name in ("compose.yaml", "train.py"):
        shutil.copy(PLACES / name, tmp_path)
    (tmp_path / "here.yaml").write_text(
        f"services: {{train: {{image: '{image}', deploy: !reset null, network_mode: bridge}}}}"
    )
    command = [*compose_command(tmp_path / "compose"), f"--project-name={TESTS}"]
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


def test_kubernetes_job_without_rights(image: str) -> None:
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


@pytest.mark.slow
def test_dev_container(image: str, tmp_path: Path) -> None:
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
    spec = json.loads((PLACES / "devcontainer.json").read_text()) | {"image": image}
    spec["mounts"][0]["source"] = f"{TESTS}-dev"
    (project / ".devcontainer" / "devcontainer.json").write_text(json.dumps(spec))
    tool = [str(tmp_path / "cli/node_modules/.bin/devcontainer")]
    folder = [f"--workspace-folder={project}"]
    up = subprocess.run([*tool, "up", *folder], capture_output=True, text=True, check=False)
    assert up.returncode == 0, up.stdout + up.stderr
    result = json.loads(up.stdout.splitlines()[-1])
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
        docker("rm", "--force", "--volumes", result["containerId"])
        docker("volume", "rm", f"{TESTS}-dev")
    assert (
        executable == spec["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    )
    assert environment["TORCH_IMAGE_STARTED"] == "1"
    assert environment["HF_HOME"] == "/cache/huggingface"


# Docker without the GPUs that a script asks for, and with an image of this machine.
WITHOUT_GPUS = """#!/bin/bash
words=()
for word; do
    case $word in
        --gpus | all) ;;
        torch-cu*) words+=("$IMAGE") ;;
        *) words+=("$word") ;;
    esac
done
exec {docker} "${{words[@]}}"
"""


@pytest.fixture
def without_gpus(image: str, tmp_path: Path) -> dict[str, str]:
    """The environment of a script, in which `docker` gives no GPUs."""
    (tmp_path / "docker").write_text(WITHOUT_GPUS.format(docker=shutil.which("docker")))
    (tmp_path / "docker").chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "IMAGE": image}


def test_two_nodes(without_gpus: dict[str, str]) -> None:
    """Both are this machine. The two scripts start at once, and find each other."""
    command = [str(PLACES / "two-nodes.sh"), "127.0.0.1"]
    nodes = [
        subprocess.Popen(
            [*command, rank],
            cwd=PLACES,
            env=without_gpus,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ("0", "1")
    ]
    outputs = [node.communicate()[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    processes = 2 * len(os.sched_getaffinity(0))
    [output] = [text for text in outputs if TRAINED in text]
    assert f"{processes} {TRAINED}" in output


@pytest.mark.slow  # it pushes a whole image
def test_github_job_builds_and_pushes(narrow: Built, engine: Engine, tmp_path: Path) -> None:
    """Its commands, in the shell of GitHub's runners; a registry on loopback stands in for ghcr.io."""
    job = yaml.safe_load((PLACES / "github-job.yaml").read_text())["jobs"]["image"]
    server = Registry(tmp_path / "registry", password=True)
    server.start()
    variables = {"GITHUB_ACTOR": "ci", "GITHUB_REPOSITORY_OWNER": "Owner", "PASSWORD": "secret"}
    env = {**os.environ, **variables, "DOCKER_CONFIG": str(tmp_path / "docker")}
    try:
        for step in (step["run"] for step in job["steps"] if "run" in step):
            script = step.replace("ghcr.io", server.host)
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
            done = subprocess.run(
                command, cwd=ROOT, env=env, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr[-3000:]
        pushed = requests.head(
            f"http://{server.host}/v2/owner/torch-cu130/manifests/{narrow.digest}",
            auth=("ci", "secret"),
            headers={"Accept": "application/vnd.oci.image.manifest.v1+json"},
            timeout=60,
        )
    finally:
        server.remove()
        for tag in engine.tags(server.host):
            engine.untag(tag)
    assert pushed.status_code == requests.codes.ok
