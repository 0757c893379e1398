"""Locks of sources: the code that a build compiles, and the archives that this needs.

A tree is pinned by its commit, which covers its submodules; anything else by its SHA-256.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch_images.config.fields import Commit, WheelName
from torch_images.config.schema import Section, matches
from torch_images.config.types import Source
from torch_images.locks.files import Lock, PythonVersion, Sha256, Word

# Its last part is a plain file name that no program reads as an option.
_URL = r"https?://[^\s/?#]+/(?:[^\s?#]*/)?[A-Za-z0-9][A-Za-z0-9._+-]{0,200}"


@dataclass(frozen=True, kw_only=True, order=True)
class LockedTree(Section):
    """A tree of a git repository.

    `name`: "torch" or "triton".
    `version`: from the tree's own files, e.g. "2.12.0a0".
    `repository`: the URL to clone it from.
    `commit`: 40 hexadecimal digits.
    """

    name: Annotated[str, matches(r"[a-z0-9]+", "a tree")]
    version: PythonVersion
    repository: Word
    commit: Commit


@dataclass(frozen=True, kw_only=True, order=True)
class LockedArchive(Section):
    """A file at a URL.

    `name`: its content, e.g. "llvm" or "cuda_nvcc".
    `version`: in its publisher's form, which need not follow PEP 440.
    `url`: its address, which ends in a plain file name.
    `size`: bytes of the file.
    `sha256`: of the file, 64 hexadecimal digits.
    """

    name: Annotated[str, matches(r"[a-z][a-z0-9_]*", "an archive")]
    # Triton names its LLVM "f6ded0be-ubuntu-x64".
    version: Annotated[str, matches(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}", "a version")]
    url: Annotated[str, matches(_URL, "the URL of a file")]
    size: int
    sha256: Sha256

    @property
    def filename(self) -> str:
        """The last part of its URL."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True, order=True)
class LockedSdist(Section):
    """The source distribution of a package in the main index.

    `name`: the project's name, normalised as in PEP 503, e.g. "flash-attn".
    `version`: by PEP 440.
    `filename`: without a folder, e.g. "flash_attn-2.8.3.tar.gz".
    `size`: bytes of that file; 0 if unknown.
    `sha256`: of that file, 64 hexadecimal digits.
    """

    name: WheelName
    version: PythonVersion
    filename: Annotated[str, matches(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,250}\.tar\.gz", "an sdist")]
    size: int
    sha256: Sha256
    index = ""  # as of LockedWheel


@dataclass(frozen=True, kw_only=True)
class SourceLock(Lock):
    """The content of a lock file of sources.

    `request`: the requested inputs, e.g. "torch@<commit>" or "cuda_nvcc".
    `trees`: the source trees, sorted by name; () in the lock of a compiler.
    `archives`: the other files needed, sorted by name.
    `sdists`: the extras to compile, sorted by name.
    `unlocked`: whether a user gave an own tree.
    `build`: in the lock of an image, `Source.build`: the SHA-256 of the build options in
        images.yaml. "" in locks/.
    """

    unlocked: bool = False
    build: str = ""
    request: tuple[Word, ...]
    trees: tuple[LockedTree, ...] = ()
    archives: tuple[LockedArchive, ...] = ()
    sdists: tuple[LockedSdist, ...] = ()


def locked_trees(source: Source) -> tuple[LockedTree, ...]:
    """The trees of a source as pinned in images.yaml; () if it is not compiled."""
    return tuple(
        LockedTree(name=name, version=tree.version, repository=tree.repository, commit=tree.commit)
        for name, tree in (("torch", source.torch), ("triton", source.triton))
        if tree
    )
