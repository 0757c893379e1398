"""What a build or a verification works with, as one value."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

from torch_images.config.types import Config
from torch_images.host.buildx import is_remote
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.oci.compression import Compression


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """How to build, as the user asked.

    `cache_from` and `cache_to` are caches in buildx's syntax, e.g. "type=registry,ref=...", with
    "{id}" for the image. `compression` applies to the layers of wheels. `slice` limits the seconds
    of compiling (0: no limit); trees with the same `call` share one slice and compile one after the
    other. `share` is the part of the units to compile, e.g. "1/2".
    """

    builder: str = ""
    no_cache: bool = False
    mirrors: tuple[str, ...] = ()
    skip_disk_check: bool = False
    jobs: int = 0
    slice: int = 0
    call: str = ""
    share: str = ""
    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()
    compression: Compression = Compression.FAST

    @property
    def small(self) -> bool:
        """Whether the layers of wheels are packed small."""
        return self.compression is Compression.SMALL


@dataclass(frozen=True, kw_only=True)
class Shown:
    """How a job shows progress.

    `still` is entered with a text for work that takes minutes. `say` gets a line before such work,
    or after a part of it.
    """

    say: Callable[[str], None] = lambda _: None
    still: Callable[[Callable[[], str]], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True, kw_only=True)
class Job:
    """The images that exist, this machine, and how the user wants the work done."""

    config: Config
    workspace: Workspace
    engine: Engine
    run: Runner
    options: BuildOptions = BuildOptions()
    shown: Shown = Shown()

    @cached_property
    def remote(self) -> bool:
        """Whether another machine or container than the engine builds."""
        return is_remote(self.options.builder, self.run)
