"""torch-images.lock: what builds read, and when they refuse it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_lock_adds import Project, locked
from tests.unit.test_own_lock import TABLE, Mine, mine
from torch_images.build.plan import lock_image, plan_image
from torch_images.config.choose import choose_own
from torch_images.config.own import FILE, LOCK, load
from torch_images.errors import LockError
from torch_images.locks.own import OwnLock, read

__all__ = ["locked", "mine"]  # fixtures


def test_build_refuses_a_lock_that_is_out_of_step(mine: Mine) -> None:
    mine.lock()
    mine.plan()
    mine.require("einops", "rich")
    with pytest.raises(LockError, match=r"requirements\.txt changed"):
        mine.plan()


def test_build_refuses_a_lock_of_other_axes(mine: Mine) -> None:
    mine.lock()
    (mine.folder / FILE).write_text(TABLE + 'arch = ["12.0"]\n')
    with pytest.raises(LockError, match=r"arch none -> 12\.0"):
        mine.plan()


def test_build_without_a_lock(mine: Mine) -> None:
    with pytest.raises(LockError, match="not locked"):
        mine.plan()


def test_build_refuses_a_lock_of_another_version(mine: Mine, tmp_path: Path) -> None:
    """Which parts differ, and how to go on."""
    mine.lock()
    root = tmp_path / "newer"
    root.mkdir()
    for path in mine.project.root.iterdir():
        if path.name != "scripts":
            (root / path.name).symlink_to(path)
    shutil.copytree(mine.project.root / "scripts", root / "scripts")
    program = root / "scripts/image/runtime/start.py"
    program.write_text(program.read_text() + "# newer\n")
    config = mine.config
    image = lock_image(config, choose_own(config), mine.project.folder / "locks")
    with pytest.raises(LockError, match="runtime changed") as caught:
        plan_image(config, image, root)
    assert "invoke lock" in str(caught.value)


def test_identity_is_that_of_lock_and_files(mine: Mine) -> None:
    """Not of times, nor of other files in the folder."""
    (mine.folder / "src").mkdir()
    source = mine.folder / "src/main.py"
    source.write_text("1")
    (mine.folder / FILE).write_text(TABLE + 'files = {"src" = "/app"}\n')
    mine.lock()
    before = mine.plan().identity
    os.utime(source, (1, 1))
    (mine.folder / "notes.txt").touch()
    assert mine.plan().identity == before
    source.write_text("2")
    assert mine.plan().identity != before


def test_lock_is_self_contained(mine: Mine, tmp_path: Path) -> None:
    """A build reads no lock of torch-images."""
    mine.lock()
    before = mine.plan().identity
    config = mine.config
    image = lock_image(config, choose_own(config), tmp_path / "nothing")
    assert plan_image(config, image, mine.project.root).identity == before


@pytest.fixture(scope="module")
def example(locked: Project, tmp_path_factory: pytest.TempPathFactory) -> OwnLock:
    folder = tmp_path_factory.mktemp("example")
    created = Mine(locked, folder)
    created.add("einops", "0.8.0")
    created.require("einops")
    created.lock()
    assert created.config.own
    return read(created.config.own)


@given(st.data())
def test_damaged_lock_is_refused(
    example: OwnLock, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    (folder / FILE).write_text(TABLE)
    document: Any = json.loads(example.text())
    at: Any = document
    while isinstance(at, dict | list) and at:
        keys: Sequence[Any] = sorted(at) if isinstance(at, dict) else range(len(at))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            at[key] = data.draw(st.none() | st.integers() | st.text(max_size=5) | st.just([]))
            break
        at = at[key]
    (folder / LOCK).write_text(json.dumps(document))
    try:
        read(load(folder / FILE))
    except LockError as error:
        assert "\n" not in str(error)
