"""Times of calls on a GPU, for the programs of this folder."""

from collections.abc import Callable

import torch


def milliseconds(call: Callable[[], object], count: int = 1) -> float:
    """Time of one of `count` calls after each other, by events of the GPU."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(count):
        call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / count
