"""torch-images.lock: `lock` in the folder of a user's own image, on stand-in indexes."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.fakes import run_verb
from tests.unit.test_lock_adds import Project, locked
from tests.wheels import StandIn, index, make_wheel
from torch_images.build.plan import ImagePlan, lock_image, plan_image
from torch_images.config.choose import choose_own
from torch_images.config.load import load_config
from torch_images.config.own import FILE, LOCK, load
from torch_images.config.types import Config
from torch_images.locks.facts import with_facts
from torch_images.locks.own import read

__all__ = ["locked"]  # a fixture
TABLE = 'name = "app"\nrequirements = "requirements.txt"\n'


class Mine:
    """A user's project, and the index that its requirements are resolved with."""

    def __init__(self, project: Project, folder: Path) -> None:
        self.project, self.folder = project, folder
        self.wheels: list[StandIn] = [*project.wheels]
        self.yanked: tuple[str, ...] = ()
        (folder / FILE).write_text(TABLE)

    def add(self, name: str, version: str, *requires: str) -> StandIn:
        """Put a wheel into the index."""
        self.wheels.append(make_wheel(self.folder.parent, name, version, requires=requires))
        return self.wheels[-1]

    def require(self, *lines: str) -> None:
        (self.folder / "requirements.txt").write_text("".join(f"{line}\n" for line in lines))

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        pages = index(self.wheels)
        for name in self.yanked:
            page = pages[f"/simple/{name}/"]
            pages[f"/simple/{name}/"] = page.replace(b"<a ", b'<a data-yanked="a leak" ')
        project = {"TORCH_IMAGES_PROJECT": str(self.folder), **more}
        return run_verb(self.project.root, self.project.config, pages, *words, **project)[0]

    def lock(self, *words: str) -> dict[str, str]:
        """Lock, and return the versions of what the project adds."""
        done = self.run("lock", *words)
        assert done.returncode == 0, done.stderr
        wheels = read(self.config.own).lock.own_wheels  # type: ignore[arg-type]
        return wheels.versions() if wheels else {}

    def refused(self) -> str:
        before = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        done = self.run("lock")
        assert done.returncode == 3, done.stderr
        assert {path.name: path.read_bytes() for path in self.folder.iterdir()} == before
        return done.stderr.splitlines()[-1]

    @property
    def config(self) -> Config:
        locks = self.project.folder / "locks"
        config = with_facts(load_config(self.project.config), locks)
        return replace(config, own=load(self.folder / FILE))

    def plan(self) -> ImagePlan:
        config = self.config
        image = lock_image(config, choose_own(config), self.project.folder / "locks")
        return plan_image(config, image, self.project.root)


@pytest.fixture
def mine(locked: Project, tmp_path: Path) -> Mine:
    folder = tmp_path / "app"
    folder.mkdir()
    created = Mine(locked, folder)
    created.add("einops", "0.8.0")
    created.require("einops")
    return created


def test_lock_has_what_the_project_adds(mine: Mine) -> None:
    mine.add("rich", "14.0", "markdown")
    mine.add("markdown", "3.0")
    mine.require("einops", "rich; python_version > '3'", "absent; python_version < '3'")
    before = mine.project.locks()
    assert mine.lock() == {"einops": "0.8.0", "rich": "14.0", "markdown": "3.0"}
    assert mine.project.locks() == before
    plan = mine.plan()
    [pins] = [file.data for file in plan.context.files if file.path == "wheels/own.txt"]
    assert b"einops==0.8.0 --hash=" in pins
    assert " AS own\n" in plan.context.dockerfile


def test_second_lock_changes_nothing(mine: Mine) -> None:
    mine.lock()
    before = (mine.folder / LOCK).read_bytes()
    mine.add("einops", "0.9.0")
    assert mine.lock() == {"einops": "0.8.0"}
    assert (mine.folder / LOCK).read_bytes() == before


def test_renewed_lock_takes_the_newest(mine: Mine) -> None:
    mine.lock()
    mine.add("einops", "0.9.0")
    assert mine.lock("--renew") == {"einops": "0.9.0"}


def test_torch_stays_and_other_packages_move(mine: Mine) -> None:
    """Uv alone would take the newest Triton."""
    mine.add("triton", "3.9.1")
    mine.require("torch", "einops")
    assert mine.lock() == {"einops": "0.8.0"}


def test_package_of_the_image_is_replaced_where_the_project_needs_it(mine: Mine) -> None:
    other = copied(mine)
    other.edit(lambda document: document.update(packages=["numpy"]))
    other.wheels.append(mine.add("numpy", "2.0"))
    done = other.lock()
    assert done.returncode == 0, done.stderr
    mine.add("numpy", "1.9")
    mine.require("einops", "numpy<2")
    assert mine.lock() == {"einops": "0.8.0", "numpy": "1.9"}
    versions = [wheel.version for wheel in mine.plan().lock.all_wheels if wheel.name == "numpy"]
    assert versions == ["1.9"]


def copied(mine: Mine) -> Project:
    """The project's own copy of images.yaml and locks, to change."""
    folder = mine.folder.parent / "other"
    shutil.copytree(mine.project.folder, folder)
    mine.project = Project(mine.project.root, folder, [*mine.project.wheels])
    return mine.project


def test_image_that_the_project_has_not_locked(mine: Mine) -> None:
    """It is resolved into the user's lock alone, and stays there."""
    more = {"description": "d", "wheels": ["rich"]}
    copied(mine).edit(lambda document: document["variants"].update(more=more))
    (mine.folder / FILE).write_text(TABLE + 'variant = "more"\n')
    mine.add("rich", "14.0")
    before = mine.project.locks()
    assert mine.lock() == {"einops": "0.8.0"}
    mine.add("rich", "15.0")
    mine.lock()
    lock = mine.plan().lock
    assert lock.extra_wheels
    assert lock.extra_wheels.versions() == {"rich": "14.0"}
    assert mine.project.locks() == before


def test_torch_that_nobody_has_looked_into_is_refused(mine: Mine) -> None:
    for path in (copied(mine).folder / "locks").glob("release-*"):
        path.unlink()
    done = mine.run("lock")
    assert done.returncode == 2
    assert "torch 2.15.0 with Python 3.13" in done.stderr


def test_other_torch_is_refused(mine: Mine) -> None:
    mine.require("torch==2.13.0")
    error = mine.refused()
    assert "torch==2.13.0" in error
    assert "2.15.0" in error


def test_package_that_needs_another_torch_is_refused(mine: Mine) -> None:
    mine.add("torch", "2.13.0")
    mine.add("xformers", "1.0", "torch==2.13.0")
    mine.require("xformers")
    error = mine.refused()
    assert "torch 2.13.0" in error
    assert "xformers" in error


def test_constraint_holds(mine: Mine) -> None:
    mine.add("einops", "0.9.0")
    (mine.folder / "limits.txt").write_text("einops<0.9\n")
    mine.require("-c limits.txt", "einops")
    assert mine.lock() == {"einops": "0.8.0"}


def test_hash_of_the_requirement_holds(mine: Mine) -> None:
    sha256 = mine.add("rich", "14.0").locked.sha256
    mine.require(f"rich==14.0 --hash=sha256:{sha256}")
    assert mine.lock() == {"rich": "14.0"}
    mine.require(f"rich==14.0 --hash=sha256:{'0' * 64}")
    assert "rich-14.0" in mine.refused()


def test_withdrawn_release_gives_a_warning(mine: Mine) -> None:
    mine.lock()
    mine.yanked = ("einops",)
    done = mine.run("lock")
    assert done.returncode == 0
    assert "`einops==0.8.0` is yanked" in done.stderr
    assert "a leak" in done.stderr


def test_absent_package_is_refused(mine: Mine) -> None:
    mine.lock()  # which stays
    mine.require("absent")
    assert "absent" in mine.refused()


def test_package_without_a_wheel_is_refused(mine: Mine) -> None:
    locked = mine.add("ext", "1.0").locked
    mine.wheels[-1] = StandIn(replace(locked, filename="ext-1.0.tar.gz"), b"sources")
    mine.require("ext")
    assert "ext has no wheel" in mine.refused()


def test_extras_of_a_plain_file_are_refused(mine: Mine) -> None:
    (mine.folder / FILE).write_text(TABLE + 'extras = ["serve"]\n')
    assert "extras" in mine.refused()


UV_LOCK = """\
version = 1
revision = 3
requires-python = "{python}"

[[package]]
name = "app"
version = "1.0"
source = {{ virtual = "." }}
dependencies = [{{ name = "einops" }}]

[package.dev-dependencies]
dev = [{{ name = "pytest" }}]

[package.metadata]
requires-dist = [{{ name = "einops" }}]

[package.metadata.requires-dev]
dev = [{{ name = "pytest" }}]

[[package]]
name = "einops"
version = "0.8.0"
source = {{ registry = "https://example.org/simple" }}
wheels = [{{ url = "https://example.org/{file}", hash = "sha256:{sha256}", size = 1 }}]

[[package]]
name = "pytest"
version = "8.0"
source = {{ registry = "https://example.org/simple" }}
wheels = [{{ url = "https://example.org/pytest-8.0-py3-none-any.whl", hash = "sha256:{sha256}" }}]
"""
PROJECT = """\
[project]
name = "app"
version = "1.0"
requires-python = ">=3.11"
dependencies = ["einops"]
[dependency-groups]
dev = ["pytest"]
"""


def with_uv(mine: Mine, python: str = ">=3.11") -> None:
    wheel = mine.wheels[-1].locked
    text = UV_LOCK.format(python=python, file=wheel.filename, sha256=wheel.sha256)
    (mine.folder / "uv.lock").write_text(text)
    (mine.folder / "pyproject.toml").write_text(PROJECT)
    (mine.folder / FILE).write_text('name = "app"\nrequirements = "uv.lock"\n')


def test_uv_lock_without_its_dev_group(mine: Mine) -> None:
    with_uv(mine)
    mine.add("einops", "0.9.0")
    assert mine.lock() == {"einops": "0.8.0"}


def test_uv_lock_with_a_group(mine: Mine) -> None:
    with_uv(mine)
    (mine.folder / FILE).write_text('name = "app"\nrequirements = "uv.lock"\ngroups = ["dev"]\n')
    assert "pytest" in mine.refused()  # whose hash is no file's of the index


def test_uv_lock_of_another_python(mine: Mine) -> None:
    with_uv(mine, python="<3.13,>=3.11")
    assert "Python" in mine.refused()


PYLOCK = """\
lock-version = "1.0"
requires-python = "{python}"
created-by = "t"
[[packages]]
name = "einops"
version = "0.8.0"
wheels = [{{ url = "https://example.org/{file}", hashes = {{ sha256 = "{sha256}" }} }}]
"""


@pytest.mark.parametrize(
    ("python", "change", "noun"),
    [
        (">=3.11", ("", ""), ""),
        ("<3.13", ("", ""), "Python"),
        (">=3.11", ("py3-none-any", "cp39-cp39-win_amd64"), "einops"),
        (">=3.11", ("wheels = [", "sdist = ["), "pylock.toml"),
    ],
)
def test_pylock(mine: Mine, python: str, change: tuple[str, str], noun: str) -> None:
    wheel = mine.wheels[-1].locked
    text = PYLOCK.format(python=python, file=wheel.filename, sha256=wheel.sha256)
    (mine.folder / "pylock.toml").write_text(text.replace(*change) if change[0] else text)
    (mine.folder / FILE).write_text('name = "app"\nrequirements = "pylock.toml"\n')
    if noun:
        assert noun in mine.refused()
    else:
        assert mine.lock() == {"einops": "0.8.0"}


@pytest.mark.parametrize(
    "words",
    [
        ("lock", "--check"),
        ("lock", "--select", "*"),
        ("build", "--stale"),
        ("build", "--cuda", "13.0"),
        ("verify", "app", "--gpus", "all", "--record"),
    ],
)
def test_option_for_the_images_of_the_project_is_refused(
    mine: Mine, words: tuple[str, ...]
) -> None:
    """So no verb changes locks/ or the ledger there."""
    mine.lock()
    done = mine.run(*words)
    assert done.returncode == 2, done.stderr
    option = next(word for word in reversed(words) if word.startswith("--"))
    assert option in done.stderr


def test_init_writes_a_table_once(mine: Mine) -> None:
    (mine.folder / FILE).unlink()
    done = mine.run("init", "--yes")
    assert done.returncode == 0, done.stderr
    own = load(mine.folder / FILE)
    assert (own.name, own.requirements) == ("app", "requirements.txt")
    assert f"--project {mine.folder} build`" in done.stdout
    again = mine.run("init", "--yes")
    assert again.returncode == 2
    assert load(mine.folder / FILE) == own


def test_init_says_why_it_chose_this_cuda(mine: Mine) -> None:
    (mine.folder / FILE).unlink()
    assert mine.run("init", "--gpu", "H100").returncode == 2  # a newer CUDA than its driver has
    done = mine.run("init", "--gpu", "H100", "--driver", "580.95.05")
    assert done.returncode == 0, done.stderr
    assert "driver 580.95.05" in done.stdout


def test_project_without_a_table(mine: Mine) -> None:
    (mine.folder / FILE).unlink()
    done = mine.run("lock")
    assert done.returncode == 2
    assert FILE in done.stderr
