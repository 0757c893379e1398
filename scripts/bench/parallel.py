"""A step of training on 1, 2 and 4 GPUs: DistributedDataParallel, and FSDP2."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from capture import step
from case import Case, Ready, loaded, random
from child import in_child
from measure import Timing, fixed, sets_for
from models import encoder

BATCH, LENGTH, WIDTH = 8, 512, 1024  # of each GPU: the work grows with their number
INPUT = BATCH * LENGTH * WIDTH * 2  # bytes
WARM, STEPS = 10, 30
TABLE = "training on gpus"
KINDS, SIZES = ("DDP", "FSDP2"), (1, 2, 4)


def scaling(kind: str, gpus: int) -> Case:
    """A transformer's step on some GPUs. The speed-up is that of sequences per second."""
    name = f"transformer, B={BATCH} a GPU, S={LENGTH}, {kind}"
    return Case(
        table=TABLE,
        name=f"{name}, {gpus} GPU{'s' if gpus > 1 else ''}",
        precision="bf16",
        make=lambda _: in_child("parallel:train", {}, kind=kind, gpus=gpus),
        size=INPUT,
        same="weights",
        items=BATCH * gpus,
        unit="seq",
        baseline=f"{TABLE}/{name}, 1 GPU/bf16" if gpus > 1 else "",
        needs=(8, 0),
        gpus=max(2, gpus),  # one GPU alone is only the baseline of several
    )


def train(kind: str, gpus: int) -> Ready:
    """Start a process for each GPU; the first one's times are those of all."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(worker, args=(kind, gpus, folder), nprocs=gpus)
        samples = json.loads(Path(folder, "samples").read_text())
    return Ready(timing=Timing(tuple(samples)))


def worker(rank: int, kind: str, gpus: int, folder: str) -> None:
    """Train on GPU `rank`. All run the same number of steps, since they wait for each other."""
    from torch import distributed

    torch.cuda.set_device(rank)
    distributed.init_process_group(
        "nccl", init_method=f"file://{folder}/meeting", rank=rank, world_size=gpus
    )
    try:
        net = parallel(kind, rank)
        by = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
        sets = sets_for(INPUT)
        inputs = [random("bf16", BATCH, LENGTH, WIDTH) for _ in range(sets)]
        timing = fixed(lambda i: step(net, by, inputs[i]), sets, WARM, STEPS)
        if rank == 0:
            Path(folder, "samples").write_text(json.dumps(timing.samples))
    finally:
        distributed.destroy_process_group()


def parallel(kind: str, rank: int) -> Any:
    """The model, with copies on all GPUs (DDP), or each layer's weights spread over them."""
    net = loaded(encoder, "bf16").train()
    if kind == "DDP":
        return torch.nn.parallel.DistributedDataParallel(net, device_ids=[rank])
    from torch.distributed.fsdp import fully_shard

    for layer in net.layers:
        fully_shard(layer)
    return fully_shard(net)
