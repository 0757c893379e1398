"""Programs of the checks that need a process of their own, or one for each of several GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

# Settings that a check replaces: the profile sets the second one.
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
# The name that this torch reads: the second one since torch 2.9, which brought this function.
SETTING = ALLOCATOR[hasattr(torch._C, "_accelerator_setAllocatorSettings")]
PATIENCE = 600.0  # seconds for the slowest program: nvcc takes minutes for CUTLASS's kernels


def environment(changes: Mapping[str, str], drop: Sequence[str] = ()) -> dict[str, str]:
    """This process's environment without `drop`, and with `changes`."""
    return {**{k: v for k, v in os.environ.items() if k not in drop}, **changes}


def child(
    code: str, *words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Run `code` in a new Python with `words` as sys.argv[1:]. Returns what it prints.

    Fails, with the end of its output, if the program fails.
    """
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def ranks(
    code: str, size: int, folder: Path, *words: str, env: Mapping[str, str] | None = None
) -> list[str]:
    """Run `code` in `size` processes, one per GPU. Returns what each prints.

    sys.argv[1:] is the rank, `size`, the path of a file for the rendezvous, and `words`. If one
    process fails, the others are ended, because they would wait for it.
    """
    # Some virtual machines have NVLink without its multicast, so NCCL does not use it by default.
    whole = {"NCCL_NVLS_ENABLE": "0", **(os.environ if env is None else env)}
    logs = [folder / f"rank{rank}.txt" for rank in range(size)]
    store = str(folder / "store")
    started = []
    for rank, path in enumerate(logs):
        with path.open("w") as log:
            command = [sys.executable, "-c", code, str(rank), str(size), store, *words]
            started.append(
                subprocess.Popen(command, env=whole, stdout=log, stderr=subprocess.STDOUT)
            )
    until = time.monotonic() + PATIENCE
    try:
        while any(process.poll() is None for process in started):
            if any(process.poll() for process in started) or time.monotonic() > until:
                break
            time.sleep(0.05)
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()
    said = [path.read_text() for path in logs]
    codes = [process.returncode for process in started]
    assert codes == [0] * size, (codes, [text[-2000:] for text in said])
    return said
