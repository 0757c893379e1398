"""Ctrl-C before a command has begun: one line, and nothing else.

Imports nothing that takes time. ./inv starts Python with the signal blocked, so one that comes
while Python itself starts is dealt with here, too.
"""

from __future__ import annotations

import os
import signal
import sys

CODE = 130  # as shells have it: 128 and the signal's number


def end_at_once() -> None:
    """Let Ctrl-C end this process with one line: nothing is under way yet."""
    signal.signal(signal.SIGINT, _end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def raise_from_now_on() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, where `end_at_once` was called before."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_signal: int, _frame: object) -> None:
    sys.stdout.flush()
    os.write(2, b"interrupted\n")
    os._exit(CODE)
