"""Training on 1, 2 and 4 GPUs gives what one process gives that sees the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.container.processes import ranks

pytestmark = pytest.mark.gpu

# All numbers are float64: what is left of a difference is the order of sums, so the limit is tight.
# `reference` trains on the whole batch on each GPU, without anything of torch.distributed.
START = """
import copy, sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=size,
                        device_id=torch.device("cuda", rank))
STEPS, BATCH, WIDTH = 4, 16, 32

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.back = torch.nn.Linear(4 * WIDTH, WIDTH)
    def forward(self, x):
        return self.back(torch.nn.functional.gelu(self.wide(x)))

torch.manual_seed(0)  # every process draws the same model and the same batches
net = torch.nn.Sequential(Block(), torch.nn.Tanh(), Block()).double().cuda()
batches = [torch.randn(2, BATCH, WIDTH, dtype=torch.float64).cuda() for _ in range(STEPS)]
whole = slice(None)
mine = slice(rank * BATCH // size, (rank + 1) * BATCH // size)

def train(model, part):
    by = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, foreach=False)
    losses = []
    for x, y in batches:
        by.zero_grad()
        loss = (model(x[part]) - y[part]).square().mean()
        loss.backward()
        by.step()
        losses.append(loss.detach())
    return torch.stack(losses)

def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

def compare(model, losses, averaged):
    if averaged:
        dist.all_reduce(losses, dist.ReduceOp.AVG)
    torch.testing.assert_close(losses, wanted, rtol=1e-9, atol=1e-12)
    pairs = list(zip(model.parameters(), reference.parameters(), strict=True))
    assert len(pairs) == 8
    for ours, theirs in pairs:
        torch.testing.assert_close(full(ours.detach()), theirs.detach(), rtol=1e-9, atol=1e-12)

reference = copy.deepcopy(net)
untrained = copy.deepcopy(net)
wanted = train(reference, whole)
for before, after in zip(untrained.parameters(), reference.parameters(), strict=True):
    assert (before - after).abs().max() > 1e-4  # there is something to compare
"""
END = """
dist.destroy_process_group()
print("equal")
"""
WAYS = {
    "ddp": """
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(net, device_ids=[rank])
losses = train(model, mine)
compare(model, losses, True)
""",
    "fsdp": """
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
mesh = init_device_mesh("cuda", (size,))
for block in (net[0], net[2]):
    fully_shard(block, mesh=mesh)
fully_shard(net, mesh=mesh)
parameters = list(net.parameters())
assert all(isinstance(p, DTensor) for p in parameters)
assert all(p.to_local().numel() == p.numel() // size for p in parameters)
losses = train(net, mine)
compare(net, losses, True)
""",
    "tensor": """
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cuda", (size,))
plan = {"wide": ColwiseParallel(), "back": RowwiseParallel()}
for block in (net[0], net[2]):
    parallelize_module(block, mesh, plan)
assert all(isinstance(p, DTensor) for p in net.parameters())
for block in (net[0], net[2]):
    assert block.wide.weight.to_local().shape == (4 * WIDTH // size, WIDTH)
    assert block.back.weight.to_local().shape == (WIDTH, 4 * WIDTH // size)
losses = train(net, whole)
compare(net, losses, False)
""",
}


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("way", list(WAYS))
def test_it_trains_as_one_process_does(way: str, size: int, tmp_path: Path) -> None:
    """Weights and losses after four steps of SGD with momentum, all relative to 1e-9.

    With data parallelism each GPU sees its part of the batch, with tensor parallelism all of it.
    One GPU is a group of one: NCCL and the sharding run, but nothing is divided.
    """
    if torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} GPUs; {torch.cuda.device_count()} is here")
    said = ranks(START + WAYS[way] + END, size, tmp_path)
    assert all("equal\n" in text for text in said), said
