"""torch.profiler on this GPU: the trace that it exports has the kernels, and how long they took."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.container.processes import child

pytestmark = pytest.mark.gpu
Observe = Callable[[str, object], None]


def test_the_exported_trace_has_kernels_and_their_durations(
    tmp_path: Path, observe: Observe
) -> None:
    """A kernel that waits for some 50 ms is as long in the trace as between two events of CUDA.

    Its duration may differ by 10 %. The trace also joins it to the call that launched it.
    """
    a, b = (torch.randn(1024, 1024, device="cuda", dtype=torch.float16) for _ in range(2))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1000)
    a @ b  # what is loaded at first use is not to be in the trace
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as made:
        start.record()
        torch.cuda._sleep(100_000_000)
        end.record()
        for _ in range(3):
            a @ b
        torch.cuda.synchronize()
    path = tmp_path / "trace.json"
    made.export_chrome_trace(str(path))
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    ran = [event for event in events if event.get("cat") == "kernel"]
    assert all(event["dur"] > 0 for event in ran)
    [waiting] = [event for event in ran if "spin" in event["name"]]
    waited = waiting["dur"] / 1e3
    timed = start.elapsed_time(end)
    observe("a kernel in the trace", f"{waited:.3f} ms; between events {timed:.3f} ms")
    assert timed > 5
    assert abs(waited - timed) < 0.1 * timed
    products = [event for event in ran if "spin" not in event["name"]]
    assert len(products) >= 3
    assert len([e for e in events if e.get("cat") == "cpu_op" and e["name"] == "aten::mm"]) == 3
    launches = {
        event["args"]["correlation"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event["args"]
    }
    assert waiting["args"]["correlation"] in launches


CPU = "[ProfilerActivity.CPU]"
BOTH = "[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
PROFILES = """
import torch
from torch.profiler import ProfilerActivity, profile
x = torch.ones(8, device="cuda")
for activities in [%s]:
    with profile(activities=activities, acc_events=True) as made:
        x + x
        torch.cuda.synchronize()
print(sum(e.device_type == torch.autograd.DeviceType.CUDA for e in made.events()))
"""


def test_a_profile_of_the_cpu_alone(observe: Observe) -> None:
    """How many kernels a second profile sees, with the GPU, if the first one was of the CPU alone.

    From torch 2.13 on it sees none, so the number is recorded, not demanded. The same second
    profile by itself has to see one.
    """
    observe("kernels in a profile after one of the CPU alone", kernels_of_the_last(CPU, BOTH))
    assert kernels_of_the_last(BOTH) >= 1


def kernels_of_the_last(*profiles: str) -> int:
    """How many kernels the last of several profiles saw, in a process of its own."""
    return int(child(PROFILES % ", ".join(profiles)).splitlines()[-1])
