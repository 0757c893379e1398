"""torchrun starts processes that meet, which needs more of torch than a store in a file does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(value)
sys.stdout.write(f"{dist.get_world_size()} processes: {value.item():g}\\n")
dist.destroy_process_group()
"""


def test_two_processes_add_up(tmp_path: Path) -> None:
    """On loopback by name, because a container without a network cannot find its own host name."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, "--local-addr=127.0.0.1", str(program)],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("2 processes: 3\n") == 2, done.stdout + done.stderr
