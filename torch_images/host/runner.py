"""The only module that starts processes.

Callers get a `Runner` as an argument, so tests can pass one that only records.
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
from typing import Any

from torch_images.errors import CommandError, TorchImagesError
from torch_images.interrupts import deferred, ending
from torch_images.redact import Lines, Redactor

# Seconds that an interrupted process has to clean up: in the main thread, and in other threads,
# which nobody waits for.
_GRACE, _SHORT = 5.0, 1.0
_TAIL = 400  # lines of output kept of a streamed command, enough for any build error

Environment = Mapping[str, str | None] | None


@dataclass(frozen=True)
class Completed:
    """The result of a command: its exit `code` and its output.

    `output` is stdout after `run`, and the last lines of both streams after `stream`. `errors` is
    stderr, if `run` captured it.
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
        env: Environment = None,
        cwd: Path | None = None,
        stdin: str | None = None,
        check: bool = True,
        show_errors: bool = False,
        seconds: float | None = None,
    ) -> Completed:
        """Run to the end with its output captured; with `show_errors`, all but stderr.

        Raises CommandError, with the captured output, if `check` is set and the command fails or
        takes longer than `seconds`.
        """
        options: dict[str, Any] = {"text": True, "errors": "replace", "env": _environment(env)}
        options |= {"stdin": subprocess.DEVNULL if stdin is None else subprocess.PIPE, "cwd": cwd}
        options |= {"stdout": subprocess.PIPE, "stderr": None if show_errors else subprocess.PIPE}
        try:
            with _started(command, **options) as process:
                try:
                    output, errors = process.communicate(stdin, timeout=seconds)
                except subprocess.TimeoutExpired:
                    # What the process started may hold the pipes open for ever: nobody reads them.
                    for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
                        pipe.close()
                    problem = f"no answer within {seconds or 0:.0f} seconds"
                    raise CommandError(shlex.join(command), 124, problem) from None
        except CommandError as error:
            if check:
                raise
            return Completed(error.code, "", error.output)
        if check and process.returncode:
            raise CommandError(shlex.join(command), process.returncode, output + (errors or ""))
        return Completed(process.returncode, output, errors or "")

    def interact(
        self, command: Sequence[str], *, env: Environment = None, cwd: Path | None = None
    ) -> int:
        """Run on the user's own terminal, so that it can ask and show colours; the exit code."""
        with _starting(command):
            return subprocess.run(command, env=_environment(env), cwd=cwd, check=False).returncode

    def stream(self, command: Sequence[str], *, env: Environment = None) -> Completed:
        """Run with its output shown as it comes; keeps the last lines.

        On a terminal the command gets a terminal too, so that its own progress display works.
        """
        shows = sys.stderr.isatty()
        ours, theirs = os.openpty() if shows else os.pipe()
        if shows:
            termios.tcsetwinsize(theirs, termios.tcgetwinsize(sys.stderr.fileno()))
        with os.fdopen(ours, "rb", 0) as shown, contextlib.ExitStack() as stack:
            with os.fdopen(theirs, "wb", 0) as both:
                options = {"stdin": subprocess.DEVNULL, "stdout": both, "stderr": both}
                started = _started(command, env=_environment(env), **options)
                process = stack.enter_context(started)
            tail = _tee(shown.fileno())
            return Completed(process.wait(), tail)


@contextlib.contextmanager
def _started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a process and wait for it at the end; it cannot be left behind at any moment."""
    with contextlib.ExitStack() as stack:
        with deferred(), _starting(command):
            process = subprocess.Popen(command, **options)
            stack.enter_context(_watching(process))
        yield process


@contextlib.contextmanager
def _watching(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Wait for a process at the end; an interruption in any thread stops the process."""

    def stop(seconds: float) -> None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    with ending(lambda: stop(_SHORT)):
        try:
            yield
        except BaseException:
            stop(_GRACE)
            raise


def _tee(source: int) -> str:
    """Copy a file descriptor to stderr until it ends, without secrets. Returns its last lines."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    whole = Lines(Redactor.of(os.environ, sys.argv))
    lines: deque[str] = deque([""], maxlen=_TAIL)
    while True:
        try:
            chunk = os.read(source, 65536)
        except OSError:  # a terminal whose other end is closed reads as EIO, not as end of file
            chunk = b""
        text = whole.feed(decoder.decode(chunk, final=not chunk))
        text += "" if chunk else whole.rest()
        sys.stderr.write(text)
        sys.stderr.flush()
        first, *rest = text.replace("\r\n", "\n").split("\n")
        lines[-1] += first
        lines.extend(rest)
        if not chunk:
            return "\n".join(lines)


def _environment(changes: Environment) -> dict[str, str]:
    merged = {**os.environ, **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}


@contextlib.contextmanager
def _starting(command: Sequence[str]) -> Iterator[None]:
    """Turn a missing program into an error that names it."""
    try:
        yield
    except FileNotFoundError:
        if shutil.which(command[0]):
            raise
        raise TorchImagesError(
            f"'{command[0]}' is not installed",
            "install it; in a clone of the project, scripts/setup-engine installs what builds need",
        ) from None
