"""Statements on advisories: which do not apply to our images, and why. OpenVEX 0.2.0, a file.

https://github.com/openvex/spec. OpenVEX has no end of a statement. Here one ends `DAYS` after
somebody last looked at it, because what made it true may have changed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packageurl import PackageURL

from torch_images import jsondoc
from torch_images.errors import ConfigError, shown

DAYS = 180
CONTEXT = "https://openvex.dev/ns/v0.2.0"
# Each status, and what must say why.
_STATUSES = {
    "not_affected": "impact_statement",
    "affected": "action_statement",
    "fixed": "status_notes",
    "under_investigation": "status_notes",
}
_JUSTIFICATIONS = (
    "component_not_present",
    "vulnerable_code_not_present",
    "vulnerable_code_not_in_execute_path",
    "vulnerable_code_cannot_be_controlled_by_adversary",
    "inline_mitigations_already_exist",
)
_KEYS = {
    *("@context", "@id", "author", "role", "timestamp", "last_updated", "version", "tooling"),
    "statements",
}
_STATEMENT_KEYS = {
    *("@id", "vulnerability", "products", "status", "justification", "timestamp", "last_updated"),
    *_STATUSES.values(),
}
_MOST_BYTES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What the project says on an advisory.

    `advisories`: its names, such as CVE-2026-1; any of them will do.
    `products`: the packages that it is about, without a version for all versions.
    `status`: one of OpenVEX's.
    `reason`: why, for people.
    """

    advisories: tuple[str, ...]
    products: tuple[PackageURL, ...]
    status: str
    reason: str

    @property
    def applies(self) -> bool:
        """Whether the images still have the problem, or may have."""
        return self.status in ("affected", "under_investigation")

    def covers(self, advisories: Sequence[str], packages: Sequence[PackageURL]) -> bool:
        """Whether it is about an advisory, by any of its names, in one of these packages."""
        return bool(set(advisories) & set(self.advisories)) and any(
            (p.type, p.namespace, p.name) == (ours.type, ours.namespace, ours.name)
            and p.version in (None, ours.version)
            for p in self.products
            for ours in packages
        )


def read_statements(path: Path, day: dt.date) -> tuple[Statement, ...]:
    """The statements of a file; () where there is none.

    Raises ConfigError for one that is not understood, gives no reason, or has ended by a day.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigError(f"{path.name}: {error.strerror}", f"looked for {path}") from None
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{path.name}: it is larger than {_MOST_BYTES // 1000} kB", "split it")
    try:
        document = jsondoc.parse(data)
        listed = _listed(document)
    except jsondoc.MalformedError as error:
        raise ConfigError(f"{path.name}: {error}", "see docs/scan.md for an example") from None
    found = []
    for number, entry in enumerate(listed, 1):
        try:
            found.append(_statement(entry, document, day))
        except jsondoc.MalformedError as error:
            raise ConfigError(
                f"{path.name}: statement {number}: {error}", "see docs/scan.md for an example"
            ) from None
    return tuple(found)


def _listed(document: Any) -> list[Any]:
    _known(document, _KEYS)
    if jsondoc.member(document, "@context", kind=str) != CONTEXT:
        raise jsondoc.MalformedError(f"'@context' is not {CONTEXT}")
    return jsondoc.member(document, "statements", kind=list)


def _statement(entry: Any, document: Any, day: dt.date) -> Statement:
    _known(entry, _STATEMENT_KEYS)
    name = jsondoc.member(entry, "vulnerability", "name", kind=str)
    aliases = jsondoc.optional(entry["vulnerability"], "aliases", kind=list)
    status = jsondoc.member(entry, "status", kind=str)
    if status not in _STATUSES:
        raise jsondoc.MalformedError(f"status '{shown(status)}' is none of {', '.join(_STATUSES)}")
    reason = jsondoc.optional(entry, _STATUSES[status], kind=str).strip()
    if not reason:
        raise jsondoc.MalformedError(f"{shown(name)} is {status} without '{_STATUSES[status]}'")
    justification = jsondoc.optional(entry, "justification", kind=str)
    if status == "not_affected" and justification not in _JUSTIFICATIONS:
        raise jsondoc.MalformedError(f"'justification' is none of {', '.join(_JUSTIFICATIONS)}")
    products = jsondoc.member(entry, "products", kind=list)
    if not products:
        raise jsondoc.MalformedError(f"{shown(name)} names no products")
    seen = _day(entry) or _day(document)
    if seen is None:
        raise jsondoc.MalformedError(f"{shown(name)} has no timestamp")
    if seen > day:
        raise jsondoc.MalformedError(f"{shown(name)} is of {seen}, which is yet to come")
    if day - seen > dt.timedelta(days=DAYS):
        raise jsondoc.MalformedError(
            f"{shown(name)} was last looked at on {seen}, more than {DAYS} days ago: look again, "
            "then set its 'last_updated' or remove it"
        )
    return Statement(
        advisories=(name, *map(str, aliases)),
        products=tuple(map(_product, products)),
        status=status,
        reason=reason,
    )


def _product(entry: Any) -> PackageURL:
    text = jsondoc.member(entry, "@id", kind=str)
    try:
        return PackageURL.from_string(text)
    except ValueError:
        raise jsondoc.MalformedError(f"product '{shown(text)}' is not a package URL") from None


def _day(entry: Any) -> dt.date | None:
    """The day on which a statement, or the document, was last looked at."""
    text = jsondoc.optional(entry, "last_updated", kind=str) or jsondoc.optional(
        entry, "timestamp", kind=str
    )
    try:
        return dt.datetime.fromisoformat(text).date() if text else None
    except ValueError:
        raise jsondoc.MalformedError(f"'{shown(text)}' is not a time") from None


def _known(entry: Any, keys: set[str]) -> None:
    for key in jsondoc.member(entry, kind=dict):
        if key not in keys:
            raise jsondoc.MalformedError(f"unknown key '{shown(str(key))}'")
