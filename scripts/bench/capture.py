"""A step of training, and CUDA graphs of a case's calls."""

from __future__ import annotations

from collections.abc import Callable

import torch
from measure import Call
from torch import nn

WARM = 3  # runs on another stream before the capture, as PyTorch asks for


def step(net: nn.Module, by: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    """Forward, backward, optimizer; any loss takes as long."""
    by.zero_grad(set_to_none=True)
    loss: torch.Tensor = net(x).float().square().mean()
    loss.backward()
    by.step()
    return loss


def captured(run: Callable[[], object], before: Callable[[int], object] | None = None) -> Call:
    """A call that replays what `run` does. `before(i)` runs outside the graph, before each replay.

    `run` must use the same memory each time, and may not wait for the device.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()

    def replay(i: int) -> object:
        if before:
            before(i)
        graph.replay()
        return kept  # what it returns lives in the graph's memory

    return replay
