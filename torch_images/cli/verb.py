"""What the verbs share: how they fail, where they work, and how they print.

Imports stay inside the functions, so that `invoke --list` needs neither Docker nor YAML.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from invoke.exceptions import Exit
from invoke.parser.argument import Argument
from invoke.tasks import Task

from torch_images import project
from torch_images.cli.options import Options
from torch_images.cli.program import as_called, line
from torch_images.errors import TorchImagesError, UsageError
from torch_images.interrupts import CODE, TEXT, finishing, raise_from_now_on

if TYPE_CHECKING:
    from torch_images.config.types import Config
    from torch_images.host.engine import Engine
    from torch_images.host.workspace import Workspace
    from torch_images.platforms import Platform
    from torch_images.publish.tag_rules import TagTarget

T = TypeVar("T", bound=Options)
ROOT = project.project_root()
_QUIET = 60  # seconds between two lines of progress without a terminal


class _Warning(logging.Formatter):
    """A warning as a line that names the command as the user called it."""

    def format(self, record: logging.LogRecord) -> str:
        return f"warning: {as_called(super().format(record))}"


_warnings = logging.StreamHandler()  # for this project only: libraries keep Python's own
_warnings.setFormatter(_Warning())
logging.getLogger("torch_images").addHandler(_warnings)
logging.getLogger("urllib3").setLevel(logging.ERROR)  # hides its lines about retries


class Verb(Task[Any]):
    """An Invoke task whose arguments derive from its options."""

    def __init__(self, body: Callable[..., None], options: type[Options]) -> None:
        super().__init__(body, positional=())
        self.options = options

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:  # noqa: ARG002  Invoke's
        """The arguments that Invoke parses for this verb."""
        return self.options.arguments()


def verb(options: type[T], *, example: str = "") -> Callable[[Callable[[T], None]], Verb]:
    """Turn a function of options into a verb.

    Its errors are one line and an exit code, without a traceback. `example` is a command line
    without the program's name; the verb's help ends with it.
    """

    def decorate(function: Callable[[T], None]) -> Verb:
        @functools.wraps(function)
        def body(_: object, **words: Any) -> None:
            try:
                with finishing():
                    raise_from_now_on()
                    function(options.of(words))
                    sys.stdout.flush()
            except TorchImagesError as error:
                raise _exit(error) from None
            except BrokenPipeError:  # `./inv matrix | head`: the reader has left
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise Exit(code=0) from None
            except OSError as error:
                from torch_images.host.diagnose import of_system

                if not (problem := of_system(error)):
                    raise
                raise _exit(problem) from None
            except KeyboardInterrupt:  # Ctrl-C while Python's own handler is in place
                raise Exit(TEXT, code=CODE) from None

        if example:
            body.__doc__ = f"{function.__doc__}\n\nExample:\n{example}"
        return Verb(body, options)

    return decorate


def _exit(error: TorchImagesError) -> Exit:
    return Exit(red(line(error)), code=error.exit_code)


def config(*, damaged_ok: bool = False) -> Config:
    """All of images.yaml, or of the file that --config names, with the facts of the locks.

    Raises ConfigError, and LockError for damaged facts unless `damaged_ok`.
    """
    from torch_images.config.load import load_config
    from torch_images.locks.facts import with_facts

    loaded = load_config(project.config_file(ROOT))
    return with_facts(loaded, project.locks_folder(ROOT), damaged_ok=damaged_ok)


def workspace() -> Workspace:
    """The folders and the network of builds on this machine."""
    from torch_images.host.network import detect
    from torch_images.host.workspace import Workspace, default_cache

    return Workspace(
        root=ROOT,
        cache=default_cache(),
        network=detect(os.environ),
        locks=project.locks_folder(ROOT),
        made=project.made_in(ROOT),
    )


def require_clone(name: str) -> None:
    """Raise UsageError unless this runs from a clone of the project."""
    if not project.is_clone(ROOT):
        raise UsageError(
            f"'{name}' needs a clone of the project",
            "run it there, as ./inv",
        )


def require_own_locks(locks: Path) -> None:
    """Raise UsageError if the folder of locks belongs to the installed package."""
    if project.is_packaged(locks):
        raise UsageError(
            "the locks of the installed package are read-only",
            "name others with --config or TORCH_IMAGES_LOCKS, or run this in a clone, as ./inv",
        )


def mirrors(named: Sequence[str]) -> tuple[str, ...]:
    """The mirrors to use: those of the command line, else TORCH_IMAGES_MIRROR.

    Raises ConfigError for an invalid URL, and UsageError for a password on the command line.
    """
    from torch_images.host.network import check_url

    text = os.environ.get("TORCH_IMAGES_MIRROR", "")
    lines = (line.strip() for line in text.splitlines())
    from_environment = tuple(filter(None, lines)) if "deb " in text else tuple(text.split())
    chosen = tuple(named) or from_environment
    for word in (word for mirror in chosen for word in mirror.split() if "://" in word):
        check_url("--mirror" if named else "TORCH_IMAGES_MIRROR", word)
        if named:
            check_no_user("--mirror", word, "name this mirror in TORCH_IMAGES_MIRROR")
    return chosen


def check_no_user(option: str, url: str, hint: str) -> None:
    """Raise UsageError if a URL on the command line has a user or a password."""
    from torch_images.host.network import check_url, split_user

    if "://" in url:
        check_url(option, url)
    if any(split_user(url)[1:]):
        raise UsageError(
            f"{option} has a user or a password, which all users of this machine can see", hint
        )


def namespace(config: Config, named: str) -> str:
    """Registry and owner: from the command line, else TORCH_IMAGES_REGISTRY, else images.yaml."""
    from torch_images.publish import tag_rules

    return tag_rules.namespace(config, named or os.environ.get("TORCH_IMAGES_REGISTRY", ""))


def registry_lookup(retries: int) -> Callable[[str], TagTarget | None]:
    """A lookup of names in a registry, which retries errors that may pass."""
    from torch_images.host.runner import Runner
    from torch_images.publish.registry import lookup, retry

    run = Runner()
    return lambda name: retry(functools.partial(lookup, name, run), retries=retries, say=say)


def engine(*, bootstraps: bool = False, platforms: Sequence[Platform] = ()) -> Engine:
    """The engine, set up if none answers and ./inv allows it, with emulators for `platforms`."""
    from torch_images.host.runner import Runner
    from torch_images.host.setup import ready_engine

    allowed = os.environ.get("TORCH_IMAGES_SETUP", "")
    return ready_engine(
        ROOT,
        Runner(),
        allowed=allowed,
        bootstraps=bootstraps,
        platforms=tuple(dict.fromkeys(platforms)),
    )


def complain(name: str, problem: TorchImagesError) -> None:
    """Print the error of one of several items on stderr; the others go on."""
    print(red(line(problem, name)), file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Print a line of progress on stderr."""
    text = as_called(text)
    if "tqdm" not in sys.modules:  # there is no bar to write around
        print(text, file=sys.stderr, flush=True)
        return
    from tqdm import tqdm

    tqdm.write(text, file=sys.stderr)


@contextlib.contextmanager
def _bar(**form: Any) -> Iterator[Callable[[float, float | None], None]]:
    """Yields a function that moves a bar on a terminal: to the amount done, of the total if known.

    `form` are tqdm's arguments. tqdm is imported at the first update, because that takes 30 ms.
    """
    began, bars = time.time(), list[Any]()

    def show(done: float, total: float | None) -> None:
        if not sys.stderr.isatty():
            return
        if not bars:
            from tqdm import tqdm

            bars.append(tqdm(file=sys.stderr, leave=False, **form))
            bars[0].start_t = began
        bars[0].total = total
        bars[0].update(done - bars[0].n)

    try:
        yield show
    finally:
        for bar in bars:
            bar.close()


@contextlib.contextmanager
def transfer_progress() -> Iterator[Callable[[int, int], None]]:
    """Shows bytes sent of the total: a bar on a terminal, nothing elsewhere."""
    with _bar(unit="B", unit_scale=True) as show:
        yield lambda sent, size: show(sent, size or None)


@contextlib.contextmanager
def check_progress() -> Iterator[Callable[[float], None]]:
    """Shows the share of checks that are done: a bar on a terminal, a line a minute elsewhere."""
    began = said = time.monotonic()
    form = "{percentage:3.0f} % of the checks |{bar}| {elapsed}, {remaining} left"
    with _bar(bar_format=form) as bar:

        def show(share: float) -> None:
            nonlocal said
            bar(share, 1.0)
            now = time.monotonic()
            if not sys.stderr.isatty() and now - said >= _QUIET and share < 1:
                said = now
                left = f", about {(now - began) * (1 / share - 1):.0f} s left" if share else ""
                say(f"{share:.0%} of the checks are done after {now - began:.0f} s{left}")

        yield show


@contextlib.contextmanager
def layer_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Shows layers being packed: a bar on a terminal, lines elsewhere."""
    with transfer_progress() as bar:

        def show(title: str, done: int, size: int) -> None:
            bar(done, size)
            if not sys.stderr.isatty():
                say(f"packed {title}, {done / 1e6:.0f} of {size / 1e6:.0f} MB")

        yield show


def as_json(document: Any) -> str:
    """JSON, as --json prints it."""
    return as_called(json.dumps(document, indent=2))


def red(text: str) -> str:
    """Red on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        return f"\x1b[31m{text}\x1b[0m"
    return text
