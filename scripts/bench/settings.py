"""The same work under settings that are read once, so each runs in its own process."""

from __future__ import annotations

import time

import churn
import torch
from capture import step
from case import Case, Ready, loaded, random
from child import in_child
from measure import Timing, measure, sets_for
from models import resnet50

ALLOCATORS = {
    "plain segments": "expandable_segments:False",
    "expandable segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}
PASSES = 20
BATCH = 32
IMAGES = BATCH * 3 * 224 * 224 * 2  # bytes
GEMM = (32, 4096, 4096)  # m, n, k: small enough for cuBLAS to split the sum, which takes workspace
FACTORS = (GEMM[0] * GEMM[2] + GEMM[2] * GEMM[1]) * 2  # bytes
WORKSPACES = (":4096:8", ":16:8")  # size in KiB, and how many of it


def allocator(name: str) -> Case:
    """Allocating and freeing memory of changing sizes; how much more is reserved than allocated.

    The time is the processor's: it never waits for the device.
    """
    table, conf = "allocator", ALLOCATORS[name]
    first = next(iter(ALLOCATORS))
    return Case(
        table=table,
        name=name,
        precision="bytes",
        make=lambda _: in_child(
            "settings:allocate",
            {"PYTORCH_CUDA_ALLOC_CONF": None, "PYTORCH_ALLOC_CONF": conf},
            conf=conf,
        ),
        items=churn.STEPS,
        unit="allocations",
        baseline="" if name == first else f"{table}/{first}/bytes",
        settings={"PYTORCH_ALLOC_CONF": conf},
    )


def allocate(conf: str) -> Ready:
    """Go through the sequence, first with an empty allocator. Raises RuntimeError for another."""
    backend = torch.cuda.get_allocator_backend()
    wanted = conf.partition("backend:")[2] or "native"
    if backend != wanted:
        raise RuntimeError(f"the allocator is {backend}, not {wanted}")
    plan = churn.plan(limit=min(churn.LIMIT, torch.cuda.get_device_properties().total_memory // 4))
    torch.empty(1, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    samples = [_pass(plan)]
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    samples += [_pass(plan) for _ in range(PASSES)]
    return Ready(
        timing=Timing(tuple(samples[1:])),
        figures={
            "reserved / peak": reserved / peak,
            "peak, MB": peak / 1e6,
            "reserved, MB": reserved / 1e6,
            "first pass, ms": samples[0] * 1e3,
        },
        notes={"allocator": backend},
    )


def _pass(plan: list[tuple[int, int]]) -> float:
    """Seconds for the sequence."""
    held: list[torch.Tensor] = []
    start = time.perf_counter()
    for size, drop in plan:
        if size:
            held.append(torch.empty(size, device="cuda", dtype=torch.uint8))
        else:
            held.pop(drop)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def cudnn(*, benchmark: bool) -> Case:
    """A training step of ResNet-50: cuDNN tries its kernels, or chooses by its rules."""
    table = "cudnn.benchmark"
    name = f"ResNet-50, B={BATCH}, training step"
    return Case(
        table=table,
        name=f"{name}, {'on' if benchmark else 'off'}",
        precision="bf16",
        make=lambda _: in_child("settings:train", {}, benchmark=benchmark),
        size=IMAGES,
        same="weights",
        items=BATCH,
        unit="img",
        baseline=f"{table}/{name}, off/bf16" if benchmark else "",
        needs=(8, 0),
        settings={"cudnn.benchmark": str(benchmark)},
    )


def train(*, benchmark: bool) -> Ready:
    """Training steps, and the time of the first one, in which kernels are tried."""
    torch.backends.cudnn.benchmark = benchmark
    net = loaded(resnet50, "bf16").train()
    by = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
    sets = sets_for(IMAGES)
    inputs = [random("bf16", BATCH, 3, 224, 224) for _ in range(sets)]
    torch.cuda.synchronize()
    start = time.perf_counter()
    step(net, by, inputs[0])
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    timing = measure(lambda i: step(net, by, inputs[i]), sets)
    return Ready(timing=timing, figures={"first step, s": first})


def workspace(config: str) -> Case:
    """A product of few rows under a setting of cuBLAS's workspace."""
    m, n, k = GEMM
    table, name, precision = "cublas workspace", f"{m}x{n}x{k}", "fp16"
    first = WORKSPACES[0]
    return Case(
        table=table,
        name=f"{name}, {config}",
        precision=precision,
        make=lambda _: in_child("settings:multiply", {"CUBLAS_WORKSPACE_CONFIG": config}),
        size=FACTORS,
        flops=2 * m * n * k,
        baseline="" if config == first else f"{table}/{name}, {first}/{precision}",
        settings={"CUBLAS_WORKSPACE_CONFIG": config},
    )


def multiply() -> Ready:
    """The product."""
    m, n, k = GEMM
    sets = sets_for(FACTORS)
    inputs = [(random("fp16", m, k), random("fp16", k, n)) for _ in range(sets)]
    return Ready(timing=measure(lambda i: torch.matmul(*inputs[i]), sets))
