"""Invoke, as this project uses it: its exit codes, and no secret in anything that is shown.

Plain `invoke` becomes the same as soon as it reads tasks.py.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator

from invoke import __version__, program
from invoke.exceptions import Exit, ParseError, UnknownFileType

from torch_images import interrupts
from torch_images.errors import UsageError, suggest
from torch_images.redact import Redactor, stream


class Program(program.Program):
    """Ends with exit code 2, and one line, for a command line that it cannot read."""

    def parse_core(self, argv: list[str] | None) -> None:
        """Read the options before the first verb."""
        with _one_line():
            super().parse_core(argv)
        known = ("flat", "nested", "json")
        if (wanted := self.args["list-format"].value) not in known:
            raise Exit(f"error: unknown list format '{wanted}'; {suggest(wanted, known)}", code=2)

    def parse_tasks(self) -> None:
        """Read the verbs and their options."""
        with _one_line(self.collection.task_names):
            super().parse_tasks()

    def parse_cleanup(self) -> None:
        """Do what the options before the first verb ask for, such as --help."""
        with _one_line(self.collection.task_names):
            super().parse_cleanup()

    def update_config(self, merge: bool = True) -> None:
        """Read the file that --config names."""
        try:
            super().update_config(merge)
        except UnknownFileType as error:
            raise Exit(f"error: {error}", code=2) from None


def main() -> None:
    """Run the verbs of the command line; ends the process unless all goes well."""
    _hide_secrets()
    names = ["invoke", "inv"]
    Program(version=__version__, name="Invoke", binary="inv[oke]", binary_names=names).run()


def adopt() -> None:
    """Make a plain `invoke` that is running behave as `main` does; without one, do nothing."""
    from invoke.main import program as plain

    if plain.argv and not isinstance(plain, Program):
        interrupts.end_at_once()
        _hide_secrets()
        plain.__class__ = Program


def _hide_secrets() -> None:
    """Let no secret reach standard output and standard error, tracebacks included."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path need not be text in any encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    redactor = Redactor.of(os.environ, sys.argv)
    sys.stdout, sys.stderr = stream(sys.stdout, redactor), stream(sys.stderr, redactor)


@contextlib.contextmanager
def _one_line(verbs: Iterable[str] = ()) -> Iterator[None]:
    try:
        yield
    except ParseError as error:
        found = _problem(error, verbs)
    except ValueError as error:  # a word where Invoke itself wants a number
        found = UsageError(str(error), "see `invoke --help`")
    else:
        return
    raise Exit(f"error: {found}", code=found.exit_code) from None


def _problem(error: ParseError, verbs: Iterable[str]) -> UsageError:
    """What Invoke cannot read, in this project's words."""
    context = error.context
    help_ = f"`invoke --help{f' {context.name}' if context and context.name else ''}`"
    if word := re.fullmatch(r"No idea what '(.*)' is!", str(error), re.DOTALL):
        if word[1].startswith("-"):
            flags = [flag for flag in context.flags if flag.startswith("--")] if context else ()
            return UsageError(f"unknown option '{word[1]}'", suggest(word[1], flags))
        return UsageError(f"unknown word '{word[1]}'", f"verbs: {suggest(word[1], verbs)}")
    if flag := re.match(r"Flag <Argument: (\S+)", str(error)):
        return UsageError(f"--{flag[1].replace('_', '-')} needs a value", f"see {help_}")
    return UsageError(str(error).rstrip("!"), f"see {help_}")
