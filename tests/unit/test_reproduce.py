from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.fakes import FakeEngine, FakeRunner, stored, workspace_of
from torch_images.errors import NetworkError, UsageError
from torch_images.host.image_info import ImageInfo
from torch_images.host.runner import Completed
from torch_images.host.workspace import Workspace
from torch_images.verify.reproduce import (
    _check_out,
    _copy,
    _kept,
    _obtain,
    _require_commit,
)

COMMIT, HOME = "c" * 40, "https://example.org/project"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path / "project"
    (root / ".git").mkdir(parents=True)
    (root / "build").mkdir()
    (root / "images.yaml").touch()
    (root / "scripts" / "build").mkdir(parents=True)
    return workspace_of(root, tmp_path)


def runner(workspace: Workspace, *, here: bool = True) -> FakeRunner:
    git = f"git -C {workspace.root}"
    return FakeRunner(
        {
            f"{git} cat-file": (0 if here else 1, ""),
        }
    )


@pytest.mark.parametrize("here", [True, False])
def test_check_out_from_this_repository_or_the_given_one(
    workspace: Workspace, tmp_path: Path, here: bool
) -> None:
    run = runner(workspace, here=here)
    _check_out(COMMIT, tmp_path / "copy", workspace, HOME, run)
    [clone] = [command for command in run.commands if "clone" in command]
    assert clone[-2:] == [str(workspace.root) if here else HOME, str(tmp_path / "copy")]
    assert run.commands[-1][-2:] == ["--detach", COMMIT]


def test_copy_leaves_out_build_products(workspace: Workspace, tmp_path: Path) -> None:
    room = workspace.root / "tmp"  # TMPDIR may be in the checkout
    room.mkdir()
    _copy(workspace, room / "copy")
    assert (room / "copy" / "scripts" / "build").is_dir()
    assert not [name for name in ("build", ".git", "tmp") if (room / "copy" / name).exists()]


def test_copy_has_the_images_and_locks_in_use(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--config may name a file outside the checkout, with its locks beside it."""
    mine = tmp_path / "mine"
    for folder, text in ((workspace.root, "the project's"), (mine, "mine")):
        (folder / "locks").mkdir(parents=True)
        (folder / "images.yaml").write_text(text)
        (folder / "locks" / f"{folder.name}.json").write_text(text)
    monkeypatch.setenv("TORCH_IMAGES_CONFIG", str(mine / "images.yaml"))
    copy = tmp_path / "room" / "copy"
    _copy(replace(workspace, locks=mine / "locks"), copy)
    assert (copy / "images.yaml").read_text() == "mine"
    assert [path.name for path in (copy / "locks").iterdir()] == ["mine.json"]


@pytest.mark.parametrize(
    ("commit", "problem"),
    [("", r"has no commit.*--commit"), (f"{COMMIT}-dirty", rf"uncommitted files on {COMMIT}; ")],
)
def test_require_commit_of_an_unknown_or_dirty_one(commit: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        _require_commit("i", commit)


@pytest.mark.parametrize("tags", [(), ("mine:1",), ("torch-images-candidate:x",)])
def test_kept_images_survive_a_rebuild(tags: tuple[str, ...]) -> None:
    """Neither one without a name, nor the one whose candidate tag the twin takes."""
    image, unverified = stored("1", *tags), stored("2", "torch-images-candidate:x")
    images = [image] if "torch-images-candidate:x" in tags else [image, unverified]
    engine = FakeEngine(*images)
    candidate = engine.digest("torch-images-candidate:x")
    plan = cast("Any", SimpleNamespace(candidate="torch-images-candidate:x"))
    with _kept(image.id, plan, engine):
        engine.untag("torch-images-candidate:x")  # an image goes with its last name
        engine.images.append(stored("3", "torch-images-candidate:x"))
        engine.untag("mine:1")  # by a user, meanwhile
    assert {one.id for one in engine.images} == {one.id for one in images}
    assert engine.digest("torch-images-candidate:x") == candidate
    left = [tag for tag in engine.tags() if tag.startswith("torch-images-original:")]
    assert len(left) == (0 if "torch-images-candidate:x" in tags else 1)


@pytest.mark.parametrize("commit", ["--orphan=x", "main", "c" * 39])
def test_check_out_refuses_an_invalid_commit(
    workspace: Workspace, tmp_path: Path, commit: str
) -> None:
    run = runner(workspace)
    with pytest.raises(UsageError, match=f"'{commit}' is not a commit; give its 40"):
        _check_out(commit, tmp_path / "copy", workspace, HOME, run)
    assert not [words for words in run.commands if "clone" in words or "checkout" in words]


@pytest.mark.parametrize(
    ("image", "code", "error"),
    [("r.io/a:1", 0, ""), ("r.io/a:1", 1, "r.io could not"), ("r.io/a@sha256:0", 1, ""), ("a", 0, "")],
)  # fmt: skip
def test_obtain_pulls_what_the_engine_lacks(image: str, code: int, error: str) -> None:
    """A tag may name another image by now; a digest never does."""

    class Engine(FakeEngine):
        def inspect(self, image: str) -> ImageInfo:
            raise UsageError("no such image")

        def digest(self, image: str) -> str:
            return "sha256:0"

    class Docker(FakeRunner):
        def stream(self, command: Sequence[str], **_: Any) -> Completed:
            self.commands.append(list(command))
            return Completed(code, "failed to unpack")

    run = Docker()
    with pytest.raises(NetworkError, match=error) if error else contextlib.nullcontext():
        _obtain(image, Engine(), run)
    assert run.commands == ([["docker", "pull", image]] if "/" in image else [])
