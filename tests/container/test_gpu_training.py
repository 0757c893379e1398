"""Training on this GPU: fused optimizers, mixed precision, and what two settings choose."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.container.gpu import close, operators
from tests.container.processes import child, environment

pytestmark = pytest.mark.gpu
Observe = Callable[[str, object], None]

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "Adam": {"weight_decay": 0.01},
    "AdamW": {"weight_decay": 0.01},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
}
KERNELS = {"Adam": "aten::_fused_adam_", "AdamW": "aten::_fused_adamw_", "SGD": "aten::_fused_sgd_"}
SHAPES = [(64, 33), (129,), (1,), (4, 5, 6, 7)]
STEPS = 10


def trained(name: str, device: str, dtype: torch.dtype, **how: bool) -> list[torch.Tensor]:
    """Tensors after STEPS steps with gradients that are the same for every device and dtype."""
    numbers = torch.Generator().manual_seed(7)
    drawn = [[torch.randn(s, generator=numbers) for s in SHAPES] for _ in range(STEPS + 1)]
    tensors = [t.to(device, dtype).requires_grad_() for t in drawn[0]]
    by = getattr(torch.optim, name)(tensors, lr=0.01, **OPTIMIZERS[name], **how)
    for gradients in drawn[1:]:
        for tensor, gradient in zip(tensors, gradients, strict=True):
            tensor.grad = gradient.to(device, dtype)
        by.step()
    return [t.detach() for t in tensors]


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_optimizers_equal_float64(name: str) -> None:
    """The plain loop, the one over all tensors, and the fused kernel: the profiler tells them apart."""
    wanted = trained(name, "cpu", torch.float64, foreach=False)
    names = ["aten::_foreach_add_", KERNELS[name]]
    ran = {}
    for way, how in (
        ("loop", {"foreach": False}),
        ("foreach", {"foreach": True}),
        ("fused", {"fused": True}),
    ):
        found: list[torch.Tensor] = []

        def train(how: dict[str, bool] = how, found: list[torch.Tensor] = found) -> None:
            found += trained(name, "cuda", torch.float32, **how)

        ran[way] = operators(train, names)
        for ours, theirs in zip(found, wanted, strict=True):
            close(ours, theirs, 1e-5)
    assert KERNELS[name] in ran["fused"]
    assert ran["foreach"] == {"aten::_foreach_add_"}
    assert ran["loop"] == set()


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256), torch.nn.Linear(256, 10)
    )


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float16, 1e-2), (torch.bfloat16, 5e-2)])
def test_mixed_precision_has_the_gradients_of_float64(dtype: torch.dtype, limit: float) -> None:
    """Products run in the narrow type, weights and gradients stay in float32."""
    net = network().cuda()
    exact = copy.deepcopy(net).double()
    x, y = torch.randn(512, 64, device="cuda"), torch.randint(0, 10, (512,), device="cuda")
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    by = torch.optim.SGD(net.parameters(), lr=0.1)
    with torch.autocast("cuda", dtype=dtype):
        out = net(x)
        loss = torch.nn.functional.cross_entropy(out, y)
    assert (out.dtype, loss.dtype) == (dtype, torch.float32)
    scaler.scale(loss).backward()
    scaler.unscale_(by)
    torch.nn.functional.cross_entropy(exact(x.double()), y).backward()
    for ours, theirs in zip(net.parameters(), exact.parameters(), strict=True):
        assert ours.dtype == ours.grad.dtype == torch.float32
        close(ours.grad, theirs.grad, limit)


def test_a_step_that_overflows_is_skipped() -> None:
    """The scale is halved then, and the weights stay."""
    weight = torch.ones(8, device="cuda", requires_grad=True)
    by = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    for factor, after, scale in ((float("inf"), 1.0, 512.0), (1.0, 0.9, 512.0)):
        by.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(by)
        scaler.update()
        close(weight.detach(), torch.full((8,), after, device="cuda"))
        assert scaler.get_scale() == scale


def kernels(function: Callable[[], object]) -> Counter[str]:
    """The kernels that a call of `function` runs on the GPU, with how often each ran."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, acc_events=True) as trace:
        function()
        torch.cuda.synchronize()
    events = (event for event in trace.events() if event.device_type == DeviceType.CUDA)
    return Counter(event.name for event in events)


def test_cudnn_benchmark_measures_and_keeps_the_result(observe: Observe) -> None:
    """The first call with a new shape tries kernels: many run. Later calls run the one that won."""
    weight = torch.randn(64, 32, 3, 3, device="cuda")
    counts = {}
    for limit, size in ((0, 40), (1, 44), (10, 48)):  # a limit of 0 here means that it is off
        x = torch.randn(4, 32, size, size, device="cuda")
        wanted = torch.nn.functional.conv2d(x.double(), weight.double(), padding=1)
        found: list[torch.Tensor] = []

        def convolve(x: torch.Tensor = x, found: list[torch.Tensor] = found) -> None:
            found.append(torch.nn.functional.conv2d(x, weight, padding=1))

        with torch.backends.cudnn.flags(
            enabled=True, benchmark=limit > 0, benchmark_limit=limit or 10, allow_tf32=False
        ):
            first, second = (kernels(convolve).total() for _ in range(2))
        counts[limit] = (first, second)
        for result in found:
            close(result, wanted)
    observe("kernels of a convolution, first and second call", counts)
    assert all(second >= 1 for _, second in counts.values())
    assert max(counts[0][0], counts[1][0], counts[10][1]) < counts[10][0]


# Sums by index and a product that cuBLAS may split: both add in an order that may change.
DETERMINISTIC = """
import hashlib, json, sys, torch
torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
numbers = torch.Generator("cuda").manual_seed(3)
draw = lambda *shape: torch.randn(shape, device="cuda", generator=numbers)
layer = torch.nn.Linear(4096, 96, device="cuda")
x, rows = draw(160, 4096), draw(50_000, 16)
index = torch.randint(0, 7, (50_000,), device="cuda", generator=numbers)
exact = torch.zeros(7, 16, device="cuda", dtype=torch.float64).index_add(0, index, rows.double())
streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
torch.cuda.synchronize()
seen = set()
for turn in range(12):
    with torch.cuda.stream(streams[turn % 3]):
        weight = layer.weight.detach().clone().requires_grad_()
        out = torch.nn.functional.gelu(x @ weight.t())
        [gradient] = torch.autograd.grad(out.square().sum(), weight)
        sums = torch.zeros(7, 16, device="cuda").index_add_(0, index, rows)
    torch.cuda.synchronize()
    error = float((sums.double() - exact).abs().max() / exact.abs().max())
    assert error < 1e-4, error
    parts = [t.detach().cpu().numpy().tobytes() for t in (out, gradient, sums)]
    seen.add(hashlib.sha256(b"".join(parts)).hexdigest())
print(json.dumps([torch.are_deterministic_algorithms_enabled(), len(seen), sorted(seen)]))
"""


def test_deterministic_runs_are_equal_to_the_bit() -> None:
    """12 runs on three streams, in each of two processes, with cuBLAS's workspace fixed."""
    env = environment({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
    said = [json.loads(child(DETERMINISTIC, env=env).splitlines()[-1]) for _ in range(2)]
    assert [answer[:2] for answer in said] == [[True, 1], [True, 1]]
    assert said[0] == said[1]
