"""What the checks on a GPU share: what this one can do, and how results are compared."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

# Largest error, relative to the largest value of the exact result, that rounding explains.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}


def capability() -> tuple[int, int]:
    """The compute capability of the GPU."""
    found: tuple[int, int] = torch.cuda.get_device_capability()
    return found


def needs(major: int, minor: int, what: str) -> None:
    """Skip on a GPU that cannot do something: that is no fault of the image's."""
    if capability() < (major, minor):
        name, (a, b) = torch.cuda.get_device_name(), capability()
        pytest.skip(f"{what} needs compute capability {major}.{minor}; {name} has {a}.{b}")


def close(found: torch.Tensor, wanted: torch.Tensor, limit: float | None = None) -> None:
    """Compare with an exact result in float64: all finite, and no error larger than rounding's."""
    limit = TOLERANCE[found.dtype] if limit is None else limit
    wanted = wanted.to(found.device, torch.float64)
    assert found.shape == wanted.shape
    assert torch.isfinite(found).all()
    error = (found.double() - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30)
    assert error <= limit, f"relative error {error:.2e} over {limit:.0e}"


def operators(function: object, names: Sequence[str]) -> set[str]:
    """Which of these operators a call ran."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as trace:
        function()  # type: ignore[operator]
    return {event.key for event in trace.key_averages()} & set(names)
