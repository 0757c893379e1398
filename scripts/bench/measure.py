"""How a call is timed on a GPU: events, warm-up, many samples, inputs that no cache has."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Call = Callable[[int], object]

SAMPLE = 1e-3  # seconds that one sample takes at least: short calls are repeated in it
WARM_UP = 0.2  # seconds
SAMPLES = (15, 200)  # at least, at most
SPENT = 1.0  # seconds for the samples of a case, once there are enough
REPEATS = 200  # calls in one sample, at most
CACHES = 3  # inputs rotate through this many times the size of the L2 cache
SETS = 64  # sets of inputs, at most


@dataclass(frozen=True)
class Timing:
    """Seconds for one call: every sample, in the order they were taken."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """Half of the samples took longer."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Between them is the middle half of the samples."""
        first, _, third = statistics.quantiles(self.samples, n=4)
        return first, third


def sets_for(size: int) -> int:
    """How many sets of inputs of `size` bytes it takes that none stays in the L2 cache."""
    cache: int = torch.cuda.get_device_properties().L2_cache_size
    return min(SETS, max(1, math.ceil(CACHES * cache / max(size, 1))))


def measure(call: Call, sets: int, devices: Sequence[int] = (0,)) -> Timing:
    """Time `call(i)`, i rotating through the sets of inputs.

    A sample is what two events on the device measure around as many calls as take a millisecond,
    divided by them. What a call waits for in Python counts where the device waits for it, too, as
    it does in a program that runs eagerly.
    """

    def wait() -> None:
        for device in devices:
            torch.cuda.synchronize(device)

    turn = 0

    def sample(count: int) -> float:
        nonlocal turn
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            call(turn % sets)
            turn += 1
        end.record()
        wait()
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
    return Timing(tuple(samples))
