"""What the verbs share: how they are declared, where they work, and how they show progress.

Its imports are inside functions, because `matrix` and `render` need neither Docker nor requests.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch_images import project
from torch_images.cli.called import as_called, line
from torch_images.cli.options import Options
from torch_images.errors import TorchImagesError, UsageError

if TYPE_CHECKING:
    from torch_images.build.job import BuildOptions, Job
    from torch_images.config.types import Config
    from torch_images.host.engine import Engine
    from torch_images.host.workspace import Workspace
    from torch_images.platforms import Platform
    from torch_images.publish.tag_rules import TagTarget

T = TypeVar("T", bound=Options)
ROOT = project.project_root()
SCHEMA = 1  # of what --json prints; a datasheet has its own
_QUIET = 30  # seconds without a line, after which one says what goes on


class _Warning(logging.Formatter):
    """A warning as a line that names the command as the user called it."""

    def format(self, record: logging.LogRecord) -> str:
        return f"warning: {as_called(super().format(record))}"


_warnings = logging.StreamHandler()  # for this project only: libraries keep Python's own
_warnings.setFormatter(_Warning())
logging.getLogger("torch_images").addHandler(_warnings)
logging.getLogger("urllib3").setLevel(logging.ERROR)  # hides its lines about retries


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a verb prints: `text`, or `data` with --json, an object whose lists have plural keys.

    `then` is called afterwards, and raises what makes the verb fail all the same.
    """

    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    then: Callable[[], object] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A function of options that a command line calls by its name.

    `example` is a command line without the program's name; the verb's help ends with it.
    """

    name: str
    function: Callable[[Any], Result | None]
    options: type[Options]
    example: str

    @property
    def doc(self) -> str:
        """The text of its help."""
        return inspect.getdoc(self.function) or ""

    @property
    def summary(self) -> str:
        """The first line of its help."""
        return self.doc.partition("\n")[0]


def verb(options: type[T], *, example: str) -> Callable[[Callable[[T], Result | None]], Verb]:
    """Turn a function of options into a verb."""

    def decorate(function: Callable[[T], Result | None]) -> Verb:
        name = function.__name__.replace("_", "-")
        return Verb(name=name, function=function, options=options, example=example)

    return decorate


def config() -> Config:
    """All of images.yaml, or of the file that --config names, with the facts of the locks.

    Raises ConfigError.
    """
    return _with_own(catalogue())


def catalogue() -> Config:
    """As `config`, without the image of the user's own project."""
    from torch_images.config.load import load_config
    from torch_images.locks.facts import with_facts

    return with_facts(load_config(project.config_file(ROOT)), project.locks_folder(ROOT))


def _with_own(config: Config) -> Config:
    """The configuration with the image of the user's project, if --project or this folder has one.

    Its name may say where to push it.
    """
    from torch_images.config import own

    file = own.find(project.own_folder())
    if not file:
        if project.PROJECT in os.environ:
            raise UsageError(
                f"{project.own_folder()} has no {own.FILE}, nor such a table in {own.SHARED}",
                "make one with `invoke init`, or correct --project",
            )
        return config
    image = own.load(file)
    config = dataclasses.replace(config, own=image)
    registry, _, owner = image.namespace.partition("/")
    return dataclasses.replace(config, registry=registry, owner=owner) if registry else config


def workspace() -> Workspace:
    """The folders and the network of builds on this machine."""
    from torch_images.config import own
    from torch_images.host.network import detect
    from torch_images.host.workspace import Workspace, default_cache

    folder = project.own_folder()
    made = folder / ".torch-images" if own.find(folder) else project.output_root(ROOT)
    return Workspace(
        root=ROOT,
        cache=default_cache(),
        network=detect(os.environ),
        locks=project.locks_folder(ROOT),
        made=made,
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


def mirrors() -> tuple[str, ...]:
    """The mirrors of the base's packages, from TORCH_IMAGES_MIRROR: URLs, or a sources.list.

    Raises ConfigError for an invalid URL.
    """
    from torch_images.host.network import check_url

    text = os.environ.get("TORCH_IMAGES_MIRROR", "")
    lines = (line.strip() for line in text.splitlines())
    chosen = tuple(filter(None, lines)) if "deb " in text else tuple(text.split())
    for word in (word for mirror in chosen for word in mirror.split() if "://" in word):
        check_url("TORCH_IMAGES_MIRROR", word)
    return chosen


def namespace(config: Config, named: str) -> str:
    """Registry and owner: from the command line, else TORCH_IMAGES_REGISTRY, else images.yaml."""
    from torch_images.publish import tag_rules

    return tag_rules.namespace(config, named or os.environ.get("TORCH_IMAGES_REGISTRY", ""))


def registry_lookup(*, once: bool = False) -> Callable[[str], TagTarget | None]:
    """A lookup of names in a registry, which retries errors that may pass unless `once`."""
    from torch_images.host.runner import Runner
    from torch_images.publish.registry import lookup, retry

    run = Runner()
    if once:
        return lambda name: lookup(name, run)
    return lambda name: retry(functools.partial(lookup, name, run), say=say)


def engine(
    *, bootstraps: bool = False, signed: bool = False, platforms: Sequence[Platform] = ()
) -> Engine:
    """The engine, set up if none answers and ./inv allows it, with emulators for `platforms`."""
    from torch_images.host.runner import Runner
    from torch_images.host.setup import ready_engine

    allowed = os.environ.get("TORCH_IMAGES_SETUP", "")
    return ready_engine(
        ROOT,
        Runner(),
        allowed=allowed,
        bootstraps=bootstraps,
        signed=signed,
        platforms=tuple(dict.fromkeys(platforms)),
    )


def job(config: Config, engine: Engine, options: BuildOptions | None = None) -> Job:
    """What a verb builds or verifies with: progress is bars on a terminal, lines elsewhere."""
    from torch_images.build.job import BuildOptions, Job, Shown
    from torch_images.host.runner import Runner

    return Job(
        config=config,
        workspace=workspace(),
        engine=engine,
        run=Runner(),
        options=options or BuildOptions(),
        shown=Shown(say=say, still=still),
    )


def complain(name: str, problem: TorchImagesError) -> None:
    """Print the error of one of several items on stderr; the others go on."""
    print(line(problem, name), file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Print a line of progress on stderr."""
    print(as_called(text), file=sys.stderr, flush=True)


@contextlib.contextmanager
def still(what: Callable[[], str]) -> Iterator[None]:
    """Say what goes on after each while in which nothing was printed."""
    over, began = threading.Event(), time.monotonic()

    def watch() -> None:
        said = began
        while not over.wait(1):
            said = max(said, getattr(sys.stderr, "written", 0.0))
            if time.monotonic() - said >= _QUIET and (text := what()):
                said = time.monotonic()
                say(f"still {text}, {said - began:.0f} s")

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def as_json(document: Any) -> str:
    """JSON, as --json prints it."""
    return as_called(json.dumps(document, indent=2))
