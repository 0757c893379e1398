"""Bytes moved: within a GPU's memory, and from GPU to GPU."""

from __future__ import annotations

import torch
from case import GB, MB, Case, random, rotating
from measure import Call


def addition() -> Case:
    """The sum of two vectors of 512 MiB: two reads and a write."""
    return Case(
        table="memory bandwidth",
        name="vector add, 512 MiB",
        precision="fp16",
        make=rotating(
            lambda: tuple(random("fp16", 512 * MB // 2) for _ in range(3)),
            lambda a, b, out: torch.add(a, b, out=out),
        ),
        size=3 * 512 * MB,
        moved=3 * 512 * MB,
    )


def copying() -> Case:
    """A copy of 2 GiB on the device: a read and a write."""

    def make() -> tuple[torch.Tensor, ...]:
        here, there = (torch.empty(2 * GB, device="cuda", dtype=torch.uint8) for _ in range(2))
        return here.random_(), there

    return Case(
        table="memory bandwidth",
        name="copy, 2 GiB",
        precision="bytes",
        make=rotating(make, lambda here, there: there.copy_(here)),
        size=4 * GB,
        moved=4 * GB,
    )


def transfer(size: int, *, both: bool = False) -> Case:
    """From GPU 0 to GPU 1, or both ways at once; bytes count once for each way."""

    def make(sets: int) -> Call:
        ways = [
            [
                [torch.empty(size, device=f"cuda:{n}", dtype=torch.uint8).random_() for n in (0, 1)]
                for _ in range(2 if both else 1)
            ]
            for _ in range(sets)
        ]
        back = [torch.cuda.Stream(n) for n in (0, 1)]  # a copy uses a stream of either device

        def call(i: int) -> None:
            pairs = ways[i]
            pairs[0][1].copy_(pairs[0][0], non_blocking=True)
            if both:
                with torch.cuda.stream(back[0]), torch.cuda.stream(back[1]):
                    pairs[1][0].copy_(pairs[1][1], non_blocking=True)
                torch.cuda.current_stream(0).wait_stream(back[0])

        return call

    label = f"{size // MB} MiB" if size < GB else f"{size // GB} GiB"
    return Case(
        table="gpu to gpu",
        name=f"both ways, {label} each" if both else f"0 to 1, {label}",
        precision="bytes",
        make=make,
        size=size,
        moved=2 * size if both else size,
        gpus=2,
    )
