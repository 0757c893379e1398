"""Parts of images.yaml that several sections have, see load.py."""

from __future__ import annotations

import re

from packaging.requirements import InvalidRequirement, Requirement

from torch_images.yamlnode import Record, Value

NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_DEBIAN_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")


def entry_name(key: str, value: Value) -> str:
    """The key of an entry, as a name."""
    if not NAME.fullmatch(key):
        raise value.error(f"'{key}' is not a name", "use lower-case letters, digits, '.' and '-'")
    return key


def requirement(value: Value) -> str:
    """A requirement of wheels, PEP 508 without a URL."""
    try:
        found = Requirement(value.text())
    except InvalidRequirement as error:
        raise value.error(f"'{value.text()}' is not a requirement: {error}") from None
    if found.url or found.name.lower() == "torch":
        raise value.error(
            f"'{value.text()}' is not acceptable here",
            "name a package of the index; torch is set per CUDA version",
        )
    return value.text()


def requirements(fields: Record, key: str) -> tuple[str, ...]:
    """A list of requirements; () where the key is absent."""
    return tuple(requirement(v) for v in fields[key].items()) if key in fields else ()


def packages(fields: Record) -> tuple[str, ...]:
    """The names of Debian packages."""
    values = fields["packages"].items() if "packages" in fields else ()
    return tuple(v.matching(_DEBIAN_PACKAGE, "the name of a Debian package") for v in values)
