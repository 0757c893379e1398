"""Become a command, as a shell's `exec` does: torch-entrypoint and pod-start end with it."""

import errno
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # the statuses that shells end with
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # of shells that have none


def execute(command: list[str], environ: Mapping[str, str], say: Callable[[str], None]) -> NoReturn:
    """Become the command. Otherwise say why not in one line, and exit."""
    name = command[0]
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and so would the command
        signal.signal(number, signal.SIG_DFL)
    folders = [""] if "/" in name else os.get_exec_path({"PATH": PATH, **environ})
    status, why = NOT_FOUND, f"there is no command {name!r}"
    for path in (os.path.join(folder, name) for folder in folders):
        try:
            _execute(path, command, environ)
        except (FileNotFoundError, NotADirectoryError):
            if os.path.exists(path):
                why = (
                    f"{path!r} starts with #! and a program that is not here, or ends lines in CRLF"
                )
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", error)
            status, why = NOT_EXECUTABLE, f"{path!r} cannot be executed: {problem}"
    say(why)
    sys.exit(status)


def _execute(path: str, command: list[str], environ: Mapping[str, str]) -> None:
    """Execute a file; one that is neither a program nor begins with #! is a script of sh."""
    try:
        os.execve(path, command, environ)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        os.execve("/bin/sh", ["sh", path, *command[1:]], environ)
