"""Locks of source trees and archives: the code that a build compiles, and its tools.

A tree is pinned by its commit, which covers its submodules. An archive is pinned by its SHA-256.
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
    # Triton names its LLVM "f6ded0be-ubuntu-x64", so this need not be a version by PEP 440.
    r"(?P<name>[a-z][a-z0-9_]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9._+-]{0,79}) "
    r"sha256:(?P<sha256>[0-9a-f]{64})"
)
# Its last part is a plain file name that no program reads as an option.
_URL = re.compile(r"https?://[^\s/?#]+/(?:[^\s?#]*/)?[A-Za-z0-9][A-Za-z0-9._+-]{0,200}")


@dataclass(frozen=True, kw_only=True, order=True)
class LockedTree:
    """A tree of a git repository.

    `name`: "torch" or "triton".
    `version`: from the tree's own files, such as "2.12.0a0".
    `repository`: the URL to clone it from.
    `commit`: 40 hexadecimal digits.
    """

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
    """A file at a URL.

    `name`: its content, such as "llvm" or "cuda_nvcc".
    `version`: in its publisher's form, which need not follow PEP 440.
    `url`: its address, which ends in a plain file name.
    `size`: bytes of the file.
    `sha256`: of the file, 64 hexadecimal digits.
    """

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
    """The content of a lock file of sources.

    `name`: the file's name without suffix, such as "source-fork" or "toolkit-cu128".
    `date`: the day on which it was resolved (UTC).
    `request`: the requested inputs, such as "torch@<commit>" or "cuda_nvcc".
    `trees`: the source trees, sorted by name; () in the lock of a compiler.
    `archives`: the other files needed, sorted by name.
    `unlocked`: whether a build resolved part of it itself, or a user gave an own tree.
    `build`: in the lock of an image, `Source.build`: the SHA-256 of the build options in
        images.yaml. "" in locks/.
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
        """The tree with a name, "torch" or "triton". Raises StopIteration if there is none."""
        return next(tree for tree in self.trees if tree.name == name)


def format_sources(lock: SourceLock) -> str:
    """The text of the lock file, sorted, so that equal locks have equal texts."""
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
    """Parse the text of a lock; `name` is the file's, without suffix.

    Raises LockError, with file and line, for anything that `format_sources` does not write.
    """
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
    grammar.check_once((archive.filename.lower() for archive in archives), name)  # as in debs.py
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
    """The lock in a file. Raises LockError if the file is missing or damaged."""
    return parse_sources(grammar.read(path), path.stem)


def locked_trees(source: Source) -> tuple[LockedTree, ...]:
    """The trees of a source as pinned in images.yaml; () if it is not compiled."""
    return tuple(
        LockedTree(name=name, version=tree.version, repository=tree.repository, commit=tree.commit)
        for name, tree in (("torch", source.torch), ("triton", source.triton))
        if tree
    )
