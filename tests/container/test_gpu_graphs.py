"""CUDA graphs: training and inference give the same results captured, after warm-up, as eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.container.processes import child

pytestmark = pytest.mark.gpu
STEPS, WARM = 5, 3
OPTIONS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}, "AdamW": {"capturable": True}}


def model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256), torch.nn.Linear(256, 10)
    ).cuda()


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [
        (torch.randn(32, 64, device="cuda"), torch.randint(0, 10, (32,), device="cuda"))
        for _ in range(WARM + STEPS)
    ]


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_forward_backward_and_optimizer(optimizer: str) -> None:
    first, data = model(), batches()
    second = copy.deepcopy(first)
    options = OPTIONS[optimizer]
    loss_of = torch.nn.CrossEntropyLoss()

    def step(
        net: torch.nn.Module, by: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        by.zero_grad(set_to_none=True)
        loss: torch.Tensor = loss_of(net(x), y)
        loss.backward()
        by.step()
        return loss

    make = getattr(torch.optim, optimizer)
    eager = make(first.parameters(), lr=0.01, **options)
    wanted = [step(first, eager, x, y).item() for x, y in data][WARM:]

    captured = make(second.parameters(), lr=0.01, **options)
    x, y = (t.clone() for t in data[0])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for inputs, targets in data[:WARM]:
            x.copy_(inputs)
            y.copy_(targets)
            step(second, captured, x, y)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    captured.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = loss_of(second(x), y)
        loss.backward()
        captured.step()
    found = []
    for inputs, targets in data[WARM:]:
        x.copy_(inputs)
        y.copy_(targets)
        graph.replay()
        found.append(loss.item())
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(second.parameters(), first.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_random_numbers_differ_between_replays() -> None:
    x = torch.zeros(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.normal_()
    graph.replay()
    once = x.clone()
    graph.replay()
    assert not torch.equal(once, x)


def test_make_graphed_callables_trains_as_eager() -> None:
    """Forward and backward of one part are graphs; the rest of the step is eager."""
    first, data = model(), batches()
    second = copy.deepcopy(first)
    second = torch.cuda.make_graphed_callables(second, (torch.randn(32, 64, device="cuda"),))
    assert type(second(data[0][0]).grad_fn).__name__ == "GraphedBackward"
    results = []
    for net in (first, second):
        by = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        losses = []
        for x, y in data:
            by.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            by.step()
            losses.append(loss.item())
        results.append(losses)
    torch.testing.assert_close(
        torch.tensor(results[1]), torch.tensor(results[0]), rtol=1e-4, atol=1e-5
    )
    for ours, theirs in zip(second.parameters(), first.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


WAITS = """
import os, torch
x = torch.ones(10, device="cuda")
x.sum().item()
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.sum().item()
except RuntimeError as refused:
    print("refused:", refused, flush=True)
os._exit(0)  # what is left of the capture is not to be torn down in order
"""


def test_a_capture_does_not_wait_for_the_cpu() -> None:
    """`item()` copies to the host and waits, which CUDA refuses while it captures."""
    said = child(WAITS)
    assert said.startswith("refused:")
    assert "captur" in said
