"""Threads that work side by side, and that an interruption does not wait for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor


@contextlib.contextmanager
def workers(count: int) -> Iterator[ThreadPoolExecutor]:
    """So many threads. After an error what has not begun is left out, and the rest waited for.

    Where the user breaks off, nothing is waited for: a download or a compressor takes minutes. What
    must not be left behind says so by `interrupts.ending`.
    """
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    except BaseException as error:
        pool.shutdown(wait=not isinstance(error, KeyboardInterrupt), cancel_futures=True)
        raise
    pool.shutdown()
