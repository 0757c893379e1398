"""Threads that work in parallel, and that an interruption does not wait for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor

_here = threading.local()


def check_broken_off() -> None:
    """Raise CancelledError in a worker thread if an error in another one has ended the work."""
    if (stop := getattr(_here, "stop", None)) and stop.is_set():
        raise CancelledError


@contextlib.contextmanager
def workers(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of `count` threads. An error cancels pending tasks, and waits for running ones.

    Tasks that call `check_broken_off`, as downloads do, then end early.

    An interruption by the user waits for nothing: a download or a compressor takes minutes. Tasks
    that must not leave anything behind use `interrupts.ending`.
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
