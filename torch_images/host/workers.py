"""Threads that work side by side, and that an interruption does not wait for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor

_here = threading.local()


def check_broken_off() -> None:
    """Raise CancelledError in one of several threads, once an error has ended their common work."""
    if (stop := getattr(_here, "stop", None)) and stop.is_set():
        raise CancelledError


@contextlib.contextmanager
def workers(count: int) -> Iterator[ThreadPoolExecutor]:
    """So many threads. After an error what has not begun is left out, and the rest waited for.

    That ends sooner where it calls `check_broken_off`, as downloads do.

    Where the user breaks off, nothing is waited for: a download or a compressor takes minutes. What
    must not be left behind says so by `interrupts.ending`.
    """
    stop = threading.Event()
    pool = ThreadPoolExecutor(count, initializer=setattr, initargs=(_here, "stop", stop))
    try:
        yield pool
    except BaseException as error:
        stop.set()
        pool.shutdown(wait=not isinstance(error, KeyboardInterrupt), cancel_futures=True)
        raise
    pool.shutdown()
