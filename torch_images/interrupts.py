"""Ctrl-C and SIGTERM: one line at once, a quick end without waiting, nothing left running.

All imports are fast. ./inv starts Python with Ctrl-C blocked, so a Ctrl-C during Python's start is
handled here too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

TEXT = "interrupted"
CODE = 130  # the convention of shells: 128 plus the signal's number
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 1.0  # seconds for threads to end by themselves
_PATIENCE = 10.0  # seconds until a process ends despite its cleanup: an engine may hang

_lock = threading.Lock()
_ends: list[Callable[[], object]] = []
_over = False
_came: Interrupted | None = None
_asked = threading.Event()
_deferring = False


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end; `code` is its exit code."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number


def interrupted(seconds: float) -> bool:
    """Whether a signal asked this process to end, or does so soon, for a thread.

    A terminal's Ctrl-C also ends children, whose errors may come first.
    """
    return _asked.wait(seconds)


def end_at_once() -> None:
    """Make Ctrl-C end this process with one line, because nothing needs cleanup yet."""
    signal.signal(signal.SIGINT, _end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def raise_from_now_on() -> None:
    """Make Ctrl-C and SIGTERM raise Interrupted, if `end_at_once` was called before."""
    if signal.getsignal(signal.SIGINT) is _end:
        for number in _SIGNALS:
            signal.signal(number, _raise)
        source, target = os.pipe()
        os.set_blocking(target, False)
        signal.set_wakeup_fd(target)
        threading.Thread(target=_wake, args=(source,), daemon=True).start()


def _wake(source: int) -> None:
    """Repeat each signal that comes for the main thread until its handler has run.

    One that comes just before that thread waits for a lock does not end the wait.
    """
    while number := os.read(source, 1):
        while number[0] in _SIGNALS and not _asked.wait(0.1):
            signal.pthread_kill(threading.main_thread().ident or 0, number[0])


@contextlib.contextmanager
def ending(end: Callable[[], object]) -> Iterator[None]:
    """Within this block, `finish` calls `end`, which stops something that a thread waits for.

    If `finish` has already run, calls `end` at once and raises Interrupted.
    """
    with _lock:
        over = _over
        if not over:
            _ends.append(end)
    if over:
        end()
        raise Interrupted(signal.SIGTERM)
    try:
        yield
    finally:
        _ends.remove(end)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Delay Interrupted from a signal until the end of this block."""
    global _deferring  # noqa: PLW0603  signals are a process's own
    if threading.current_thread() is not threading.main_thread():  # signals raise only there
        yield
        return
    before, _deferring = _came, True
    try:
        yield
    finally:
        _deferring = False
    if _came and _came is not before:
        raise _came


@contextlib.contextmanager
def finishing() -> Iterator[None]:
    """End this process after a signal, even if its exception was caught."""
    try:
        yield
    finally:
        if _came:
            finish(_came)


def finish(stop: Interrupted) -> NoReturn:
    """End this process, without waiting for threads that keep running."""
    global _over  # noqa: PLW0603  a process ends once
    with _lock:
        _over = True
    # At once, because each may take seconds on a busy machine.
    ends = [threading.Thread(target=_quietly, args=(end,), daemon=True) for end in _ends.copy()]
    for end in ends:
        end.start()
    for end in ends:
        end.join()
    until = time.monotonic() + GRACE
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, until - time.monotonic()))
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(stop.code)


def _quietly(end: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):
        end()


def _raise(number: int, _frame: object) -> None:
    """Raise Interrupted. Ignores further signals, so that the cleanup completes."""
    global _came  # noqa: PLW0603  as above
    with contextlib.suppress(OSError):  # on a terminal, below a bar and typed text
        os.write(2, ("\n" * os.isatty(2) + f"{TEXT}\n").encode())
    for each in _SIGNALS:
        signal.signal(each, lambda *_: None)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(128 + number))
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE)
    _came = Interrupted(number)
    _asked.set()
    if not _deferring:
        raise _came


def _end(_signal: int, _frame: object) -> None:
    sys.stdout.flush()
    os.write(2, b"interrupted\n")
    os._exit(CODE)
