"""Half-made things: whose process lives stays, what a killed one left goes, nothing else does."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_images.host import scratch as module
from torch_images.host.scratch import LOCK_FILE, discard, is_free, left_behind, remove_tree, scratch

HOLDS = """
import sys, time
from pathlib import Path
from torch_images.host.scratch import scratch
with scratch(Path(sys.argv[1]), "torch-images-") as made:
    (made / "tree").mkdir()
    print(made, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def busy_folder(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A scratch folder that another process holds."""
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield Path(process.stdout.readline().strip()), process
        process.kill()


def test_folder_of_a_running_process_stays(busy_folder: tuple[Path, subprocess.Popen[str]]) -> None:
    folder, _ = busy_folder
    with scratch(folder.parent, "torch-images-") as own:
        assert left_behind(folder.parent) == ()
        assert not discard(folder)
        assert not discard(own)
    assert (folder / "tree").is_dir()
    assert not own.exists()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_folder_of_a_killed_process_is_removed(
    busy_folder: tuple[Path, subprocess.Popen[str]], end: signal.Signals
) -> None:
    folder, process = busy_folder
    process.send_signal(end)
    process.wait()
    assert left_behind(folder.parent) == (folder,)
    with scratch(folder.parent, "torch-images-"):
        assert not folder.exists()


def test_interrupted_removal_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> None:
        raise OSError("Directory not empty")  # a thread still writes

    with monkeypatch.context() as patched, scratch(tmp_path, "x") as path:
        (path / "tree").mkdir()
        patched.setattr(shutil, "rmtree", fail)
    assert left_behind(tmp_path) == (path,)
    assert discard(path)


def test_unmarked_folder_stays(tmp_path: Path) -> None:
    """/var/tmp is everybody's: folders of such names, links, and folders of other users."""
    (tmp_path / "torch-images-mine").mkdir()
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / LOCK_FILE).touch()
    room = tmp_path / "room"
    (room / "torch-images-data").mkdir(parents=True)
    (room / "torch-images-link").symlink_to(tmp_path / "far")
    (room / "torch-images-odd").mkdir()
    (room / "torch-images-odd" / LOCK_FILE).symlink_to(tmp_path / "far" / LOCK_FILE)
    assert left_behind(room) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_folder_of_another_user_stays(tmp_path: Path) -> None:
    (tmp_path / "torch-images-x").mkdir()
    (tmp_path / "torch-images-x" / LOCK_FILE).touch()
    assert left_behind(tmp_path) == (tmp_path / "torch-images-x",)
    shutil.chown(tmp_path / "torch-images-x", 12345)
    assert left_behind(tmp_path) == ()


def test_remove_tree_keeps_what_is_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`rm -rf` of a bootstrap that was killed emptied the host's /dev/shm."""
    for name in ("a b", "a"):
        (tmp_path / name / "dev" / "shm").mkdir(parents=True)
        (tmp_path / name / "dev" / "shm" / "precious").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a b")
    point = str(tmp_path / "a b" / "dev" / "shm").replace(" ", "\\040")
    table = tmp_path / "mountinfo"
    table.write_text(f"36 35 0:31 / {point} rw,nosuid shared:1 - tmpfs tmpfs rw\n")
    monkeypatch.setattr(module, "_MOUNTS", table)
    with caplog.at_level(logging.WARNING):
        assert not remove_tree(tmp_path / "a b")
    assert f"left {tmp_path}/a b: unmount {tmp_path}/a b/dev/shm first" in caplog.text
    assert (tmp_path / "a b" / "dev" / "shm" / "precious").exists()
    assert not is_free(tmp_path / "link" / "dev")
    assert remove_tree(tmp_path / "a")  # another folder, whose name only begins so
    table.unlink()  # no Linux
    assert remove_tree(tmp_path / "a b")
