"""Facts about releases of torch, from inspecting their wheels, and the extras that fit them.

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
from torch_images.config.fields import Arch, Name, Requirements
from torch_images.config.load import validated
from torch_images.config.lock_requests import LockRequest, facts_names, fit_word
from torch_images.config.release import Facts, Fit
from torch_images.config.schema import (
    FILLED,
    NAME,
    NAMED,
    As,
    Section,
    Wrong,
    choice,
    matches,
    pairs,
    whole_number,
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
class _Fit(Section, keys={"extra": NAME, "reason": "because"}):
    """An entry of `extras` in the file; an extra that does not fit has no wheels."""

    extra: Name
    wheels: Annotated[Requirements, FILLED] = ()
    reason: str
    shared: Annotated[bool, As(Annotated[str, choice("no", ("no",))], lambda _: False)] = True


_MOST = 999_999_999  # the largest count
_Sha256 = Annotated[str, matches(r"[0-9a-f]{64}", "a SHA-256")]
_Count = Annotated[int, whole_number("a number of symbols", 0, _MOST)]


@dataclass(frozen=True, kw_only=True)
class Uses(Section, keys={"sha256": NAME}):
    """The symbols and libraries of CUDA and of one release of torch that a compiled wheel uses.

    Stored so that the wheel need not be downloaded again.
    `sha256`: of the wheel, 64 hexadecimal digits; `wheel`: its file name.
    `cudart`: the major versions of CUDA's runtime that its libraries load.
    `pins`: its requirements of one version of torch, such as "torch==2.14.0".
    `cxx`, `stable`: the number of symbols it uses of torch's C++, and of its stable C interface.
    `missing`: how many of these symbols this release of torch lacks.
    """

    sha256: _Sha256
    wheel: Annotated[str, matches(r"[A-Za-z0-9._+]+(?:-[A-Za-z0-9._+]+){4,5}\.whl", "a wheel")]
    cudart: tuple[Annotated[int, whole_number("a CUDA version", 1, 99)], ...]
    pins: tuple[Annotated[str, matches(r"torch==[!-~]+", "an exact requirement of torch")], ...]
    cxx: _Count
    stable: _Count
    missing: _Count


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
    request: Annotated[tuple[Annotated[str, matches(r"[!-~]+", "what was asked for")], ...], FILLED]
    sha256: _Sha256
    arches: _Arches
    single: tuple[Arch, ...]
    lacks: Annotated[
        tuple[tuple[str, tuple[Capability, ...]], ...], pairs(_Library, _Arches), FILLED
    ] = ()
    features: tuple[str, ...]
    extras: Annotated[tuple[_Fit, ...], NAMED, FILLED] = ()
    read: Annotated[tuple[Uses, ...], NAMED, FILLED] = ()


@dataclass(frozen=True, kw_only=True)
class FactsLock:
    """The content of a file of facts.

    `name`: the file's name without suffix, such as "release-cu130-torch2.14.1-py313".
    `date`: the day of the inspection (UTC).
    `request`: torch, and the requirements of each extra, sorted.
    `sha256`: of the inspected wheel of torch, 64 hexadecimal digits.
    `read`: the symbols that each inspected wheel of an extra uses, by file name.
    """

    name: str
    date: dt.date
    request: tuple[str, ...]
    sha256: str
    facts: Facts
    read: tuple[Uses, ...] = ()


def format_facts(lock: FactsLock) -> str:
    """The text of the file: YAML, in a fixed order. JSON strings are valid YAML.

    One more extra adds lines and changes none.
    """
    facts = lock.facts
    lacks = {library: [str(arch) for arch in arches] for library, arches in facts.lacks}
    lines = [
        "# Written by `invoke lock`; do not edit.",
        f'date: "{lock.date.isoformat()}"',
        *([f"platform: {facts.platform}"] if facts.platform != AMD64.name else []),
        f'cuda: "{facts.cuda}"',
        f"torch: {facts.torch}",
        f'python: "{facts.python}"',
        "request:",
        *(f"  - {json.dumps(word)}" for word in lock.request),
        f"sha256: {lock.sha256}",
        f"arches: {json.dumps([str(arch) for arch in facts.arches])}",
        f"single: {json.dumps([str(arch) for arch in facts.single])}",
        *([f"lacks: {json.dumps(lacks)}"] if lacks else []),
        f"features: [{', '.join(facts.features)}]",
        *(["extras:"] if facts.fits else []),
    ]
    for fit in facts.fits:
        lines.append(f"  {fit.extra}:")
        lines += [f"    wheels: {json.dumps(list(fit.wheels))}"] if fit.wheels else []
        lines.append(f"    because: {json.dumps(fit.reason)}")
        lines += [] if fit.shared else ['    shared: "no"']
    lines += ["read:"] if lock.read else []
    for one in lock.read:
        lines.append(f"  {one.sha256}:")
        lines.append(f"    wheel: {one.wheel}")
        words = {"cudart": [str(major) for major in one.cudart], "pins": list(one.pins)}
        lines += [f"    {key}: {json.dumps(value)}" for key, value in words.items()]
        lines += [f"    {key}: {getattr(one, key)}" for key in ("cxx", "stable", "missing")]
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

    Ignores what facts say of extras that images.yaml lacks now, or has with other requirements.
    Raises LockError for a damaged file; with `damaged_ok` it is ignored too.
    """
    facts = []
    for name, cuda in facts_names(config).items():
        path = folder / f"{name}.yaml"
        if not os.path.exists(path):  # noqa: PTH110  false for an impossible path
            continue
        try:
            lock = read_facts(path)
        except LockError:
            if not damaged_ok:
                raise
            continue
        if f"torch=={lock.facts.torch}" in lock.request:
            wanted = {
                extra.name for extra in config.extras if fit_word(extra, cuda) in lock.request
            }
            fits = tuple(fit for fit in lock.facts.fits if fit.extra in wanted)
            facts.append(replace(lock.facts, fits=fits))
    return replace(config, facts=tuple(facts))


def check_facts(item: LockRequest, folder: Path, torch: str) -> None:
    """Raise LockError unless the facts of a release exist, and are of the right wheel.

    They may have more extras than requested: other images'. `torch` is the SHA-256 of its wheel in
    the lock, in hexadecimal.
    """
    lock = read_facts(item.path(folder))
    if not {*item.request} <= {*lock.request}:
        had, expected = " ".join(lock.request)[:500], " ".join(item.request)
        problem = f"it was made for {had}, expected {expected}"
    elif lock.sha256 != torch:
        problem = "it is of another wheel of torch than the lock's"
    else:
        return
    raise LockError(
        f"locks/{item.path(folder).name} is out of step: {problem}",
        f"run `invoke lock --select {item.name}`",
    )


@lru_cache(maxsize=64)  # the config has all facts, and each image compares its own
def parse_facts(text: str, name: str) -> FactsLock:
    """Parse the text of a file. Raises LockError for text that `format_facts` does not write."""
    try:
        file = validated(parse(text, f"{name}.yaml"), _File)
    except ConfigError as error:
        raise _damaged(error, name) from None
    fits = (
        Fit(extra=f.extra, wheels=f.wheels, reason=f.reason, shared=f.shared) for f in file.extras
    )
    facts: dict[str, Any] = {each.name: getattr(file, each.name, ()) for each in fields(Facts)}
    facts["fits"] = tuple(fits)
    return FactsLock(
        name=name,
        date=file.date,
        request=file.request,
        sha256=file.sha256,
        facts=Facts(**facts),
        read=file.read,
    )


def _damaged(error: ConfigError, name: str) -> LockError:
    return LockError(f"locks/{error.message}", f"run `invoke lock --select {name}`")
