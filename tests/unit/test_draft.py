"""Locks that are written in one go, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_images.locks.draft import Draft, draft


@pytest.fixture
def new(tmp_path: Path) -> Draft:
    """A draft that changes one lock, removes one and adds one."""
    locks, room = tmp_path / "locks", tmp_path / "room"
    for folder in (locks, room):
        folder.mkdir()
    for name in ("a.json", "b.json", "c.json", "notes.md"):
        (locks / name).write_text(name)
    (locks / "a.json").chmod(0o640)
    drafted = draft(locks, room)
    (drafted.folder / "a.json").write_text("new")
    (drafted.folder / "b.json").unlink()
    (drafted.folder / "d.json").write_text("more")
    return drafted


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def test_put_replaces_the_locks(new: Draft, tmp_path: Path) -> None:
    config = tmp_path / "images.yaml"
    config.write_text("old")
    new.put({config: ("old", "edited")})
    assert content(new.locks) == {
        "a.json": "new", "c.json": "c.json", "d.json": "more", "notes.md": "notes.md",
    }  # fmt: skip
    assert (new.locks / "a.json").stat().st_mode & 0o777 == 0o640
    assert config.read_text() == "edited"
    room = tmp_path / "again"
    room.mkdir()
    assert draft(new.locks, room).changed() == ()


def test_put_changes_nothing_if_a_write_fails(new: Draft, tmp_path: Path) -> None:
    before = content(new.locks)
    with pytest.raises(FileNotFoundError):
        new.put({tmp_path / "absent" / "images.yaml": ("", "edited")})
    assert content(new.locks) == before


def test_put_keeps_files_of_another_run(new: Draft) -> None:
    (new.locks / "c.json").write_text("theirs")
    (new.locks / "e.json").write_text("theirs")
    new.put({})
    assert content(new.locks) == {
        "a.json": "new", "c.json": "theirs", "d.json": "more", "e.json": "theirs", "notes.md": "notes.md",
    }  # fmt: skip
