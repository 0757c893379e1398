"""NCCL on 1 GPU, 2 GPUs and so on, up to all of the machine, with one process per GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.container.processes import ranks

pytestmark = pytest.mark.gpu
Observe = Callable[[str, object], None]

WORKER = """
import os, sys, torch, torch.distributed as dist
rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=size,
                        device_id=torch.device("cuda", rank))
x = torch.arange(1_000_000, device="cuda", dtype=torch.float64) * (rank + 1)
dist.all_reduce(x)
expected = torch.arange(1_000_000, device="cuda", dtype=torch.float64) * (size * (size + 1) // 2)
assert torch.equal(x, expected)
parts = [torch.empty(1000, device="cuda") for _ in range(size)]
dist.all_gather(parts, torch.full((1000,), float(rank), device="cuda"))
assert all(bool((p == i).all()) for i, p in enumerate(parts))
half = torch.full((1000,), 0.5, device="cuda", dtype=torch.bfloat16)
dist.all_reduce(half)
assert bool((half == 0.5 * size).all())
dist.destroy_process_group()
"""


def counts() -> list[int]:
    """How many GPUs to try: 1, 2 and so on."""
    return list(range(1, torch.cuda.device_count() + 1)) or [1]


@pytest.mark.parametrize("size", counts())
def test_all_reduce(size: int, tmp_path: Path, observe: Observe) -> None:
    ranks(WORKER, size, tmp_path)
    observe("nccl", f"{'.'.join(map(str, torch.cuda.nccl.version()))} on {size}")
