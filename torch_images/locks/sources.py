"""Source trees and archives: the exact ones that a build compiles, or compiles with.

A tree is pinned by its commit, which covers its submodules; an archive by its SHA-256.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from torch_images.config.types import Source
from torch_images.locks import grammar

_TREE = re.compile(r"(?P<name>[a-z0-9]+)==(?P<version>[^\s=]+) git:(?P<commit>[0-9a-f]{40})")
_ARCHIVE = re.compile(
    # Triton names its LLVM "f6ded0be-ubuntu-x64", so this is no version as PEP 440 has it.
    r"(?P<name>[a-z][a-z0-9_]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9._+-]{0,79}) "
    r"sha256:(?P<sha256>[0-9a-f]{64})"
)
# Its last part is a file name within a folder, that no program takes for an option.
_URL = re.compile(r"https?://[^\s/?#]+/(?:[^\s?#]*/)?[A-Za-z0-9][A-Za-z0-9._+-]{0,200}")


@dataclass(frozen=True, kw_only=True, order=True)
class LockedTree:
    """A tree of a repository; `version` is the one that its files say."""

    name: str
    version: str
    repository: str
    commit: str

    @property
    def line(self) -> str:
        """The line of the lock that pins it."""
        return f"{self.name}=={self.version} git:{self.commit}"


@dataclass(frozen=True, kw_only=True, order=True)
class LockedArchive:
    """A file at a URL; `size` is in bytes."""

    name: str
    version: str
    url: str
    size: int
    sha256: str

    @property
    def line(self) -> str:
        """The line of the lock that pins it."""
        return f"{self.name}=={self.version} sha256:{self.sha256}"

    @property
    def filename(self) -> str:
        """The last part of its URL."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class SourceLock:
    """The content of a lock file; `name` is the file's, without suffix.

    `unlocked` marks one that a build resolved for itself, or that a user's own tree is part of.
    In an image, `build` identifies what images.yaml tells the builds of the trees.
    """

    name: str
    date: dt.date
    request: tuple[str, ...]
    trees: tuple[LockedTree, ...] = ()
    archives: tuple[LockedArchive, ...] = ()
    unlocked: bool = False
    build: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of the lock's text, in hexadecimal."""
        return hashlib.sha256(format_sources(self).encode()).hexdigest()

    def tree(self, name: str) -> LockedTree:
        """The tree with a name."""
        return next(tree for tree in self.trees if tree.name == name)


def format_sources(lock: SourceLock) -> str:
    """The text of the lock file: sorted, the same for equal locks."""
    header = {
        "date": lock.date.isoformat(),
        "request": " ".join(sorted(lock.request)),
        "unlocked": "yes" if lock.unlocked else "",
        "build": lock.build,
    }
    entries = [grammar.Entry(0, tree.repository, tree.line) for tree in sorted(lock.trees)]
    entries += [grammar.Entry(a.size, a.url, a.line) for a in sorted(lock.archives)]
    return grammar.compose(header, entries)


def parse_sources(text: str, name: str) -> SourceLock:
    """Read the text of a lock with a name. Raises LockError for anything unexpected."""
    header, entries = grammar.parse(text, name, ("date", "request", "unlocked", "build"))
    trees, archives = [], []
    for entry in entries:
        if match := _TREE.fullmatch(entry.line):
            if not grammar.is_version(match["version"]):
                raise grammar.unreadable(name, entry.line)
            trees.append(LockedTree(repository=entry.where, **match.groupdict()))
        elif match := _ARCHIVE.fullmatch(entry.line):
            if not _URL.fullmatch(entry.where):
                raise grammar.damaged(name, f"{match['name']} has no URL of a file")
            archives.append(LockedArchive(url=entry.where, size=entry.size, **match.groupdict()))
        else:
            raise grammar.unreadable(name, entry.line)
    grammar.check_once([*(t.name for t in trees), *(a.name for a in archives)], name)
    grammar.check_once((archive.filename for archive in archives), name)
    return SourceLock(
        name=name,
        date=dt.date.fromisoformat(header["date"]),
        request=tuple(sorted(header.get("request", "").split())),
        trees=tuple(sorted(trees)),
        archives=tuple(sorted(archives)),
        unlocked=grammar.unlocked(header, name),
        build=header.get("build", ""),
    )


def read_sources(path: Path) -> SourceLock:
    """Read a lock file. Raises LockError where it is missing or damaged."""
    return parse_sources(grammar.read(path), path.stem)


def locked_trees(source: Source) -> tuple[LockedTree, ...]:
    """The trees of a source, as images.yaml pins them."""
    return tuple(
        LockedTree(name=name, version=tree.version, repository=tree.repository, commit=tree.commit)
        for name, tree in (("torch", source.torch), ("triton", source.triton))
        if tree
    )
