"""Facts about releases of torch: what `invoke lock` found in a wheel, and which extras go with it.

They lie beside the locks, one file for each release, CUDA version and Python, so that a reviewer
sees what changed. They say which images exist; nothing of them is in an image.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from torch_images.arch import Capability
from torch_images.config.lock_requests import LockRequest, facts_inputs
from torch_images.config.parse_fields import capability, entry_name, requirements
from torch_images.config.release import Facts, Fit
from torch_images.config.types import Config
from torch_images.config.yaml_nodes import Record, Value, parse, read
from torch_images.errors import ConfigError, LockError
from torch_images.locks import grammar
from torch_images.platforms import AMD64, PLATFORMS

_HASH = re.compile(r"[0-9a-f]{64}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_WORD = re.compile(r"[!-~]+(?: [!-~]+)*")
_LIBRARY = re.compile(r"lib[a-z0-9_]+\.so")
_OPTIONAL = ("platform", "lacks")
_KEYS = (
    "date",
    "cuda",
    "torch",
    "python",
    "request",
    "sha256",
    "arches",
    "single",
    "features",
    "extras",
)


@dataclass(frozen=True, kw_only=True)
class FactsLock:
    """The content of a file of facts.

    `name`: the file's name without suffix, such as "release-cu130-torch2.14.1-py313".
    `date`: the day on which they were found (UTC).
    `request`: what was looked into, sorted: torch, and the requirements of each extra.
    `sha256`: of the wheel of torch that was read, 64 hexadecimal digits.
    """

    name: str
    date: dt.date
    request: tuple[str, ...]
    sha256: str
    facts: Facts


def format_facts(lock: FactsLock) -> str:
    """The text of the file: YAML, in a fixed order. JSON's strings are YAML's."""
    facts = lock.facts
    lacks = {library: [str(arch) for arch in arches] for library, arches in facts.lacks}
    lines = [
        "# Written by `invoke lock`; do not edit.",
        f'date: "{lock.date.isoformat()}"',
        *([f"platform: {facts.platform}"] if facts.platform != AMD64.name else []),
        f'cuda: "{facts.cuda}"',
        f"torch: {facts.torch}",
        f'python: "{facts.python}"',
        f"request: {json.dumps(' '.join(lock.request))}",
        f"sha256: {lock.sha256}",
        f"arches: {json.dumps([str(arch) for arch in facts.arches])}",
        f"single: {json.dumps([str(arch) for arch in facts.single])}",
        *([f"lacks: {json.dumps(lacks)}"] if lacks else []),
        f"features: [{', '.join(facts.features)}]",
        "extras:" if facts.fits else "extras: {}",
    ]
    for fit in facts.fits:
        lines.append(f"  {fit.extra}:")
        lines += [f"    wheels: {json.dumps(list(fit.wheels))}"] if fit.wheels else []
        lines.append(f"    because: {json.dumps(fit.reason)}")
    return "\n".join(lines) + "\n"


def read_facts(path: Path) -> FactsLock:
    """The facts in a file.

    Raises LockError if the file is missing, or holds anything that `format_facts` does not write.
    """
    if not path.exists():
        raise LockError(
            f"locks/{path.name} does not exist", f"run `invoke lock --select {path.stem}`"
        )
    try:
        return _parsed(read(path), path.name)
    except ConfigError as error:
        raise LockError(
            f"locks/{error.message}", f"run `invoke lock --select {path.stem}`"
        ) from None


def with_facts(config: Config, folder: Path, *, damaged_ok: bool = False) -> Config:
    """The config with all facts that a folder of locks has for it.

    What was found for other extras than images.yaml has now is left out, as if it were not there.
    Raises LockError for a damaged file; with `damaged_ok` it is left out, too.
    """
    found = []
    for item in facts_inputs(config):
        if not os.path.exists(item.path(folder)):  # noqa: PTH110  false for an impossible path
            continue
        try:
            lock = read_facts(item.path(folder))
        except LockError:
            if not damaged_ok:
                raise
            continue
        if lock.request == item.request:
            found.append(lock.facts)
    return replace(config, facts=tuple(found))


def check_facts(item: LockRequest, folder: Path, torch: str) -> None:
    """Raise LockError unless the facts of a release are there, and of the right wheel.

    `torch` is the SHA-256 of its wheel in the lock, in hexadecimal.
    """
    lock = read_facts(item.path(folder))
    if lock.request != item.request:
        asked, wanted = " ".join(lock.request)[:500], " ".join(item.request)
        problem = f"it was found for {asked}, wanted is {wanted}"
    elif lock.sha256 != torch:
        problem = "it was found in another wheel of torch than the lock has"
    else:
        return
    raise LockError(
        f"locks/{item.path(folder).name} is out of step: {problem}",
        f"run `invoke lock --select {item.name}`",
    )


@lru_cache(maxsize=64)  # the config has all facts, and each image compares its own
def _parsed(text: str, file: str) -> FactsLock:
    return _facts(parse(text, file), file.removesuffix(".yaml"))


def _facts(value: Value, name: str) -> FactsLock:
    fields = value.record(_KEYS, _OPTIONAL)
    date = fields["date"].matching(_DATE, "a date")
    fits = []
    for key, member in fields["extras"].entries():
        record = member.record(("because",), ("wheels",))
        fits.append(
            Fit(
                extra=entry_name(key, member),
                wheels=requirements(record["wheels"].filled()) if "wheels" in record else (),
                reason=record.text("because"),
            )
        )
    version = fields["torch"]
    if not grammar.is_version(version.text()):
        raise version.wrong("is not a version")
    try:
        day = dt.date.fromisoformat(date)
    except ValueError:
        raise fields["date"].wrong("is not a date") from None
    return FactsLock(
        name=name,
        date=day,
        request=tuple(fields["request"].matching(_WORD, "what was asked for").split(" ")),
        sha256=fields["sha256"].matching(_HASH, "a SHA-256"),
        facts=Facts(
            cuda=fields.text("cuda"),
            torch=version.text(),
            python=fields.text("python"),
            arches=_arches(fields["arches"]),
            features=fields["features"].texts(),
            fits=tuple(fits),
            platform=_platform(fields),
            lacks=_lacks(fields["lacks"].filled()) if "lacks" in fields else (),
            single=tuple(capability(v, v.text()) for v in fields["single"].scalars()),
        ),
    )


def _platform(fields: Record) -> str:
    """The platform of the wheel; linux/amd64 is not written."""
    if "platform" not in fields:
        return AMD64.name
    name = fields["platform"].text()
    if name not in (p.name for p in PLATFORMS if p != AMD64):
        raise fields["platform"].wrong("is not a platform that is written")
    return name


def _arches(value: Value) -> tuple[Capability, ...]:
    return tuple(capability(v, v.text()) for v in value.filled().scalars())


def _lacks(value: Value) -> tuple[tuple[str, tuple[Capability, ...]], ...]:
    """Libraries, each with the architectures that it has no machine code for."""
    for key, member in value.entries():
        if not _LIBRARY.fullmatch(key):
            raise member.error(f"'{key}' is not a library")
    return tuple((key, _arches(member)) for key, member in value.entries())
