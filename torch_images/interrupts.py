"""Ctrl-C and SIGTERM: one line at once, an end that waits for no thread, nothing left running.

Imports nothing that takes time. ./inv starts Python with Ctrl-C blocked, so one that comes while
Python itself starts is dealt with here, too.
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
CODE = 130  # as shells have it: 128 and the signal's number
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GRACE = 1.0  # seconds for threads to end by themselves
_PATIENCE = 10.0  # seconds until a process ends, whatever it cleans up: an engine may hang

_lock = threading.Lock()
_ends: list[Callable[[], object]] = []
_deadline = 0.0  # until when threads are waited for; 0 until a signal comes
_over = False
_came: Interrupted | None = None
_held_back = False


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end; `code` is the exit code for that."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number


def end_at_once() -> None:
    """Let Ctrl-C end this process with one line: nothing is under way yet."""
    signal.signal(signal.SIGINT, _end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def raise_from_now_on() -> None:
    """Let Ctrl-C and SIGTERM raise Interrupted, where `end_at_once` was called before."""
    if signal.getsignal(signal.SIGINT) is _end:
        for number in _SIGNALS:
            signal.signal(number, _raise)


@contextlib.contextmanager
def ending(end: Callable[[], object]) -> Iterator[None]:
    """While this is open, `finish` calls `end`, which ends what a thread may be waiting for.

    Once it has done so, this calls `end` at once and raises Interrupted.
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
def held_back() -> Iterator[None]:
    """Let a signal raise Interrupted at the end of this, and not in between."""
    global _held_back  # noqa: PLW0603  signals are a process's own
    if threading.current_thread() is not threading.main_thread():  # none is raised in others
        yield
        return
    before, _held_back = _came, True
    try:
        yield
    finally:
        _held_back = False
    if _came and _came is not before:
        raise _came


@contextlib.contextmanager
def finishing() -> Iterator[None]:
    """End this process after a signal, whatever has become of the exception that it raised."""
    try:
        yield
    finally:
        if _came:
            finish(_came)


def grace() -> float:
    """How many seconds threads may still take to end by themselves."""
    return max(0.0, _deadline - time.monotonic()) if _deadline else _GRACE


def finish(stop: Interrupted) -> NoReturn:
    """End this process. Threads that go on are left behind."""
    global _over  # noqa: PLW0603  a process ends once
    with _lock:
        _over = True
    for end in reversed(_ends.copy()):
        with contextlib.suppress(Exception):
            end()
    until = time.monotonic() + max(grace(), _GRACE / 2)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, until - time.monotonic()))
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(stop.code)


def _raise(number: int, _frame: object) -> None:
    """Raise Interrupted. Further signals change nothing: what is cleaned up is not left halfway."""
    global _deadline, _came  # noqa: PLW0603  as above
    with contextlib.suppress(OSError):  # on a terminal, below a bar and what was typed
        os.write(2, ("\n" * os.isatty(2) + f"{TEXT}\n").encode())
    _deadline = time.monotonic() + _GRACE
    for each in _SIGNALS:
        signal.signal(each, lambda *_: None)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(128 + number))
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE)
    _came = Interrupted(number)
    if not _held_back:
        raise _came


def _end(_signal: int, _frame: object) -> None:
    sys.stdout.flush()
    os.write(2, b"interrupted\n")
    os._exit(CODE)
