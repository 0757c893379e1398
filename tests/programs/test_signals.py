"""Signals of `docker stop` and schedulers reach the command alone: a handler saves, with workers alive."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.container.processes import PATIENCE

pytestmark = pytest.mark.native("an emulator's signals are its own")

TURNS = 10
NAMES = ("SIGTERM", "SIGUSR1", "SIGHUP", "SIGINT", "SIGUSR2")
# It saves at each signal, and goes on; torch raises in it if a worker of the DataLoader ends early.
TRAINS = """
import signal, sys, torch
from torch.utils.data import DataLoader
def save(number, _):
    saved.append(number)
    torch.save(saved, sys.argv[1])
saved, names = [], sys.argv[3:]
for name in names:
    signal.signal(getattr(signal, name), save)
for turn in range(int(sys.argv[2])):
    waits = True
    for _ in DataLoader(range(10**7), num_workers=2):
        if waits:
            print(names[turn % len(names)], flush=True)
        waits = False
        if len(saved) > turn:
            break
print("done", torch.load(sys.argv[1]) == saved)
"""
# A rank of torchrun, which passes SIGTERM on itself.
RANK = """
import os, signal, sys
def save(*_):
    with open(f"{sys.argv[1]}/{os.environ['RANK']}", "a") as file:
        file.write("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


@contextlib.contextmanager
def start(expected: dict[str, Any], *command: str) -> Iterator[subprocess.Popen[str]]:
    command = (*expected["entrypoint"], *command)
    environ = {**os.environ, "TORCH_IMAGE_QUIET": "1"}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
            process.wait(PATIENCE)
        finally:
            process.kill()


def test_a_checkpoint_is_saved_beside_workers(expected: dict[str, Any], tmp_path: Path) -> None:
    words = (sys.executable, "-c", TRAINS, str(tmp_path / "saved.pt"), str(TURNS), *NAMES)
    said = []
    with start(expected, *words) as process:
        for line in map(str.strip, process.stdout or ()):
            said.append(line)
            if line in NAMES:
                process.send_signal(getattr(signal, line))
    assert (process.returncode, said) == (0, [*NAMES * (TURNS // len(NAMES)), "done True"])


def test_ranks_of_torchrun_are_told_once(expected: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    words = ("torchrun", "--standalone", "--nproc-per-node=2", "--local-addr=127.0.0.1")
    with start(expected, *words, str(tmp_path / "rank.py"), str(tmp_path)) as process:
        assert process.stdout
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        process.terminate()
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["saved"] * 2
