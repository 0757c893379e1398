"""Facts about releases of torch, from inspecting their wheels.

They are beside the locks, one file for each release, CUDA version and Python, so that a reviewer
sees changes. They determine which images exist, but are not in the images.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from torch_images.arch import Capability
from torch_images.config.document import parse, read
from torch_images.config.fields import Arch
from torch_images.config.load import validated
from torch_images.config.lock_requests import LockRequest, facts_names
from torch_images.config.release import Facts
from torch_images.config.schema import (
    FILLED,
    As,
    Section,
    Wrong,
    choice,
    matches,
    pairs,
)
from torch_images.config.types import Config
from torch_images.errors import ConfigError, LockError
from torch_images.locks import grammar
from torch_images.platforms import AMD64, PLATFORMS


def _day(text: str) -> dt.date:
    try:
        day = dt.date.fromisoformat(text)
    except ValueError:
        raise Wrong("is not a date") from None
    if day.isoformat() != text:
        raise Wrong("is not a date")
    return day


def _version(text: str) -> str:
    if not grammar.is_version(text):
        raise Wrong("is not a version")
    return text


_Arches = Annotated[tuple[Arch, ...], FILLED]
_Library = Annotated[str, matches(r"lib[a-z0-9_]+\.so", "a library")]


@dataclass(frozen=True, kw_only=True)
class _File(Section):
    """The fields of the file. The platform linux/amd64 is left out."""

    date: Annotated[dt.date, As(str, _day)]
    platform: Annotated[
        str, choice("a platform that is written", [p.name for p in PLATFORMS if p != AMD64])
    ] = AMD64.name
    cuda: str
    torch: Annotated[str, AfterValidator(_version)]
    python: str
    sha256: Annotated[str, matches(r"[0-9a-f]{64}", "a SHA-256")]
    arches: _Arches
    single: tuple[Arch, ...]
    lacks: Annotated[
        tuple[tuple[str, tuple[Capability, ...]], ...], pairs(_Library, _Arches), FILLED
    ] = ()
    features: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FactsLock:
    """The content of a file of facts.

    `name`: the file's name without suffix, such as "release-cu130-torch2.14.1-py313".
    `date`: the day of the inspection (UTC).
    `sha256`: of the inspected wheel of torch, 64 hexadecimal digits.
    """

    name: str
    date: dt.date
    sha256: str
    facts: Facts


def format_facts(lock: FactsLock) -> str:
    """The text of the file: YAML, in a fixed order. JSON strings are valid YAML."""
    facts = lock.facts
    lacks = {library: [str(arch) for arch in arches] for library, arches in facts.lacks}
    lines = [
        "# Written by `invoke lock`; do not edit.",
        f'date: "{lock.date.isoformat()}"',
        *([f"platform: {facts.platform}"] if facts.platform != AMD64.name else []),
        f'cuda: "{facts.cuda}"',
        f"torch: {facts.torch}",
        f'python: "{facts.python}"',
        f"sha256: {lock.sha256}",
        f"arches: {json.dumps([str(arch) for arch in facts.arches])}",
        f"single: {json.dumps([str(arch) for arch in facts.single])}",
        *([f"lacks: {json.dumps(lacks)}"] if lacks else []),
        f"features: [{', '.join(facts.features)}]",
    ]
    return "\n".join(lines) + "\n"


def read_facts(path: Path) -> FactsLock:
    """The facts in a file.

    Raises LockError if the file is missing, or has anything that `format_facts` does not write.
    """
    if not path.exists():
        raise LockError(
            f"locks/{path.name} does not exist", f"run `invoke lock --select {path.stem}`"
        )
    try:
        return parse_facts(read(path), path.stem)
    except ConfigError as error:
        raise _damaged(error, path.stem) from None


def with_facts(config: Config, folder: Path, *, damaged_ok: bool = False) -> Config:
    """The config with all facts that a folder of locks has for it.

    Raises LockError for a damaged file; with `damaged_ok` it is ignored too.
    """
    facts = []
    for name in sorted(facts_names(config)):
        path = folder / f"{name}.yaml"
        if not os.path.exists(path):  # noqa: PTH110  false for an impossible path
            continue
        try:
            facts.append(read_facts(path).facts)
        except LockError:
            if not damaged_ok:
                raise
    return replace(config, facts=tuple(facts))


def check_facts(item: LockRequest, folder: Path, torch: str) -> None:
    """Raise LockError unless the facts of a release exist, and are of the right wheel.

    `torch` is the SHA-256 of its wheel in the lock, in hexadecimal.
    """
    if read_facts(item.path(folder)).sha256 != torch:
        raise LockError(
            f"locks/{item.path(folder).name} is out of step: it is of another wheel of torch than "
            "the lock's",
            f"run `invoke lock --select {item.name}`",
        )


@lru_cache(maxsize=64)  # the config has all facts, and each image compares its own
def parse_facts(text: str, name: str) -> FactsLock:
    """Parse the text of a file. Raises LockError for text that `format_facts` does not write."""
    try:
        file = validated(parse(text, f"{name}.yaml"), _File)
    except ConfigError as error:
        raise _damaged(error, name) from None
    facts: dict[str, Any] = {each.name: getattr(file, each.name) for each in fields(Facts)}
    return FactsLock(
        name=name,
        date=file.date,
        sha256=file.sha256,
        facts=Facts(**facts),
    )


def _damaged(error: ConfigError, name: str) -> LockError:
    return LockError(f"locks/{error.message}", f"run `invoke lock --select {name}`")
