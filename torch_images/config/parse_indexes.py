"""The releases of torch in images.yaml, and the indexes that have those the main one lacks."""

from __future__ import annotations

import contextlib
import datetime as dt
import re

from packaging.utils import canonicalize_name
from packaging.version import Version

from torch_images.config.indexes import Index, is_index
from torch_images.config.parse_fields import NAME, release
from torch_images.config.yaml_nodes import Record, Value

_NIGHT = re.compile(r"\.dev(20[0-9]{2})([01][0-9])([0-3][0-9])$")


def load_releases(fields: Record, value: Value) -> tuple[tuple[str, ...], tuple[Index, ...]]:
    """All releases of torch of a CUDA version, the oldest first, and the indexes beside the main.

    `fields` and `value` are the CUDA version's. Raises ConfigError for a release that is listed
    twice, for a pre-release of the main index, and where there is no release at all.
    """
    found = _releases(fields["torch"]) if "torch" in fields else ()
    for item, version in zip(fields["torch"].items() if found else (), found, strict=True):
        if Version(version).is_prerelease:
            hint = "list it under `indexes`, below the index that has it"
            raise item.wrong("is a pre-release, and those are not taken from the main index", hint)
    indexes: list[Index] = []
    for member in fields["indexes"].filled().items() if "indexes" in fields else ():
        index = _index(member)
        if index.url in (other.url for other in indexes):
            raise member.error(f"the index {index.url} is listed twice", "join its entries")
        held = [Version(version) for version in found]
        for version in index.torch:
            if Version(version) in held:
                problem = f"torch {version} is listed twice for one CUDA version"
                raise member.error(problem, "leave it with the one index that has it")
        indexes.append(index)
        found += index.torch
    if not found:
        hint = "list releases under `torch`, or under `indexes` with the index that has them"
        raise value.error(f"'{value.path}' names no release of torch", hint)
    return tuple(sorted(found, key=Version)), tuple(indexes)


def _index(value: Value) -> Index:
    fields = value.record(("url", "packages", "torch"))
    where = fields["url"]
    url = where.text().rstrip("/")
    if "@" in url:  # not repeated: it may hold a password
        raise where.error(f"'{where.path}' names a user", "give a URL that needs no password")
    if not is_index(url):
        hint = "give one like https://download.pytorch.org/whl/cu128"
        raise where.wrong("is not the https URL of an index", hint)
    packages = fields["packages"].filled()
    for item in packages.scalars():
        if canonicalize_name(item.text()) != item.text() or not NAME.fullmatch(item.text()):
            raise item.wrong("is not the name of a package", "write it like nvidia-nccl-cu12")
    if "torch" not in packages.texts():
        problem = f"'{packages.path}' does not name torch, whose releases come from this index"
        raise packages.error(problem, "add torch to them")
    for item in fields["torch"].filled().items():
        _check_day(item)
    return Index(url=url, packages=packages.texts(), torch=_releases(fields["torch"]))


def _check_day(value: Value) -> None:
    """Raise ConfigError for a night's build whose version does not say of which night it is."""
    version = release(value)
    if not Version(version).is_devrelease:
        return
    night = _NIGHT.search(version)
    with contextlib.suppress(ValueError):
        if night and dt.date(*map(int, night.groups())):
            return
    problem = "does not say the day of a night's build"
    raise value.wrong(problem, "write it like 2.16.0.dev20261120")


def _releases(value: Value) -> tuple[str, ...]:
    """Releases of torch, the oldest first. Raises ConfigError unless the file has that order."""
    releases = [release(v) for v in value.scalars()]
    for v, before, text in zip(value.items()[1:], releases, releases[1:], strict=False):
        if Version(text) <= Version(before):
            raise v.wrong(f"does not come after {before}", "list the oldest release first")
    return tuple(releases)
