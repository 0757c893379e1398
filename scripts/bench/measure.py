"""Timing of a call on a GPU: events, warm-up, many samples, inputs that are not cached."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

Call = Callable[[int], object]

SAMPLE = 1e-3  # seconds that one sample takes at least: short calls are repeated in it
WARM_UP = 0.2  # seconds
SAMPLES = (15, 200)  # at least, at most
SPENT = 0.5  # seconds for the samples of a case, once there are enough
REPEATS = 200  # calls in one sample, at most
CACHES = 3  # inputs rotate through this many times the size of the L2 cache
SETS = 1024  # sets of inputs, at most
PACES = 5  # how often the host's and the device's share is measured
QUEUED = 10  # calls that wait on the device together, at most: its queue has some 1000 places
HELD = 0.5  # most seconds that the device is blocked while calls are queued
CYCLES = 2e7  # of the device's clock, to measure its speed


@dataclass(frozen=True)
class Timing:
    """Seconds for one call: every sample, in the order they were taken.

    `host` is what the processor needs to enqueue a call, `device` what the GPU needs for it where
    it never waits for the processor. They are 0 where they were not measured.
    """

    samples: tuple[float, ...]
    host: float = 0.0
    device: float = 0.0

    @property
    def median(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and third quartile of the samples."""
        first, _, third = statistics.quantiles(self.samples, n=4)
        return first, third


def sets_for(size: int) -> int:
    """The number of sets of inputs of `size` bytes with which none stays in the L2 cache."""
    l2: int = torch.cuda.get_device_properties().L2_cache_size
    return min(SETS, max(1, math.ceil(CACHES * l2 / max(size, 1))))


def measure(call: Call, sets: int, devices: Sequence[int] = (0,), calls: int = 1) -> Timing:
    """Time `call(i)`, i rotating through the sets of inputs.

    A sample is what two events on the device measure around as many calls as take a millisecond,
    divided by them. What a call waits for in Python counts where the device waits for it, too, as
    it does in a program that runs eagerly. `calls` is how often `call` runs the timed operation.
    """
    turn = 0

    def several(count: int) -> None:
        nonlocal turn
        for _ in range(count):
            call(turn % sets)
            turn += 1

    def sample(count: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        several(count)
        end.record()
        _wait(devices)
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1e3 / count

    sample(1)  # compiles, chooses kernels, takes memory
    once = sample(1)
    spent = once
    while spent < WARM_UP:
        once = sample(max(1, min(REPEATS, int(SAMPLE / max(once, 1e-9)))))
        spent += max(once, SAMPLE)
    count = max(1, min(REPEATS, math.ceil(SAMPLE / max(once, 1e-9))))
    least, most = SAMPLES
    samples: list[float] = []
    while len(samples) < least or (len(samples) < most and sum(samples) * count < SPENT):
        samples.append(sample(count))
    host, device = paces(several, devices)
    return Timing(tuple(s / calls for s in samples), host / calls, device / calls)


def fixed(call: Call, sets: int, warm: int, count: int) -> Timing:
    """Time one call a sample, `count` samples after `warm` calls.

    Processes that wait for each other need this, because all must make the same number of calls.
    """
    samples = []
    for turn in range(warm + count):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call(turn % sets)
        end.record()
        _wait((torch.cuda.current_device(),))
        samples.append(begin.elapsed_time(end) / 1e3)
    return Timing(tuple(samples[warm:]))


def paces(several: Callable[[int], object], devices: Sequence[int] = (0,)) -> tuple[float, float]:
    """Seconds that the host needs to enqueue a call, and the device to run it: medians.

    `several(count)` makes calls. The host is timed while the device's queue is empty. The device is
    timed while it works off calls that were all queued before, behind a kernel that does nothing
    but hold it: so it never waits for the host.
    """
    hosts, ran, count = [], [], 1
    for trial in range(PACES + 1):
        _wait(devices)
        start = time.perf_counter()
        several(count)
        host = (time.perf_counter() - start) / count
        _wait(devices)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        held = min(HELD, 1.5 * host * count + 1e-4)
        torch.cuda._sleep(int(held * _clock()))
        begin.record()
        several(count)
        end.record()
        _wait(devices)
        if trial:
            hosts.append(host)
            ran.append(begin.elapsed_time(end) / 1e3 / count)
        else:  # the first trial only tells how many calls one should have
            count = max(1, min(QUEUED, int(2e-3 / max(host, 1e-9))))
    return statistics.median(hosts), statistics.median(ran)


@cache
def _clock() -> float:
    """Cycles per second of the clock that blocks the device."""
    for _ in range(2):  # the first one wakes the device
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(int(CYCLES))
        end.record()
        _wait((0,))
    seconds: float = begin.elapsed_time(end) / 1e3
    return CYCLES / seconds if seconds > 0 else 2e9


def _wait(devices: Sequence[int]) -> None:
    for device in devices:
        torch.cuda.synchronize(device)
