"""Invoke, as this project uses it: its exit codes, and no secret in anything that is shown.

Plain `invoke` becomes the same as soon as it reads tasks.py.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from invoke import __version__, program
from invoke.exceptions import Exit, ParseError
from invoke.parser.argument import Argument

from torch_images import interrupts
from torch_images.errors import TorchImagesError, UsageError, suggest, told
from torch_images.redact import Redactor, stream

CONFIG = "TORCH_IMAGES_CONFIG"
# Invoke's options before a verb that mean something here; a plain `invoke` has some more.
_OPTIONS = {"complete", "debug", "help", "list", "list-format", "version"}
_OPTIONS |= {"print-completion-script"}
_PLAIN = {"collection", "config", "search-root"}
# The command, before a verb of its own.
_COMMANDS = re.compile(r"(?<=`)invoke(?= )|(?<![\w./])\./inv(?= [a-z])")


def called() -> str:
    """The command as the user called it."""
    start = Path(sys.argv[0])
    if start.stem == "torch-images":
        return start.stem
    return "invoke" if {"invoke", "inv"} & {start.name, start.parent.name} else "./inv"


def as_called(text: str) -> str:
    """A text that names verbs, as in "`invoke lock`" or "./inv build", by what the user called."""
    return _COMMANDS.sub(called(), text)


def line(error: TorchImagesError, about: str = "error") -> str:
    """What is printed of an error; `about` names what it is of."""
    return told(about, as_called(error.message), as_called(error.hint))


class Program(program.Program):
    """Ends with exit code 2, and one line, for a command line that it cannot read."""

    def core_args(self) -> list[Argument]:
        """The options before the first verb; --config names this project's file."""
        text = "images.yaml to use, else TORCH_IMAGES_CONFIG; its locks lie beside it, in locks/"
        args = [arg for arg in super().core_args() if arg.name in _OPTIONS]
        return [*args, Argument(names=("config", "f"), help=text)]

    def parse_core_args(self) -> None:
        """Read the options before the first verb; Invoke looks at its own others, too."""
        super().parse_core_args()
        for arg in super().core_args():
            self.args.setdefault(arg.name, arg)

    def parse_core(self, argv: list[str] | None) -> None:
        """Read the options before the first verb."""
        with _one_line():
            super().parse_core(argv)
        _settle(self.args.config.value)
        known = ("flat", "nested", "json")
        if (wanted := self.args["list-format"].value) not in known:
            error = UsageError(f"unknown list format '{wanted}'", suggest(wanted, known))
            raise Exit(line(error), code=error.exit_code)

    def parse_tasks(self) -> None:
        """Read the verbs and their options. Help is for the verb before it, whatever that needs."""
        words = self.core.unparsed
        for number, word in enumerate(words):
            verbs = [verb for verb in words[:number] if verb in self.collection.task_names]
            if word in ("--help", "-h") and verbs:
                self.args.help.value, self.core.unparsed = verbs[-1], []
                break
        with _one_line(self.collection.task_names):
            super().parse_tasks()

    def parse_cleanup(self) -> None:
        """Do what the options before the first verb ask for, such as --help."""
        with _one_line(self.collection.task_names):
            super().parse_cleanup()

    def update_config(self, merge: bool = True) -> None:
        """Leave Invoke's settings as they are: none has a meaning here."""

    def no_tasks_given(self) -> None:
        """Print the verbs, where none is named."""
        self.list_flat()
        print(f"`{called()} VERB --help` has a verb's options, `{called()} --help` all others")
        raise Exit

    def print_help(self) -> None:
        """Print the verbs, and the options before the first one."""
        print(f"Usage: {called()} [--options] VERB [words and options of the verb]\n")
        self.list_flat()
        print("Options:\n")
        self.print_columns(self.initial_context.help_tuples())

    def list_flat(self) -> None:
        """Print the verbs by what they are for, in the order of the flow."""
        from torch_images.cli.collection import GROUPS

        known = dict(self._make_pairs(self.scoped_collection))
        for group, verbs in GROUPS.items():
            names = [verb.name.replace("_", "-") for verb in verbs]
            print(f"{group}:\n")
            self.print_columns([(name, known[name]) for name in names])

    def print_task_help(self, name: str) -> None:
        """Print the help of a verb; that of an axis names the values of images.yaml."""
        from torch_images.cli.collection import axis_values

        options = self.parser.contexts[name]
        for axis, values in axis_values(options.args).items():
            options.args[axis].help = f"{options.args[axis].help}; one of {', '.join(values)}"
        words = " ".join([name, *(arg.name.upper() for arg in options.positional_args)])
        doc = inspect.getdoc(self.collection[name]) or ""
        print(f"Usage: {called()} {words} [--options]\n")
        print(doc.replace("\nExample:\n", f"\nExample:\n  {called()} "))
        print("\nOptions:\n")
        self.print_columns([(flag, as_called(text or "")) for flag, text in options.help_tuples()])


def main() -> None:
    """Run the verbs of ./inv; ends the process unless all goes well."""
    # Shells complete ./inv by calling it; without an environment there is no `invoke` to call.
    _run("./inv", name="Invoke", version=__version__)


def installed() -> None:
    """Run the verbs of `torch-images`."""
    interrupts.end_at_once()
    import importlib.metadata  # takes 25 ms, and ./inv does not need it

    name = "torch-images"
    _run(name, name=name, version=importlib.metadata.version(name))


def _run(command: str, *, name: str, version: str) -> None:
    """Run a command to its end, which comes early where nobody reads on, as in `--list | head`."""
    _hide_secrets()
    from torch_images.cli.collection import namespace

    names = [command]
    verbs = Program(version, namespace, name=name, binary=command, binary_names=names)
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
        _settle(plain.args.config.value)
        for arg in plain.args.values():
            if arg.got_value and arg.name not in _OPTIONS | _PLAIN:
                raise Exit(f"error: --{arg.name} means nothing here; leave it out", code=2)


def _settle(named: str | None) -> None:
    """Let all that reads images.yaml read the file that --config names, wherever it works."""
    if named:
        os.environ[CONFIG] = os.path.abspath(named)  # noqa: PTH100  a link stays one
    # Invoke turns bytecode off, and every command would compile its imports.
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))


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
    else:
        return
    raise Exit(line(found), code=found.exit_code) from None


def _problem(error: ParseError, verbs: Iterable[str]) -> UsageError:
    """What Invoke cannot read, in this project's words."""
    context = error.context
    help_ = f"`invoke --help{f' {context.name}' if context and context.name else ''}`"
    if word := re.fullmatch(r"No idea what '(.*)' is!", str(error), re.DOTALL):
        if word[1].startswith("-"):
            flags = [flag for flag in context.flags if flag.startswith("--")] if context else ()
            return UsageError(f"unknown option '{word[1]}'", suggest(word[1], flags))
        about = f"{help_} has the options" if context and context.name else ""
        return UsageError(f"unknown word '{word[1]}'", about or suggest(word[1], verbs))
    if context and (missing := context.missing_positional_args):
        names = " and ".join(f"--{arg.name}" for arg in missing)
        return UsageError(f"'{context.name}' needs {names}: {missing[0].help}", f"see {help_}")
    if flag := re.match(r"Flag <_?Argument: ([^\s>]+)", str(error)):
        return UsageError(f"--{flag[1].replace('_', '-')} needs a value", f"see {help_}")
    return UsageError(str(error).rstrip("!."), f"see {help_}")
