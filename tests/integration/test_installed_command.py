"""`pip install .` gives the command `torch-images`, which needs no clone."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import uv

from tests.integration.support import DEFAULT, ROOT, invoke
from torch_images.project import LEDGER

PICK = ("pick", "--gpu", "RTX 5090", "--driver", "580")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from this tree as it is, with what tests have left in it."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], check=True)
    [path] = folder.glob("torch_images-*.whl")
    return path


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in an environment of its own, with the newest of all that it requires."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "--disable-pip-version-check", str(wheel)], check=True)
    return folder / "bin" / "torch-images"


def run(command: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(command), *words], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_wheel_has_the_projects_files_and_nothing_else(wheel: Path) -> None:
    names = {
        name.removeprefix("torch_images/project/") for name in zipfile.ZipFile(wheel).namelist()
    }
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True
    )
    tracked = set(listed.stdout.splitlines())
    metadata = {name for name in names if ".dist-info/" in name}
    assert names - metadata <= tracked
    folders = ("docker", "locks", "scripts", "site", "tests/image", "tests/container")
    parts = tuple(f"{name}/" for name in (*folders, "torch_images"))
    assert {name for name in tracked if name.startswith(parts)} <= names
    assert {"images.yaml", str(LEDGER)} <= names


def test_the_source_distribution_gives_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    build = [uv.find_uv_bin(), "build", "--quiet", "--out-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True)  # the wheel out of the source distribution
    [rebuilt] = tmp_path.glob("torch_images-*.whl")
    names = [zipfile.ZipFile(path).namelist() for path in (rebuilt, wheel)]
    assert sorted(names[0]) == sorted(names[1])


def test_own_image_needs_no_clone(command: Path, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("einops\n")
    for words in (("init", "--yes", "--name", "app"), ("lock",)):
        done = run(command, tmp_path, *words)
        assert done.returncode == 0, done.stderr
    done = run(command, tmp_path, "build", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "would build app\n" in done.stdout
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"requirements.txt", "torch-images.toml", "torch-images.lock"}


def test_output_equals_that_of_a_clone(command: Path, tmp_path: Path) -> None:
    for words in (("matrix", "--json"), (*PICK, "--json"), ("render", DEFAULT)):
        done = run(command, tmp_path, *words)
        assert (done.returncode, done.stderr) == (0, "")
        expected = invoke(*words).stdout
        # Advice names the command as it was called. A Dockerfile's comments are the image's.
        if words[0] == "pick":
            expected = expected.replace("invoke build", "torch-images build")
        assert done.stdout == expected
    assert "docker run --rm --gpus all torch-cu130:" in run(command, tmp_path, *PICK).stdout
    assert list(tmp_path.iterdir()) == []


def test_site_is_written(command: Path, tmp_path: Path) -> None:
    done = run(command, tmp_path, "site")
    assert (done.returncode, done.stderr) == (0, "")
    site = tmp_path / "build" / "site"
    assert (site / "filter.js").read_bytes() == (ROOT / "site" / "filter.js").read_bytes()


def test_contexts_are_those_of_a_clone(command: Path, tmp_path: Path) -> None:
    """So an image that it builds has the tag of one that a clone builds."""
    plan = ("build", "--dry-run")
    here, cloned = run(command, tmp_path, *plan), invoke(*plan)
    assert (here.returncode, here.stderr) == (0, "")
    tags = [line for line in cloned.stdout.splitlines() if line.startswith("  tags: ")]
    assert tags
    assert tags == [line for line in here.stdout.splitlines() if line.startswith("  tags: ")]
    assert f"--file={tmp_path}/build/.bake-XXXXXX/docker-bake.json" in here.stdout


def test_verbs_that_need_a_clone_are_refused(command: Path, tmp_path: Path) -> None:
    for verb in ("test", "docs"):
        done = run(command, tmp_path, verb)
        assert done.returncode == 2
        assert done.stderr == (
            f"error: '{verb}' needs a clone of the project; run it there, as ./inv\n"
        )
