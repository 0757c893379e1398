"""Signals of `docker stop` and schedulers reach the command alone: a handler saves, with workers alive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
import os, pathlib, signal, sys
def save(*_):
    with open(f"{sys.argv[1]}/{os.environ['RANK']}", "a") as file:
        file.write("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    signal.pause()
"""


def start(expected: dict[str, Any], *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*expected["entrypoint"], *command],
        env={**os.environ, "TORCH_IMAGE_QUIET": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.native("an emulator's signals are its own")
def test_a_checkpoint_is_saved_beside_workers(expected: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    words = (sys.executable, "-c", TRAINS, str(path), str(TURNS), *NAMES)
    with start(expected, *words) as process:
        assert process.stdout
        said = [line.strip() for line in signalled(process)]
        assert process.wait() == 0
    assert said == [*NAMES * (TURNS // len(NAMES)), "done True"]


def signalled(process: subprocess.Popen[str]) -> list[str]:
    """What a process prints; it gets each signal that it names."""
    lines = []
    for line in process.stdout or ():
        lines.append(line)
        if line.startswith("SIG"):
            process.send_signal(getattr(signal, line.strip()))
    return lines


@pytest.mark.native("an emulator's signals are its own")
def test_ranks_of_torchrun_are_told_once(expected: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    words = ("torchrun", "--standalone", "--nproc-per-node=2", "--local-addr=127.0.0.1")
    with start(expected, *words, str(tmp_path / "rank.py"), str(tmp_path)) as process:
        assert process.stdout
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        process.terminate()
        process.wait()
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["saved"] * 2
