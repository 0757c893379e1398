"""./inv: its environment, and folders whose names a shell would read as commands."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.unit.conftest import ROOT, T130
from tests.unit.fakes import PYTHON

NAME = 'it\'s a "$(touch ran)" `touch ran` & touch ran; #'
# Stands in for ruff, mypy and pytest, whose own work takes minutes.
STUB = """
import os, sys
with open("log", "a") as log:
    name = os.path.basename(__file__)
    print(name, *sys.argv[1:], sys.stdout.isatty(), os.getcwd(), sep="|", file=log)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project in such a folder, with stubs of the programs of `test`."""
    folder = tmp_path_factory.mktemp("project") / NAME
    for name in ("torch_images", "scripts", ".ci"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("inv", "locks/host.txt", ".venv/host.txt"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / name.replace(".venv", "locks"), folder / name)
    (folder / ".venv/bin").mkdir()
    (folder / ".venv/bin/python").symlink_to(sys.executable)
    for name in ("ruff", "mypy", "pytest"):
        (folder / f"{name}.py").write_text(STUB)
    return folder


@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_inv_leaves_an_environment_of_somebody_else(root: Path, tmp_path: Path, kind: str) -> None:
    shutil.copy(root / "inv", tmp_path)
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks/host.txt").write_text("x")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/pyvenv.cfg").write_text("mine")
    if kind == "link":
        (tmp_path / ".venv").symlink_to("mine")
    elif kind == "folder":
        shutil.copytree(tmp_path / "mine", tmp_path / ".venv")
    else:
        (tmp_path / ".venv").write_text("mine")
    done = subprocess.run([tmp_path / "inv"], capture_output=True, text=True, check=False)
    assert done.returncode
    assert done.stderr == "setup: .venv was not created by ./inv; move or remove it\n"
    kept = tmp_path / ".venv"
    assert (kept if kind == "file" else kept / "pyvenv.cfg").read_text() == "mine"


def test_inv_in_a_folder_of_somebody_else_is_one_line(root: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        shutil.copy(root / "inv", folder)
        Path(folder, "locks").mkdir()
        Path(folder, "locks/host.txt").write_text("x")
        Path(folder).chmod(0o555)
        other = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        command = [f"{folder}/inv", "matrix"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **other)  # type: ignore[call-overload]
        assert done.returncode == 1
        begin = f"setup: {folder} cannot be written, so the Python environment cannot be created"
        assert done.stderr == f"{begin} there; use a clone of your own\n"


def test_a_clone_with_autocrlf_has_no_crlf(root: Path, tmp_path: Path) -> None:
    """Else `env` looks for a program of that name and a carriage return."""
    git = ("git", "-c", "core.autocrlf=true", "-c", "user.name=x", "-c", "user.email=x@x")
    source, clone = tmp_path / "made", tmp_path / "clone"
    source.mkdir()
    for name in (".gitattributes", "inv"):
        shutil.copy(root / name, source)
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["commit", "-qm", "x"],
        ["clone", "-q", ".", clone],
    ):
        subprocess.run([*git, *words], cwd=source, check=True)
    assert b"\r" not in (clone / "inv").read_bytes()


def test_inv_takes_up_its_own(root: Path, tmp_path: Path) -> None:
    """One that was interrupted is made again; here with a Python whose pip fails."""
    shutil.copy(root / "inv", tmp_path)
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks/host.txt").write_text("x")
    (tmp_path / ".venv/half").mkdir(parents=True)
    (tmp_path / ".venv/torch-images").touch()
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python3"
    python.write_text(
        '#!/bin/sh\n[ "$1" = -c ] && exit 0\nls .venv >found\n'
        "mkdir .venv/bin\nprintf '#!/bin/sh\\nexit 1\\n' >.venv/bin/python\n"
        "chmod +x .venv/bin/python\n"
    )
    python.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run([tmp_path / "inv"], env=env, capture_output=True, text=True, check=False)
    assert "setup: the Python environment could not be created; check network" in done.stderr
    assert not (tmp_path / ".venv").exists()
    # What was half made is gone before, and the mark is there from the start.
    assert (tmp_path / "found").read_text() == "torch-images\n"


def test_paths_are_relative_to_where_the_user_stands(project: Path, tmp_path: Path) -> None:
    """And no module of that folder is imported."""
    (tmp_path / "requests.py").write_text("raise SystemExit('a module of the user')\n")
    (tmp_path / "torch_images").mkdir()
    inv = str(project / "inv")
    words = ["render", f"cu130-torch{T130}-trixie-runtime", "--output", "context"]
    for name in ("images.yaml", "docker", "locks"):
        if not (project / name).exists():
            (project / name).symlink_to(ROOT / name)
    packages = str(Path(pytest.__file__).parents[1])
    env = {**os.environ, "TORCH_IMAGES_CONFIG": str(ROOT / "images.yaml"), "PYTHONPATH": packages}
    done = subprocess.run(
        [inv, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "context" / "Dockerfile").exists()
    done = subprocess.run(
        [inv, "render"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert f"see `{shlex.quote(inv)} matrix`" in done.stderr


# What `python3 -m venv` makes here: a pip that notes what it installs, and fails where FAILS says so.
def test_inv_installs_what_the_task_needs(root: Path, tmp_path: Path) -> None:
    """Tests and plots need more than the other tasks, which keep working where that fails."""
    shutil.copy(root / "inv", tmp_path)
    for folder in ("locks", "bin"):
        (tmp_path / folder).mkdir()
    for name in ("host", "host-dev"):
        (tmp_path / f"locks/{name}.txt").write_text(name)
    python = tmp_path / "bin/python3"
    python.write_text(PYTHON)
    python.chmod(0o755)

    def inv(*words: str, fails: str = "") -> int:
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "FAILS": fails}
        return subprocess.run([tmp_path / "inv", *words], env=env, check=False).returncode

    assert inv("pick", "H100", "580") == inv("matrix") == 0
    assert inv("bench", "--help") == inv("test", "-h") == inv("help", "test") == 0
    assert inv("test", "--fast", fails="uv")
    assert inv("matrix") == 0
    assert inv("--yes", "test", "--fast") == inv("bench-compare", "x", "y") == inv("pick") == 0
    used = (line.split() for line in (tmp_path / "used").read_text().splitlines())
    assert [words[1] for words in used if words[0] == "uv"] == [
        "locks/host.txt",
        "locks/host-dev.txt",
        "locks/host-dev.txt",
    ]
    (tmp_path / "locks/host.txt").write_text("newer")
    assert inv("matrix") == 0
    assert not (tmp_path / ".venv/host-dev.txt").exists()
