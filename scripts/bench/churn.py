"""A fixed sequence of allocations of changing sizes. Pure: no torch."""

from __future__ import annotations

from collections.abc import Iterator

STEPS = 2000
LIMIT = 8 * 2**30  # most bytes allocated at once
PHASES = (4, 12, 20, 48, 80, 112, 24, 64)  # MiB: the typical size in each part
MIB = 2**20


def numbers(seed: int = 1) -> Iterator[int]:
    """Pseudo-random numbers of 32 bits, the same on each machine (Knuth's MMIX generator)."""
    while True:
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        yield seed >> 32


def plan(steps: int = STEPS, limit: int = LIMIT) -> list[tuple[int, int]]:
    """(bytes, -1) takes memory, (0, n) gives back the n-th of what is held, which moves up.

    Sizes change from part to part, as those of batches of different lengths do. At most `limit`
    bytes are held. All is given back at the end.
    """
    found: list[tuple[int, int]] = []
    held: list[int] = []
    random = numbers()
    for step in range(steps):
        around = PHASES[step * len(PHASES) // steps] * MIB
        size = around // 2 + next(random) % around
        while held and sum(held) + size > limit:
            drop = next(random) % len(held)
            held.pop(drop)
            found.append((0, drop))
        held.append(size)
        found.append((size, -1))
    return [*found, *((0, 0) for _ in held)]
