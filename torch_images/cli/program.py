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
from invoke.parser.argument import Argument

from torch_images import interrupts
from torch_images.errors import UsageError, suggest
from torch_images.redact import Redactor, stream

CONFIG = "TORCH_IMAGES_CONFIG"
# What a verb was called before, and is called now.
RENAMED = {"clean": "gc", "prune": "gc", "manifest": "datasheet"}


class Program(program.Program):
    """Ends with exit code 2, and one line, for a command line that it cannot read."""

    def core_args(self) -> list[Argument]:
        """Invoke's options before the first verb; --config names this project's file instead."""
        args = [arg for arg in super().core_args() if arg.name != "config"]
        text = "images.yaml to use, else TORCH_IMAGES_CONFIG; its locks lie beside it, in locks/"
        return [Argument(names=("config", "f"), help=text), *args]

    def parse_core(self, argv: list[str] | None) -> None:
        """Read the options before the first verb."""
        with _one_line():
            super().parse_core(argv)
        _use_config(self.args.config.value)
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
        """Let Invoke read its own files, and not the one that --config names."""
        named, self.args["config"] = self.args["config"], Argument(name="config")
        try:
            super().update_config(merge)
        except UnknownFileType as error:
            raise Exit(f"error: {error}", code=2) from None
        finally:
            self.args["config"] = named

    def list_flat(self) -> None:
        """Print the verbs by what they are for, in the order of the flow."""
        from torch_images.cli.collection import GROUPS

        known = dict(self._make_pairs(self.scoped_collection))
        for group, verbs in GROUPS.items():
            names = [verb.name.replace("_", "-") for verb in verbs]
            print(f"{group}:\n")
            self.print_columns([(name, known.pop(name)) for name in names if name in known])
        if known:  # a tasks.py of somebody else's
            super().list_flat()

    def print_task_help(self, name: str) -> None:
        """Print the help of a verb; that of an axis names the values of images.yaml."""
        from torch_images.cli.collection import axis_values

        options = self.parser.contexts[name].args
        for axis, values in axis_values(options).items():
            options[axis].help = f"{options[axis].help}; one of {', '.join(values)}"
        super().print_task_help(name)


def main() -> None:
    """Run the verbs of ./inv; ends the process unless all goes well."""
    _hide_secrets()
    # Shells complete ./inv by calling it; without an environment there is no `invoke` to call.
    _run(Program(version=__version__, name="Invoke", binary="inv[oke]", binary_names=["./inv"]))


def installed() -> None:
    """Run the verbs of `torch-images`, which has them without a tasks.py."""
    interrupts.end_at_once()
    _hide_secrets()
    import importlib.metadata  # takes 25 ms, and ./inv does not need it

    from torch_images.cli.collection import namespace

    version = importlib.metadata.version("torch-images")
    name = "torch-images"
    _run(Program(version=version, namespace=namespace, name=name, binary=name, binary_names=[name]))


def _run(verbs: Program) -> None:
    """Run a program to its end, which comes early where nobody reads on, as in `--list | head`."""
    try:
        verbs.run()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def adopt() -> None:
    """Make a plain `invoke` that is running behave as `main` does; without one, do nothing."""
    from invoke.main import program as plain

    if plain.argv and not isinstance(plain, Program):
        interrupts.end_at_once()
        _hide_secrets()
        plain.__class__ = Program
        _use_config(plain.args.config.value)


def _use_config(named: str | None) -> None:
    """Let all that reads images.yaml read the named file, wherever it works."""
    if named:
        os.environ[CONFIG] = os.path.abspath(named)  # noqa: PTH100  a link stays one


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
        if now := RENAMED.get(word[1]):
            return UsageError(f"the verb '{word[1]}' is called '{now}' now", f"see `--help {now}`")
        if word[1].startswith("-"):
            flags = [flag for flag in context.flags if flag.startswith("--")] if context else ()
            return UsageError(f"unknown option '{word[1]}'", suggest(word[1], flags))
        return UsageError(f"unknown word '{word[1]}'", f"verbs: {suggest(word[1], verbs)}")
    if flag := re.match(r"Flag <Argument: ([^\s>]+)", str(error)):
        return UsageError(f"--{flag[1].replace('_', '-')} needs a value", f"see {help_}")
    return UsageError(str(error).rstrip("!."), f"see {help_}")
