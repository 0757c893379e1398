"""Helpers of the checks on a GPU: its compute capability, comparison of results, and memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

import pytest
import torch

# The largest error that rounding explains, relative to the largest absolute exact value.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}


def capability() -> tuple[int, int]:
    """The compute capability of the GPU: major and minor."""
    found: tuple[int, int] = torch.cuda.get_device_capability()
    return found


def needs(major: int, minor: int, what: str) -> None:
    """Skip if the GPU's compute capability is below `major`.`minor`; `what` needs that."""
    if capability() < (major, minor):
        name, (a, b) = torch.cuda.get_device_name(), capability()
        pytest.skip(f"{what} needs compute capability {major}.{minor}; {name} has {a}.{b}")


def needs_gpus(size: int) -> None:
    """Skip where there are fewer GPUs."""
    if torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} GPUs; {torch.cuda.device_count()} is here")


def close(found: torch.Tensor, wanted: torch.Tensor, limit: float | None = None) -> None:
    """Assert that `found` is finite and near `wanted`, the exact result, of the same shape.

    `limit` is the largest error, relative to the largest absolute value of `wanted`; it is
    TOLERANCE's for the dtype of `found` if it is not given.
    """
    limit = TOLERANCE[found.dtype] if limit is None else limit
    wanted = wanted.to(found.device, torch.float64)
    assert found.shape == wanted.shape
    assert torch.isfinite(found).all()
    error = (found.double() - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30)
    assert error <= limit, f"relative error {error:.2e} exceeds {limit:.0e}"


def operators(function: object, names: Sequence[str]) -> set[str]:
    """Those of the operators `names` that a call of `function` ran, by the profiler."""
    from torch.profiler import ProfilerActivity, profile

    # With the GPU, which is not asked for here: see test_a_profile_of_the_cpu_alone.
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, acc_events=True) as trace:
        function()  # type: ignore[operator]
    return {event.key for event in trace.key_averages()} & set(names)


def taken(make: Callable[[], object]) -> tuple[int, int]:
    """The bytes that what `make` returns asks the allocator for, and those that it is given."""
    names = ("requested_bytes.all.current", "allocated_bytes.all.current")
    gc.collect()
    torch.cuda.synchronize()
    before = [torch.cuda.memory_stats().get(name, 0) for name in names]
    held = make()
    torch.cuda.synchronize()
    gc.collect()
    after = [torch.cuda.memory_stats()[name] for name in names]
    del held
    requested, allocated = (b - a for a, b in zip(before, after, strict=True))
    return requested, allocated
