"""Train a small model on all processes that torchrun starts: on GPUs, or else on the CPU."""

import gc
import os

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

gpus = torch.cuda.is_available()
device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if gpus else "cpu")
if gpus:
    torch.cuda.set_device(device)
distributed.init_process_group("nccl" if gpus else "gloo")
torch.manual_seed(distributed.get_rank())

model = DistributedDataParallel(nn.Linear(8, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    values = torch.randn(64, 8, device=device)
    loss = (model(values) - values.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

if distributed.get_rank() == 0:
    print(f"{distributed.get_world_size()} processes on {device.type}, loss {loss.item():.3f}")
# Gloo's threads end with the group, so nothing may refer to it. Else they can abort Python's exit.
del model, optimizer, loss
gc.collect()
distributed.destroy_process_group()
