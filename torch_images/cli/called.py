"""Messages that name the command as the user called it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TextIO

from torch_images.errors import TorchImagesError, one_line
from torch_images.project import PROJECT

# The command in a message, followed by a verb.
_COMMANDS = re.compile(r"(?<=`)invoke(?= )|(?<![\w./])\./inv(?= [a-z])")


def called() -> str:
    """The command as the user called it; ./inv says so where it is called from another folder."""
    start = Path(sys.argv[0])
    if start.stem == "torch-images":
        return start.stem
    if {"invoke", "inv"} & {start.name, start.parent.name}:
        return "invoke"
    elsewhere = os.environ.get("TORCH_IMAGES_CALLED", "") if start.name == "-c" else ""
    return shlex.quote(elsewhere or "./inv")


def as_called(text: str) -> str:
    """A text with commands, such as "`invoke lock`" or "./inv build", as the user calls them.

    They keep the user's --project.
    """
    folder = os.environ.get(PROJECT, "")
    command = f"{called()} --project {shlex.quote(folder)}" if folder else called()
    return _COMMANDS.sub(lambda _: command, text)


def line(error: TorchImagesError, about: str = "error") -> str:
    """The line that reports an error, red on a terminal; `about` names its subject."""
    return red(one_line(about, as_called(error.message), as_called(error.hint)))


def red(text: str) -> str:
    """Red on a terminal: for errors."""
    return _styled(text, 31, sys.stderr)


def bold(text: str) -> str:
    """Bold on a terminal: for what to type."""
    return _styled(text, 1, sys.stdout)


def _styled(text: str, code: int, stream: TextIO) -> str:
    """Text with a style on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    if stream.isatty() and not os.environ.get("NO_COLOR"):
        return f"\x1b[{code}m{text}\x1b[0m"
    return text
