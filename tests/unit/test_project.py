"""Where an installed command finds the project's files, and what it leaves alone there."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.conftest import ROOT, T130

START = "from torch_images.cli.program import main; main()"


@pytest.fixture
def site(root: Path, tmp_path: Path) -> Path:
    """The folder of an environment's packages, with this project as its wheel unpacks there.

    Another distribution has a tasks.py in the same folder, as some do.
    """
    site = tmp_path / "site-packages"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "torch_images", site / "torch_images", ignore=ignore)
    build = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    for name, packed in build["targets"]["wheel"]["force-include"].items():
        source, place = root / name, site / packed
        place.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, place)
    metadata = site / "torch_images-0.1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torch-images\nVersion: 0.1.0\n")
    (site / "tasks.py").touch()
    return site


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def project(file: Path) -> ModuleType:
    """The module torch_images/project.py as it lies in `file`."""
    spec = importlib.util.spec_from_file_location("installed_project", file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(site: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(site), "NO_COLOR": "1", "UV_OFFLINE": "1"}
    env = {name: value for name, value in env.items() if not name.startswith("TORCH_IMAGES_")}
    command = [sys.executable, "-c", START, *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_a_tasks_py_of_somebody_elses_makes_no_clone(site: Path, folder: Path) -> None:
    installed = project(site / "torch_images" / "project.py")
    assert installed.project_root() == site / "torch_images" / "project"
    assert not installed.is_clone(installed.project_root())
    assert installed.output_root(installed.project_root()) == folder
    done = run(site, folder, "matrix", "--select", f"cu130-sm120-torch{T130}-trixie-runtime")
    assert (done.returncode, done.stderr) == (0, "")
    assert run(site, folder, "docs").returncode == 2


def test_locks_of_ones_own_are_not_the_packages(site: Path, tmp_path: Path) -> None:
    clone = project(ROOT / "torch_images" / "project.py")
    assert (clone.project_root(), clone.output_root(ROOT), clone.is_clone(ROOT)) == (
        ROOT,
        ROOT,
        True,
    )
    assert not clone.is_packaged(clone.locks_folder(ROOT, {}))
    installed = project(site / "torch_images" / "project.py")
    root = installed.project_root()
    assert installed.is_packaged(installed.locks_folder(root, {}))
    for variable, value in (
        ("TORCH_IMAGES_LOCKS", tmp_path / "locks"),
        ("TORCH_IMAGES_CONFIG", tmp_path / "mine.yaml"),
    ):
        assert not installed.is_packaged(installed.locks_folder(root, {variable: str(value)}))
    (tmp_path / "link").symlink_to(root / "locks")
    linked = installed.locks_folder(root, {"TORCH_IMAGES_LOCKS": str(tmp_path / "link")})
    assert installed.is_packaged(linked)


def test_an_installed_command_does_not_write_the_packages_locks(site: Path, folder: Path) -> None:
    locks = site / "torch_images" / "project" / "locks"
    (locks / "tools-build.json").unlink()  # what is missing is what `lock` would write
    before = sorted(locks.iterdir())
    done = run(site, folder, "lock", "--select", "tools-build")
    assert done.returncode == 2
    assert done.stderr == (
        "error: the locks of the installed package are read-only; name others with "
        "--config or TORCH_IMAGES_LOCKS, or run this in a clone, as ./inv\n"
    )
    assert sorted(locks.iterdir()) == before
    assert list(folder.iterdir()) == []
