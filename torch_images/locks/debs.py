"""Locks of Debian packages: each package of a base, with its version, size, path and hash.

A lock names the archive that has a package ("debian", "debian-security") and the path there. Any
mirror of that archive can serve it, and so can its snapshots.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import unquote

from torch_images.config.fields import HostPlatform
from torch_images.config.schema import Section, matches
from torch_images.errors import LockError, shown
from torch_images.locks.files import Lock, Sha256, Word
from torch_images.platforms import AMD64

# Without "." and "..", and with a file name that no program reads as an option.
_PATH = r"(?:(?!\.{1,2}/)[A-Za-z0-9._+~%:=-]{1,250}/)*[A-Za-z0-9][A-Za-z0-9._+~%:=-]{0,245}\.deb"

# The output of scripts/print-packages.
_INDEX = re.compile(r"index (?P<uri>\S+?)/? (?P<label>\S.*)")
_URI = re.compile(
    r"'(?P<uri>\S+)' (?P<file>[^\s_]+_[^\s_]+_[^\s_]+\.deb) (?P<size>[0-9]{1,15}) "
    r"SHA256:(?P<sha256>[0-9a-f]{64})"
)


@dataclass(frozen=True, kw_only=True, order=True)
class LockedDeb(Section):
    """One binary package.

    `name`, `version`: in dpkg's form, e.g. "tini" and "0.19.0-1".
    `archive`: the label of its archive, e.g. "debian" or "debian-security".
    `path`: below the root of that archive, e.g. "pool/main/t/tini/tini_0.19.0-1_amd64.deb".
    `size`: bytes of the file; 0 if unknown.
    `sha256`: of the file, 64 hexadecimal digits.
    """

    # No name ends in "-": apt would remove that package.
    name: Annotated[str, matches(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]", "a package")]
    version: Annotated[str, matches(r"[0-9][A-Za-z0-9.+~:-]*", "a version")]
    archive: Annotated[str, matches(r"[a-z0-9]+(?:-[a-z0-9]+)*", "an archive")]
    path: Annotated[str, matches(_PATH, "the path of a package")]
    size: int = 0
    sha256: Sha256

    @property
    def filename(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class DebLock(Lock):
    """The content of a lock file of Debian packages.

    `system`: distribution and codename, e.g. "debian bookworm"; for NVIDIA's compat package the
        end of its repository's URL, e.g. "ubuntu2404/x86_64".
    `request`: the names of the requested packages, sorted.
    `debs`: the requested packages and all their dependencies, sorted by name.
    `platform`: the platform of the packages.
    `note`: for people, e.g. that a hash was entered by hand.
    """

    system: str = ""
    platform: HostPlatform = AMD64
    note: str = ""
    request: tuple[Word, ...]
    debs: tuple[LockedDeb, ...]

    @property
    def snapshot(self) -> str:
        """The lock's date in the form of snapshot archives: the end of that day (UTC)."""
        return self.date.strftime("%Y%m%dT235959Z")

    def versions(self) -> dict[str, str]:
        """The version of each package, by its name."""
        return {deb.name: deb.version for deb in self.debs}


def parse_packages(text: str) -> tuple[LockedDeb, ...]:
    """The packages in the output of scripts/print-packages, sorted by name.

    Raises LockError if a package has no SHA-256, or the output does not list its index.
    """
    archives: dict[str, str] = {}
    debs = []
    for line in text.splitlines():
        if index := _INDEX.fullmatch(line):
            archives[index["uri"]] = re.sub(r"[^a-z0-9]+", "-", index["label"].lower()).strip("-")
        elif line.startswith("'"):
            match = _URI.fullmatch(line)
            root = next((r for r in archives if match and match["uri"].startswith(f"{r}/")), None)
            if not match or not root:
                raise LockError(f"apt offers a package without index or SHA-256: {shown(line)}")
            name, version, _ = map(unquote, match["file"].split("_"))
            debs.append(
                LockedDeb(
                    name=name,
                    version=version,
                    archive=archives[root],
                    path=unquote(match["uri"].removeprefix(f"{root}/")),
                    size=int(match["size"]),
                    sha256=match["sha256"],
                )
            )
    return tuple(sorted(debs))
