"""`lock` adds what is missing, all of it or nothing: the verb, on stand-in indexes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.fakes import run_verb
from tests.unit.test_facts import torch
from tests.unit.test_newer import small
from tests.wheels import StandIn, index, make_wheel

RUNTIME = "cu130-torch2.15.0-trixie-runtime"
PLAIN = "wheel-cu130-torch2.15.0-py313"


@dataclass
class Project:
    """An images.yaml, its locks, and the index that they are resolved with."""

    root: Path
    folder: Path
    wheels: list[StandIn] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.folder / "images.yaml"

    def add(self, name: str, version: str) -> None:
        """Put a wheel into the index."""
        self.wheels.append(make_wheel(self.folder, name, version))

    def edit(self, change: Callable[[dict[str, Any]], object]) -> None:
        document = yaml.safe_load(self.config.read_text())
        change(document)
        self.config.write_text(yaml.safe_dump(document, default_flow_style=None, sort_keys=False))

    def variant(self, name: str, *pins: str, torch: str = "2.15", **more: Any) -> None:
        """Add a variant with an extra of the same name to images.yaml and its catalogue."""

        def change(document: dict[str, Any]) -> None:
            extra = {"description": "d", "pins": {torch: [*pins]}, **more}
            document.setdefault("extras", {})[name] = extra
            document["variants"][name] = {"description": "d", "extras": [name]}
            document["catalogue"].append({"variant": name})

        self.edit(change)

    def locks(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in (self.folder / "locks").iterdir()}

    def lock(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_verb(self.root, self.config, index(self.wheels), "lock", *words)[0]


def whole_torch(folder: Path, version: str) -> StandIn:
    """A torch that requires what an image must have."""
    return torch(folder, version, "cuda-toolkit==13.0.1", "triton")


@pytest.fixture(scope="module")
def locked(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One image for each platform, with all its locks."""
    folder = tmp_path_factory.mktemp("locked")
    small(root, folder)
    for path in (root / "locks").iterdir():
        if path.name.startswith(("base-trixie.", "base-trixie-arm64.", "tools-")):
            shutil.copy(path, folder / "locks")
    created = Project(root, folder, [whole_torch(folder, "2.15.0")])
    created.add("cuda-toolkit", "13.0.1")
    created.add("triton", "3.9.0")
    done = created.lock()
    assert done.returncode == 0, done.stderr
    return created


@pytest.fixture
def project(locked: Project, tmp_path: Path) -> Project:
    """A copy of the project, for which the index has a newer Triton by now."""
    shutil.copytree(locked.folder, tmp_path, dirs_exist_ok=True)
    created = Project(locked.root, tmp_path, [*locked.wheels])
    created.add("triton", "3.9.1")
    return created


def test_lock_keeps_existing_locks(project: Project) -> None:
    before = project.locks()
    done = project.lock()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "nothing to add: locks/ has all that images.yaml asks for\n"
    assert project.locks() == before


def test_a_new_variant_adds_a_file_and_changes_no_image(project: Project) -> None:
    project.add("ext", "1.0")
    project.add("ext", "2.0")
    project.variant("own", "ext==1.0")
    before = project.locks()
    done = project.lock()
    assert done.returncode == 0, done.stderr
    assert "changes" not in done.stdout
    after = project.locks()
    assert after.keys() - before.keys() == {f"{PLAIN}-own.json"}
    assert {name: after[name] for name in before} == before
    assert "ext==1.0" in after[f"{PLAIN}-own.json"]


def test_lock_select_image_adds_only_its_locks(project: Project) -> None:
    """By the command that its error names; the catalogue's other new image waits."""
    project.add("ext", "1.0")
    project.variant("own", "ext==1.0")
    project.variant("another", "absent==1")
    before = project.locks()
    done = project.lock("--select", "cu130-torch2.15.0-trixie-own")
    assert done.returncode == 0, done.stderr
    assert project.locks().keys() - before.keys() == {f"{PLAIN}-own.json"}


@pytest.mark.parametrize("words", [(), ("--select", f"{PLAIN}*,release-*")])
def test_failed_lock_changes_nothing(project: Project, words: tuple[str, ...]) -> None:
    """Though its first steps went well."""
    project.variant("own", "absent==1")
    before = project.locks()
    done = project.lock(*words)
    assert (done.returncode, done.stdout) == (3, "")
    assert "absent was not found" in done.stderr.splitlines()[-1]
    assert project.locks() == before
    assert not list((project.folder / "cache").glob(".lock-*"))


def test_lock_select_lock_resolves_it_anew(project: Project) -> None:
    """The images that this changes are named before it is written."""
    done = project.lock("--select", PLAIN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{RUNTIME}: changes", f"{PLAIN}: changed"]
    assert '"triton", "version": "3.9.1"' in project.locks()[f"{PLAIN}.json"]
    assert '"triton", "version": "3.9.0"' in project.locks()[f"{PLAIN}-arm64.json"]


def test_a_variant_follows_a_plain_lock_that_was_renewed(project: Project) -> None:
    """Its own lock was resolved with other versions than the image would have."""
    project.variant("own", "ext==1.0")
    project.add("ext", "1.0")
    assert project.lock().returncode == 0
    done = project.lock("--select", PLAIN)
    assert done.stdout.splitlines()[:2] == [
        f"{RUNTIME}: changes",
        "cu130-torch2.15.0-trixie-own: changes",
    ]
    assert project.lock().stdout.startswith("cu130-torch2.15.0-trixie-own: changes\n")
    assert '"triton", "version": "3.9.1"' in project.locks()[f"{PLAIN}-own.json"]
    assert project.lock().stdout.startswith("nothing to add")


def test_lock_patch_release_of_an_extra(project: Project) -> None:
    """As vLLM does, which requires one torch exactly; no other image gets it."""
    project.wheels.append(whole_torch(project.folder, "2.14.9"))
    project.add("ext", "1.0")
    project.variant("own", "ext==1.0", torch="2.14.9")
    project.edit(lambda d: d["extras"]["own"].update(torch={"13.0": ["2.14.9"]}))
    done = project.lock()
    assert done.returncode == 0, done.stderr
    locks = project.locks()
    assert "ext==1.0" in locks["wheel-cu130-torch2.14.9-py313-own.json"]
    assert f"{PLAIN}-own.json" not in locks
