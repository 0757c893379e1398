"""A bootstrap whose process is killed ends with it, and leaves nothing of the host mounted."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.support import ROOT, open_folder, share
from torch_images.host.engine import Engine
from torch_images.host.workspace import Workspace
from torch_images.maintain import gc

MAKES = """
import os, sys
from pathlib import Path
from torch_images.config.choose import choose
from torch_images.config.load import load_config
from torch_images.fetch.apt import Resolver
from torch_images.fetch.bootstrap import BaseMaker
from torch_images.host.network import detect
from torch_images.host.runner import Runner
from torch_images.locks.debs import DebLock
from torch_images.locks.files import read
root, locks, cache = map(Path, sys.argv[1:])
resolver = Resolver(root=root, network=detect(os.environ), run=Runner())
base = choose(load_config(root / "images.yaml")).base
BaseMaker(cache=cache, resolver=resolver).base(base, read(DebLock, locks / "base-trixie.json"))
"""


def processes(read: Callable[[Path], bytes], word: Path) -> list[Path]:
    """The processes of which something has a path in it."""
    folders = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ends, or is another user's
            if os.fsencode(word) in read(folder):
                folders.append(folder)
    return folders


def mounts(process: Path) -> bytes:
    return (process / "mountinfo").read_bytes()


def words(process: Path) -> bytes:
    return (process / "environ").read_bytes() + (process / "cmdline").read_bytes()


@contextlib.contextmanager
def unmounting() -> Iterator[Path]:
    """A folder in which nothing is mounted at the end, before what is in it is removed."""
    with open_folder() as room:
        try:
            yield room
        finally:
            table = mounts(Path("/proc/self")).decode().splitlines()
            points = [line.split()[4] for line in table if str(room) in line]
            for point in reversed(points):
                subprocess.run(["umount", "--lazy", point], check=True)


def wait(what: str, condition: Callable[[], object], seconds: int = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "end",
    [signal.SIGKILL, signal.SIGTERM],
    ids=["SIGKILL", "SIGTERM"],
)
def test_a_killed_bootstrap_leaves_no_mount(
    workspace: Workspace,
    engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: signal.Signals,
) -> None:
    """The host's /dev/shm, /proc and /sys stayed in the tree, where `rm -rf` emptied them."""
    share(workspace, tmp_path, "debs")
    copy, here = dataclasses.replace(workspace, cache=tmp_path), Path("/proc/self")
    with unmounting() as room:
        monkeypatch.setenv("TMPDIR", str(room))
        command = [sys.executable, "-c", MAKES, str(ROOT), str(workspace.locks), str(tmp_path)]
        with subprocess.Popen(command, cwd=ROOT) as process:
            wait(
                "mounts in the tree", lambda: process.poll() is not None or processes(mounts, room)
            )
            assert processes(mounts, room)
            assert os.fsencode(room) not in mounts(here)  # else it is not killed
            process.send_signal(end)
        # Without root, mmdebstrap takes its tree away first: it alone may remove its files.
        seconds = 60 if os.geteuid() else 5
        wait("the end of all that it started", lambda: not processes(words, room), seconds)
        assert os.fsencode(room) not in mounts(here)
        left = gc.abandoned(copy)
        assert {item.path.parent for item in left if item.path} == {room, tmp_path / "bases"}
        assert len(list(gc.remove(left, engine))) == len(left)
        assert list(room.iterdir()) == []
        assert [path for path in (tmp_path / "bases").iterdir() if path.is_dir()] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_remove_tree_keeps_what_is_mounted(tmp_path: Path) -> None:
    """A mount of the same file system, too, which has no other device number."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (tmp_path / "tree" / "dev" / "shm").mkdir(parents=True)
    code = "import sys; from pathlib import Path; from torch_images.host.scratch import *\n"
    code += "print(remove_tree(Path(sys.argv[1])))"
    script = 'mount --bind "$1"/precious "$1"/tree/dev/shm && "$2" -c "$3" "$1"/tree'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable, code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert f"unmount {tmp_path}/tree/dev/shm first" in done.stderr
    assert (tmp_path / "precious" / "file").exists()
