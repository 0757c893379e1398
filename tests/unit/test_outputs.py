"""Folders that a user names: what is theirs stays as it is, and the refusal is one line."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.conftest import T130
from tests.unit.fakes import FakeRunner, invoke
from torch_images.build import bake, build
from torch_images.build.job import Job
from torch_images.build.plan import ImagePlan
from torch_images.build.render import Context, ContextFile, write_context
from torch_images.cli import bench_tasks, verb
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.host import outputs
from torch_images.host.network import Network
from torch_images.host.workspace import Workspace

CONTEXT = Context(
    id="x",
    files=(
        ContextFile(path="Dockerfile", data=b"FROM scratch\n"),
        ContextFile(path="build/step", data=b"true\n", executable=True),
    ),
)


def listing(folder: Path) -> dict[str, tuple[int, str]]:
    """All that is below a folder: kind, and content or target."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = stat.S_IFMT(path.lstat().st_mode)
        text = str(path.readlink()) if path.is_symlink() else ""
        text = text or (path.read_text(errors="replace") if stat.S_ISREG(kind) else "")
        found[str(path.relative_to(folder))] = (kind, text)
    return found


def write(folder: str | Path) -> None:
    write_context(CONTEXT, Path(folder), keep=True)


def edited(folder: Path) -> None:
    write(folder)
    (folder / "Dockerfile").write_text("FROM mine\n")


def added(folder: Path) -> None:
    write(folder)
    (folder / "build/notes").write_text("mine")


def empty_folder_added(folder: Path) -> None:
    write(folder)
    (folder / "mine").mkdir()


def mark_is_a_link(folder: Path) -> None:
    write(folder)
    (folder / outputs.MARK).rename(folder.parent / "list")
    (folder / outputs.MARK).symlink_to(folder.parent / "list")


def unmarked(folder: Path) -> None:
    write_context(CONTEXT, folder)


@pytest.mark.parametrize(
    ("prepare", "name"),
    [
        (edited, "Dockerfile"),
        (added, "build/notes"),
        (empty_folder_added, "mine"),
        (mark_is_a_link, r"\.torch-images"),
        (unmarked, "Dockerfile"),
    ],
)
def test_what_was_not_written_here_stays(
    tmp_path: Path, prepare: Callable[[Path], None], name: str
) -> None:
    folder = tmp_path / "out"
    prepare(folder)
    before = listing(tmp_path)
    with pytest.raises(
        UsageError, match=f"has {name}, which this program did not write; name a new"
    ):
        write(folder)
    assert listing(tmp_path) == before


def test_new_empty_and_written_here(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "deep"
    write(folder)
    first = listing(folder)
    assert set(first) == {"Dockerfile", "build", "build/step", outputs.MARK}
    digest = hashlib.sha256(b"FROM scratch\n").hexdigest()
    assert f"{digest}  Dockerfile\n" in (folder / outputs.MARK).read_text()
    (folder / "build/step").unlink()  # what is gone is no reason to refuse
    write(folder)
    assert listing(folder) == first
    less = Context(id="x", files=CONTEXT.files[:1])
    write_context(less, folder, keep=True)
    assert set(listing(folder)) == {"Dockerfile", outputs.MARK}
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "new"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["deep"]


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (".", "is the current folder, or above it"),
        ("file", "file is not a folder"),
        ("link", "link is a link"),
        ("sub", "sub has mine, which this program did not write"),
        ("/proc/torch-images", "/proc/torch-images cannot be written"),
    ],
)
def test_where_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, words: str
) -> None:
    here = tmp_path / "here"
    (here / "sub").mkdir(parents=True)
    (here / "sub/mine").write_text("mine")
    (here / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (here / "link").symlink_to("../empty")
    monkeypatch.chdir(here)
    before = listing(tmp_path)
    with pytest.raises(UsageError, match=words) as caught:
        write(named)
    assert "\n" not in str(caught.value)
    assert listing(tmp_path) == before


def test_what_fails_on_the_way_leaves_all_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "out")
    before = listing(tmp_path)
    evil = Context(id="x", files=(*CONTEXT.files, ContextFile(path="build", data=b"")))
    with pytest.raises(UsageError, match="cannot be written"):
        write_context(evil, tmp_path / "out", keep=True)
    assert listing(tmp_path) == before
    real = Path.rename

    def busy(path: Path, target: Path) -> Path:
        if path.name == "made":
            raise OSError(errno.EBUSY, "Device or resource busy")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", busy)
    with pytest.raises(UsageError, match="cannot be written: Device or resource busy"):
        write(tmp_path / "out")
    assert listing(tmp_path) == before


def test_wheels_are_refused_before_hours_of_compiling(
    config: Config, root: Path, tmp_path: Path
) -> None:
    (tmp_path / f"torch-{T130}-cp311-cp311-linux_x86_64.whl").write_text("mine")
    workspace = Workspace(root=root, cache=tmp_path / "c", network=Network(), locks=root / "locks")
    run = FakeRunner()
    job = Job(config=config, workspace=workspace, engine=cast("Any", None), run=run)
    with pytest.raises(UsageError, match=rf"has torch-{T130}-.*, which this program did not write"):
        build.export(job, cast("ImagePlan", None), tmp_path)
    assert run.commands == []


def test_wheels_of_several_images_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "dist"
    folder.mkdir()
    for name in ("a.whl", "b.whl", "a.whl"):
        outputs.claim(folder)
        made = tmp_path / "made"
        made.mkdir()
        (made / name).write_text(f"{name} {len(listing(folder))}")
        outputs.mark(folder, made)
        os.replace(made / name, folder / name)
        made.rmdir()
    assert set(listing(folder)) == {"a.whl", "b.whl", outputs.MARK}
    outputs.claim(folder)
    (folder / "c.whl").write_text("mine")
    with pytest.raises(UsageError, match=r"has c\.whl"):
        outputs.claim(folder)


def test_a_comma_in_a_path_is_no_option_of_the_exporter() -> None:
    assert bake.destination(Path('/a,type=x "b"')) == '"dest=/a,type=x ""b"""'


@pytest.fixture
def result(root: Path, tmp_path: Path) -> Path:
    """A result in a folder of its own."""
    folder = tmp_path / "bench"
    folder.mkdir()
    shutil.copy(root / "docs/benchmarks/h200/result.json", folder)
    return folder / "result.json"


@pytest.mark.parametrize(("name", "first"), [("README.md", False), ("notes.txt", True)])
def test_a_report_replaces_only_reports(result: Path, name: str, *, first: bool) -> None:
    """An edited README.md was replaced, and a folder of the user's was filled."""
    folder = result.parent / "report"
    if not first:
        bench_tasks._write(result.read_bytes(), folder)
        assert {"README.md", "result.json", "gemm.svg"} < set(listing(folder))
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("# mine\n")
    before = listing(result.parent)
    with pytest.raises(
        UsageError, match=f"has {name}, which this program did not write; name a new"
    ):
        bench_tasks._write(result.read_bytes(), folder)
    assert listing(result.parent) == before


def test_a_benchmark_is_refused_before_it_measures(
    root: Path, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SimpleNamespace(spec=SimpleNamespace(id="x"))
    monkeypatch.setattr(bench_tasks, "identify", lambda *_: ("x", plan))
    monkeypatch.setattr(verb, "engine", lambda: None)
    done = invoke(root, "bench", "x", "--output", str(result.parent))
    assert "has result.json, which this program did not write" in done.stderr
