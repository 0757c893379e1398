"""The units of a tree: objects that compilers make, and which of them are compiled already.

The launcher, `compile`, writes a file for each unit that was compiled into a folder of the compile
cache. So a later build knows how much is left. A unit has the name of its object's path below the
tree, as a hash; the same source may be compiled twice, into two objects.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPILES = re.compile(r" -(?:c|dc|dw) ")
_UNIT = re.compile(r"[0-9a-f]{16}")
_NAME = 16  # hexadecimal digits of a unit's name, as many as the launcher takes
_TRIES = ("CMakeFiles", ".git")  # where CMake tries compilers, and where no build is


@dataclass(frozen=True, kw_only=True)
class Share:
    """A builder's part of the units: number `this` of `of`, from 1 on."""

    this: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Share:
        """Read a share such as "1/2"; "" is all."""
        this, of = text.split("/") if text else ("1", "1")
        return cls(this=int(this), of=int(of))

    def has(self, unit: str, source: str) -> bool:
        """Whether a unit belongs to it; the launcher asks the same."""
        return "/third_party/" in source or int(unit[:7], 16) % self.of + 1 == self.this


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The folder with a file for each unit that was compiled."""

    folder: Path

    @classmethod
    def open(cls, top: Path, name: str, recipe: str) -> Ledger:
        """The ledger `name` below `top`; units of another `recipe` do not count as compiled.

        Their files stay, for the time that each took.
        """
        ledger = cls(folder=top / name)
        ledger.folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(recipe.encode()).hexdigest()
        if not ledger._recipe.exists() or ledger._recipe.read_text() != digest:
            ledger._recipe.write_text(digest)
        return ledger

    @property
    def _recipe(self) -> Path:
        return self.folder / "recipe"

    def known(self) -> frozenset[str]:
        """The units that were compiled once, with whatever recipe."""
        return frozenset(p.name for p in self.folder.iterdir() if _UNIT.fullmatch(p.name))

    def seconds(self) -> dict[str, float]:
        """The time that each known unit took, with whatever recipe."""
        durations = {}
        for unit in self.known():
            spent = (self.folder / unit).read_text().partition(" ")[0]
            if spent.isdigit():
                durations[unit] = int(spent) / 1000
        return durations

    def compiled(self) -> frozenset[str]:
        """The units that were compiled since this recipe is in use."""
        since = self._recipe.stat().st_mtime_ns
        files = (self.folder / unit for unit in self.known())
        return frozenset(p.name for p in files if p.stat().st_mtime_ns >= since)


def name(path: str) -> str:
    """The name of the unit whose object has a path below the tree."""
    return hashlib.sha256(path.encode()).hexdigest()[:_NAME]


def planned(tree: Path, launcher: str, path: str) -> dict[str, str]:
    """The units that Ninja would compile with the launcher: the source of each by its name.

    `path` is where Ninja is looked for. There are none before CMake has configured the tree.
    """
    sources = {}
    ninja = shutil.which("ninja", path=path)
    for folder in _build_folders(tree) if ninja else ():
        command = [str(ninja), "-C", str(folder), "-t", "compdb"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            edges = json.loads(done.stdout)
        except ValueError:
            continue
        for edge in edges:
            if launcher in edge["command"] and _COMPILES.search(edge["command"]):
                below = str(folder / edge["output"]).removeprefix(f"{tree}/")
                sources[name(below)] = str(folder / edge["file"])
    return sources


def _build_folders(tree: Path) -> Iterator[Path]:
    """The folders below a tree that Ninja builds in, those of builds within builds as well."""
    for folder, names, files in os.walk(tree):  # Path.walk is newer than Python 3.11
        names[:] = [n for n in names if n not in _TRIES]
        if "build.ninja" in files:
            yield Path(folder)
