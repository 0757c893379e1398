"""Notices a transfer that does not get on, whoever makes it."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch_images.errors import NetworkError

PATIENCE = 30.0  # seconds; raise only where a registry may be silent for longer and still get on
_LEAST = 1 << 20  # bytes in that time


class Stall:
    """Raises NetworkError once fewer than 1 MiB came in `patience` seconds."""

    def __init__(
        self, patience: float = PATIENCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._patience, self._clock = patience, clock
        self._since, self._bytes = clock(), 0

    def seen(self, total: int) -> None:
        """Take note of how many bytes there are so far. Raises NetworkError."""
        now = self._clock()
        if total - self._bytes >= _LEAST:
            self._since, self._bytes = now, total
        elif now - self._since > self._patience:
            raise NetworkError(f"less than {_LEAST >> 20} MB came in {self._patience:.0f} s")

    def rest(self, total: int) -> None:
        """Begin anew: for now nothing is expected to come."""
        self._since, self._bytes = self._clock(), total
