"""Folders that a user names: what is theirs stays as it is, and the refusal is one line."""

from __future__ import annotations

import errno
import hashlib
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.conftest import T130
from tests.unit.fakes import FakeRunner, invoke, workspace_of
from torch_images.build import bake, build
from torch_images.build.context_file import ContextFile
from torch_images.build.job import Job
from torch_images.build.plan import ImagePlan
from torch_images.build.render import Context, write_context
from torch_images.cli import bench_tasks, verb
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.host import outputs

CONTEXT = Context(
    id="x",
    files=(
        ContextFile(path="Dockerfile", data=b"FROM scratch\n"),
        ContextFile(path="build/step", data=b"true\n", executable=True),
    ),
)


def listing(folder: Path) -> dict[str, tuple[int, str]]:
    """All that is below a folder: kind, and content or target."""
    entries = {}
    for path in sorted(folder.rglob("*")):
        kind = stat.S_IFMT(path.lstat().st_mode)
        text = str(path.readlink()) if path.is_symlink() else ""
        text = text or (path.read_text(errors="replace") if stat.S_ISREG(kind) else "")
        entries[str(path.relative_to(folder))] = (kind, text)
    return entries


def write(folder: str | Path, context: Context = CONTEXT) -> None:
    with outputs.filling(Path(folder)) as new:
        write_context(context, new)


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
    write(folder)
    (folder / outputs.MARK).unlink()


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
def test_filling_refuses_a_folder_with_other_files(
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


def test_filling_a_new_an_empty_and_an_earlier_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "deep"
    write(folder)
    first = listing(folder)
    assert set(first) == {"Dockerfile", "build", "build/step", outputs.MARK}
    digest = hashlib.sha256(b"FROM scratch\n").hexdigest()
    assert f"{digest}  Dockerfile\n" in (folder / outputs.MARK).read_text()
    (folder / "build/step").unlink()  # what is gone is no reason to refuse
    write(folder)
    assert listing(folder) == first
    write(folder, Context(id="x", files=CONTEXT.files[:1]))
    assert set(listing(folder)) == {"Dockerfile", outputs.MARK}
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "new"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["deep"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (".", "is the current folder, or above it"),
        ("file", "file is not a folder"),
        ("sub", "sub has mine, which this program did not write"),
    ],
)
def test_filling_refuses_other_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, words: str
) -> None:
    here = tmp_path / "here"
    (here / "sub").mkdir(parents=True)
    (here / "sub/mine").write_text("mine")
    (here / "file").write_text("mine")
    monkeypatch.chdir(here)
    before = listing(tmp_path)
    with pytest.raises(UsageError, match=words) as caught:
        write(path)
    assert "\n" not in str(caught.value)
    assert listing(tmp_path) == before


def test_failed_filling_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "out")
    before = listing(tmp_path)
    evil = Context(id="x", files=(*CONTEXT.files, ContextFile(path="build", data=b"")))
    with pytest.raises(IsADirectoryError):
        write(tmp_path / "out", evil)
    assert listing(tmp_path) == before
    real = Path.rename

    def busy(path: Path, target: Path) -> Path:
        if path.name == "made":
            raise OSError(errno.EBUSY, "Device or resource busy")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", busy)
    with pytest.raises(OSError, match="busy"):
        write(tmp_path / "out")
    assert listing(tmp_path) == before


def test_export_refuses_a_folder_before_compiling(
    config: Config, root: Path, tmp_path: Path
) -> None:
    (tmp_path / f"torch-{T130}-cp311-cp311-linux_x86_64.whl").write_text("mine")
    workspace = workspace_of(root, tmp_path / "c")
    run = FakeRunner()
    job = Job(config=config, workspace=workspace, engine=cast("Any", None), run=run)
    with pytest.raises(UsageError, match=rf"has torch-{T130}-.*, which this program did not write"):
        build.export(job, cast("ImagePlan", None), tmp_path)
    assert run.commands == []


def test_filling_keeps_a_file_that_comes_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "out"

    def fill() -> None:
        with outputs.filling(folder):
            folder.mkdir()
            (folder / "mine").write_text("")

    with pytest.raises(UsageError, match="has mine, which this program did not write"):
        fill()
    assert set(listing(tmp_path)) == {"out", "out/mine"}


def test_destination_quotes_commas() -> None:
    assert bake.destination(Path('/a,type=x "b"')) == '"dest=/a,type=x ""b"""'


@pytest.fixture
def result(root: Path, tmp_path: Path) -> Path:
    """A result in a folder of its own."""
    folder = tmp_path / "bench"
    folder.mkdir()
    shutil.copy(root / "docs/benchmarks/h200/result.json", folder)
    return folder / "result.json"


def test_benchmark_has_a_report_and_plots(result: Path) -> None:
    folder = result.parent
    bench_tasks._reporter("write", str(result), str(folder))
    assert set(listing(folder)) > {"README.md", "result.json", "gemm.svg"}


def test_benchmark_refuses_a_folder_before_it_measures(
    root: Path, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SimpleNamespace(spec=SimpleNamespace(id="x"))
    monkeypatch.setattr(bench_tasks, "identify", lambda *_: ("x", plan))
    monkeypatch.setattr(verb, "engine", lambda: None)
    done = invoke(root, "bench", "x", "--output", str(result.parent))
    assert "has result.json, which this program did not write" in done.stderr
