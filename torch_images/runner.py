"""The only module that starts processes.

A `Runner` is handed to whatever needs one, so tests can hand over one that records instead.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import termios
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_images.errors import CommandError, TorchImagesError

_TAIL = 400  # lines of output kept of a streamed command, enough for any build error


@dataclass(frozen=True)
class Completed:
    """How a command ended; `output` is stdout for `run`, the last lines of both for `stream`.

    `errors` is stderr, where `run` captured it.
    """

    code: int
    output: str
    errors: str = ""


class Runner:
    """Starts processes. `env` adds to this process's environment; a None value removes a name."""

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        stdin: str | None = None,
        check: bool = True,
        show_errors: bool = False,
    ) -> Completed:
        """Run to the end with its output captured, or only stdout with `show_errors`.

        Raises CommandError when `check` is set and the command fails; the error holds what was
        captured.
        """
        with _starting(command):
            done = subprocess.run(
                command,
                env=_environment(env),
                cwd=cwd,
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                stdout=subprocess.PIPE,
                stderr=None if show_errors else subprocess.PIPE,
                text=True,
                errors="replace",
                check=False,
            )
        if check and done.returncode:
            raise CommandError(
                shlex.join(command), done.returncode, done.stdout + (done.stderr or "")
            )
        return Completed(done.returncode, done.stdout, done.stderr or "")

    def interact(self, command: Sequence[str], *, cwd: Path | None = None) -> int:
        """Run on the user's own terminal, so that it can ask and has colours; its exit code."""
        with _starting(command):
            return subprocess.run(command, cwd=cwd, check=False).returncode

    def stream(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
    ) -> Completed:
        """Run with its output shown as it comes and the last lines kept.

        On a terminal the command gets a terminal too, so that its own progress display works.
        """
        terminal = sys.stderr.isatty()
        if terminal:
            ours, theirs = os.openpty()
            termios.tcsetwinsize(theirs, termios.tcgetwinsize(sys.stderr.fileno()))
        else:
            ours, theirs = os.pipe()
        with _starting(command):
            process = subprocess.Popen(
                command,
                env=_environment(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
            )
        os.close(theirs)
        try:
            tail = _tee(ours)
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
        finally:
            os.close(ours)
        return Completed(process.wait(), tail)


def _tee(source: int) -> str:
    """Copy a file descriptor to stderr until it ends; its last lines."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    lines: deque[str] = deque([""], maxlen=_TAIL)
    while True:
        try:
            chunk = os.read(source, 65536)
        except OSError:  # a terminal whose other end is closed reads as EIO, not as end of file
            chunk = b""
        if not chunk:
            return "\n".join(lines)
        text = decoder.decode(chunk)
        sys.stderr.write(text)
        sys.stderr.flush()
        first, *rest = text.replace("\r\n", "\n").split("\n")
        lines[-1] += first
        lines.extend(rest)


def _environment(changes: Mapping[str, str | None] | None) -> dict[str, str]:
    merged = {**os.environ, **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}


@contextlib.contextmanager
def _starting(command: Sequence[str]) -> Iterator[None]:
    """Name a program that is missing."""
    try:
        yield
    except FileNotFoundError:
        if shutil.which(command[0]):
            raise
        raise TorchImagesError(
            f"'{command[0]}' is not installed",
            "run through ./inv, which installs what is missing, or install it by hand",
        ) from None
