"""Package indexes beside the main one: what comes from where. Pure.

The main index has the published wheels of a release for one CUDA version. PyTorch's own has them
for others, and each night's build.

One rule says where a wheel comes from, and its name alone decides: what an index is named for comes
from there, everything else from the main index. A package that only the other index has must be
named, too. Otherwise whoever registered its name in the main index would be asked for it, as
happened to torchtriton in December 2022 (https://pytorch.org/blog/compromised-nightly-dependency).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LOOPBACK = ("localhost", "127.0.0.1")
_STEP = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+"  # of a path: neither "." nor ".."
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9]+(?:[.-]+[a-z0-9]+)*)(?::(?P<port>[1-9][0-9]{0,4}))?"
    rf"(?:/{_STEP})*"
)
_LONGEST, _MOST_PORTS = 200, 65535


@dataclass(frozen=True, kw_only=True)
class Index:
    """A package index (PEP 503) that has releases of torch for a CUDA version.

    `url`: its root without a final slash, such as "https://download.pytorch.org/whl/cu128".
    `packages`: the normalised names of all packages that are taken from it; torch is one of them.
    `torch`: the releases of torch that are taken from it, the oldest first.
    """

    url: str
    packages: tuple[str, ...]
    torch: tuple[str, ...]


def origin(name: str, index: Index | None) -> str:
    """The URL of the index that a package comes from, by its normalised name; "" for the main one.

    `index` is that of the release of torch beside it, None if its release is in the main index.
    """
    return index.url if index and name in index.packages else ""


def is_index(url: str) -> bool:
    """Whether a text is the URL of an index, as images.yaml and locks write it.

    It is an https URL without user, query and final slash; http only for this machine's loopback.
    """
    parts = _URL.fullmatch(url) if len(url) <= _LONGEST else None
    if not parts or int(parts["port"] or 1) > _MOST_PORTS:
        return False
    return parts["scheme"] == "https" or parts["host"] in _LOOPBACK
