"""Users' own images: the examples of docs/own.md, from a list of requirements to a container."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv

from tests import readme
from tests.integration.newer_engine import newer_engine
from tests.integration.support import ROOT, Built, Registry, docker, invoke
from torch_images.config.own import LOCK
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace

EXAMPLES = ROOT / "docs" / "examples" / "own"


class Own:
    """A copy of an example, as in a clone of it. It is for 9.0, whose layers other tests have."""

    def __init__(self, name: str, folder: Path, workspace: Workspace) -> None:
        self.folder, self.workspace = folder, workspace
        shutil.copytree(EXAMPLES / name, folder)
        for path in (folder / "torch-images.toml", folder / "pyproject.toml"):
            if path.exists():
                path.write_text(path.read_text().replace('arch = ["12.0"]', 'arch = ["9.0"]'))

    def run(self, *words: str, **env: str) -> str:
        done = invoke(*words, env={"TORCH_IMAGES_PROJECT": str(self.folder), **env})
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def build(self, *words: str, **env: str) -> Built:
        """Lock and build; the checks pass, the example's own among them."""
        if not (self.folder / LOCK).exists():
            self.run("lock")
        text = self.run("build", "--json", *words, **env)
        [image] = json.loads(text)["images"]
        facts = (image.get(name, {}) for name in ("observed", "checks"))
        return Built(image["id"], image["digest"], tuple(image["tags"]), *facts)

    def uv_lock(self) -> None:
        """`uv lock`, as this machine reaches the index."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("UV_", "PIP_"))}
        settings = {k: v for k, v in self.workspace.network.for_uv().items() if v is not None}
        subprocess.run(
            [uv.find_uv_bin(), "lock", "--quiet"],
            cwd=self.folder,
            env={**env, **settings},
            check=True,
        )


@pytest.fixture
def own(
    request: pytest.FixtureRequest, workspace: Workspace, engine: Engine, tmp_path: Path
) -> Iterator[Own]:
    created = Own(request.param, tmp_path / "clone", workspace)
    yield created
    for tag in engine.tags():
        if tag.split(":")[0] in (request.param, "my-app", "transformers-app"):
            docker("rmi", "--force", tag)


@pytest.mark.parametrize("own", ["transformers"], indirect=True)
def test_requirements_become_an_image(own: Own, narrow: Built, engine: Engine) -> None:
    """By README's commands, on the layers of torch-cu130: only what is the project's own is new."""
    lock, build, run = readme.own_commands()
    for command in (lock, build):
        words = command.replace(readme.OWN, str(own.folder)).split()
        done = subprocess.run(
            [sys.executable, "-m", "torch_images", *words[1:]],  # as ./inv, which sets itself up
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    started = docker(*run.replace("--gpus all", "--network=none").split()[1:])
    assert started.returncode == 0, started.stdout
    assert "loss " in started.stdout
    built = engine.inspect("transformers-app:latest")
    report = own.folder / ".torch-images/build/reports" / f"{built.id.replace(':', '-')}.json"
    names = [check["name"] for check in json.loads(report.read_text())["checks"]]
    assert "own/test_app/test_trains" in names
    ours, plain = built.layers, engine.inspect(narrow.digest).layers
    layers = enumerate(zip(ours, plain, strict=False))
    shared = next(at for at, (mine, theirs) in layers if mine != theirs)
    assert len(plain) - shared < 5, "only the programs and the description differ"


@pytest.mark.slow
@pytest.mark.parametrize("own", ["transformers"], indirect=True)
def test_two_clones_on_two_engines_give_one_digest(
    own: Own, workspace: Workspace, tmp_path: Path
) -> None:
    built = own.build("--unverified")
    other = Own("transformers", tmp_path / "elsewhere", workspace)
    shutil.copy(own.folder / LOCK, other.folder)
    for path in other.folder.rglob("*"):
        os.utime(path, (1, 1))
    (other.folder / "notes.txt").write_text("of no image")
    with newer_engine() as newer:
        assert other.build("--unverified", **newer).digest == built.digest


@pytest.mark.slow
@pytest.mark.parametrize("own", ["uv"], indirect=True)
def test_project_of_uv(own: Own) -> None:
    """Its own package is installed, its dev group is not."""
    own.uv_lock()
    built = own.build()
    done = docker("run", "--rm", "--network=none", built.tags[-1])
    assert done.stdout.endswith("[[0, 1], [2, 3]]\n")


@pytest.mark.slow
@pytest.mark.parametrize("own", ["comfyui"], indirect=True)
def test_example(own: Own) -> None:
    built = own.build()
    assert built.checks["failed"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("own", ["pinned"], indirect=True)
def test_other_torch_is_refused_then_chosen(own: Own) -> None:
    done = invoke("lock", env={"TORCH_IMAGES_PROJECT": str(own.folder)})
    assert done.returncode == 3
    assert 'torch = "2.13.0"' in done.stderr
    table = own.folder / "torch-images.toml"
    table.write_text(f'{table.read_text()}torch = "2.13.0"\n')
    own.run("lock")
    assert '"name": "torch", "version": "2.13.0"' in (own.folder / LOCK).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("own", ["service"], indirect=True)
def test_push_and_reproduce_own_image(own: Own, tmp_path: Path) -> None:
    """A registry on loopback stands in for a public one."""
    registry = Registry(tmp_path / "registry")
    registry.start()
    try:
        assert own.build().checks["failed"] == 0
        sheet = json.loads(
            own.run("push", "service", "--registry", f"{registry.host}/me", "--json")
        )
        name = f"{registry.host}/me/service:latest"
        assert name in sheet["references"]
        verdict = json.loads(own.run("reproduce", name, "--json"))
        assert verdict["outcome"] == "identical"
    finally:
        registry.kill()


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("own", ["pinned"], indirect=True)
def test_bisect_over_the_locks(own: Own, tmp_path: Path) -> None:
    """The commands of docs/own.md find the release of torch with which a check begins to fail."""
    folder, table = own.folder, own.folder / "torch-images.toml"
    (folder / "requirements.txt").write_text("einops\n")
    (folder / "checks").mkdir()
    (folder / "checks/test_release.py").write_text(
        "import torch\ndef test_release():\n    assert torch.__version__ < '2.13'\n"
    )
    plain = table.read_text() + 'checks = "checks"\n'
    git(folder, "init", "--quiet")
    (folder / ".gitignore").write_text(".torch-images\n")
    for torch in ("2.11.0", "2.12.1", "2.13.0", "2.14.1"):
        table.write_text(f'{plain}torch = "{torch}"\n')
        own.run("lock")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", torch)
    program = tmp_path / "torch-images"
    program.write_text(f'#!/bin/sh\nexec {ROOT}/inv "$@"\n')
    program.chmod(0o755)
    [step] = [
        line for line in (ROOT / "docs/own.md").read_text().splitlines() if "bisect run" in line
    ]
    git(folder, "bisect", "start", "HEAD", "HEAD~3")
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TORCH_IMAGES_SETUP": ""}
    done = subprocess.run(
        step, shell=True, cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert "is the first bad commit" in done.stdout, done.stdout + done.stderr
    assert git(folder, "log", "-1", "--format=%s", "refs/bisect/bad").strip() == "2.13.0"
