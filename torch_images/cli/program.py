"""Invoke, adapted to this project: its exit codes, and no secret in any output.

Plain `invoke` is adapted as soon as it reads tasks.py.
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
from torch_images.errors import TorchImagesError, UsageError, one_line, suggest
from torch_images.redact import Redactor, stream

CONFIG = "TORCH_IMAGES_CONFIG"
# Invoke's options before a verb that work here; plain `invoke` also needs those of _PLAIN.
_OPTIONS = {"complete", "debug", "help", "list", "list-format", "version"}
_OPTIONS |= {"print-completion-script"}
_PLAIN = {"collection", "config", "search-root"}
# The command in a message, followed by a verb.
_COMMANDS = re.compile(r"(?<=`)invoke(?= )|(?<![\w./])\./inv(?= [a-z])")


def called() -> str:
    """The command as the user called it."""
    start = Path(sys.argv[0])
    if start.stem == "torch-images":
        return start.stem
    return "invoke" if {"invoke", "inv"} & {start.name, start.parent.name} else "./inv"


def as_called(text: str) -> str:
    """A text with commands, such as "`invoke lock`" or "./inv build", as the user calls them."""
    return _COMMANDS.sub(called(), text)


def line(error: TorchImagesError, about: str = "error") -> str:
    """The line that reports an error; `about` names its subject."""
    return one_line(about, as_called(error.message), as_called(error.hint))


class Program(program.Program):
    """Ends with one line and exit code 2 for a command line that it cannot parse."""

    def core_args(self) -> list[Argument]:
        """The options before the first verb; --config names this project's file."""
        text = (
            "images.yaml to use (default: TORCH_IMAGES_CONFIG), with its locks in locks/ beside it"
        )
        args = [arg for arg in super().core_args() if arg.name in _OPTIONS]
        return [*args, Argument(names=("config", "f"), help=text)]

    def parse_core_args(self) -> None:
        """Parse the options before the first verb; add Invoke's others, which it also reads."""
        super().parse_core_args()
        for arg in super().core_args():
            self.args.setdefault(arg.name, arg)

    def parse_core(self, argv: list[str] | None) -> None:
        """Parse the options before the first verb."""
        with _one_line():
            super().parse_core(argv)
        _settle(self.args.config.value)
        known = ("flat", "nested", "json")
        if (form := self.args["list-format"].value) not in known:
            error = UsageError(f"unknown list format '{form}'", suggest(form, known))
            raise Exit(line(error), code=error.exit_code)

    def parse_tasks(self) -> None:
        """Parse the verbs and their options; `VERB --help` works without the verb's words."""
        words = self.core.unparsed
        for number, word in enumerate(words):
            verbs = [verb for verb in words[:number] if verb in self.collection.task_names]
            if word in ("--help", "-h") and verbs:
                self.args.help.value, self.core.unparsed = verbs[-1], []
                break
        with _one_line(self.collection.task_names):
            super().parse_tasks()

    def parse_cleanup(self) -> None:
        """Handle the options before the first verb, such as --help."""
        with _one_line(self.collection.task_names):
            super().parse_cleanup()

    def update_config(self, merge: bool = True) -> None:
        """Do nothing: no setting of Invoke applies here."""

    def no_tasks_given(self) -> None:
        """Print the verbs if the command line names none."""
        self.list_flat()
        print(f"`{called()} VERB --help` lists a verb's options, `{called()} --help` all others")
        raise Exit

    def print_help(self) -> None:
        """Print the verbs, and the options before the first one."""
        print(f"Usage: {called()} [--options] VERB [words and options of the verb]\n")
        self.list_flat()
        print("Options:\n")
        self.print_columns(self.initial_context.help_tuples())

    def list_flat(self) -> None:
        """Print the verbs, grouped by purpose."""
        from torch_images.cli.collection import GROUPS

        known = dict(self._make_pairs(self.scoped_collection))
        for group, verbs in GROUPS.items():
            names = [verb.name.replace("_", "-") for verb in verbs]
            print(f"{group}:\n")
            self.print_columns([(name, known[name]) for name in names])

    def print_task_help(self, name: str) -> None:
        """Print the help of a verb; the help of an axis lists its values in images.yaml."""
        from torch_images.cli.collection import axis_values

        options = self.parser.contexts[name]
        for axis, values in axis_values(options.args).items():
            options.args[axis].help = f"{options.args[axis].help}; one of {values}"
        words = " ".join([name, *(arg.name.upper() for arg in options.positional_args)])
        doc = inspect.getdoc(self.collection[name]) or ""
        print(f"Usage: {called()} {words} [--options]\n")
        print(doc.replace("\nExample:\n", f"\nExample:\n  {called()} "))
        print("\nOptions:\n")
        self.print_columns([(flag, as_called(text or "")) for flag, text in options.help_tuples()])


def main() -> None:
    """Run the verbs of ./inv; ends the process if one fails."""
    # Shell completion calls this name. Without an environment, only ./inv exists.
    _run("./inv", name="Invoke", version=__version__)


def installed() -> None:
    """Run the verbs of `torch-images`."""
    interrupts.end_at_once()
    import importlib.metadata  # takes 25 ms, and ./inv does not need it

    name = "torch-images"
    _run(name, name=name, version=importlib.metadata.version(name))


def _run(command: str, *, name: str, version: str) -> None:
    """Run a command; end quietly if the reader of its output leaves, as in `--list | head`."""
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
    """If plain `invoke` is running, make it behave as `main` does."""
    from invoke.main import program as plain

    if plain.argv and not isinstance(plain, Program):
        interrupts.end_at_once()
        _hide_secrets()
        plain.__class__ = Program
        _settle(plain.args.config.value)
        for arg in plain.args.values():
            if arg.got_value and arg.name not in _OPTIONS | _PLAIN:
                raise Exit(f"error: --{arg.name} is not supported here; leave it out", code=2)


def _settle(file: str | None) -> None:
    """Put the absolute path from --config into CONFIG, for everything that reads images.yaml."""
    if file:
        os.environ[CONFIG] = os.path.abspath(file)  # noqa: PTH100  keeps a link
    # Invoke disables bytecode; every command would then compile its imports again.
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))


def _hide_secrets() -> None:
    """Keep secrets out of stdout and stderr, including tracebacks."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path may not be valid text
        sys.stdout.reconfigure(errors="backslashreplace")
    redactor = Redactor.of(os.environ, sys.argv)
    sys.stdout, sys.stderr = stream(sys.stdout, redactor), stream(sys.stderr, redactor)


@contextlib.contextmanager
def _one_line(verbs: Iterable[str] = ()) -> Iterator[None]:
    try:
        yield
    except ParseError as error:
        problem = _problem(error, verbs)
    else:
        return
    raise Exit(line(problem), code=problem.exit_code) from None


def _problem(error: ParseError, verbs: Iterable[str]) -> UsageError:
    """An error of Invoke's parser as one of this project."""
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
