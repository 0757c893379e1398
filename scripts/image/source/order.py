"""Stand before Ninja and let it compile the units that take longest first.

    ninja [ARGUMENT...]

`python -m build` and CMake call Ninja themselves, so this has its name, in a folder before Ninja's
in PATH. $NINJA is Ninja, and $NINJA_MORE are options for each call, such as "-k 0".

A long unit that begins last keeps all other processors waiting. Ninja up to 1.11 begins units in
the order of its file; later ones first go by how many steps depend on a unit, then by that order.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import units

SORTED = "# The units that take longest are first.\n"
_UNIT = re.compile(r"build (\S+?\.o): \w+_COMPILER__\S+ ((?:[^\s$]|\$.)+)")
# Seconds of a unit that was never compiled, as measured with PyTorch 2.6.0 (docs/compile.md).
_HEAVY, _DEVICE, _HOST = 120.0, 21.0, 7.0


def sort(text: str, seconds: Callable[[str, str], float]) -> str:
    """The text of a build.ninja with its units at the place of the first one, the longest first.

    `seconds` gives the time of a unit from the path of its object and of its source, as Ninja has
    them. All else keeps its order, and units of equal time theirs.
    """
    begun: list[tuple[float, int, str]] = []
    ahead: list[str] = []
    rest: list[str] = []
    for statement in _statements(text):
        if unit := _UNIT.match(statement):
            begun.append((-seconds(unit[1], unit[2]), len(begun), statement))
        else:
            (rest if begun else ahead).append(statement)
    return "".join([*ahead, *(statement for *_, statement in sorted(begun)), *rest])


def _statements(text: str) -> Iterator[str]:
    """A file of Ninja's in pieces: each top line with what is indented below it."""
    piece, continued = "", False
    for line in text.splitlines(keepends=True):
        if piece and not continued and not line.startswith((" ", "\n")):
            yield piece
            piece = ""
        piece += line
        continued = line.endswith("$\n")
    if piece:
        yield piece


def expected(
    ledger: units.Ledger, folder: str, heavy: tuple[str, ...]
) -> Callable[[str, str], float]:
    """The seconds of a unit: those that it took before, else those that such units take.

    `folder` is where Ninja builds, relative to the tree; `heavy` are globs on paths of sources.
    """
    before = ledger.seconds()

    def seconds(object_: str, source: str) -> float:
        known = before.get(units.name(os.path.normpath(f"{folder}/{object_}")))
        if known is not None:
            return known
        if any(fnmatchcase(source, glob) for glob in heavy):
            return _HEAVY
        return _DEVICE if source.endswith(".cu") else _HOST

    return seconds


def main() -> None:
    """Sort the build.ninja of the folder, once, and become Ninja."""
    words = sys.argv[1:]
    folder = Path(words[words.index("-C") + 1] if "-C" in words[:-1] else "").absolute()
    path = folder / "build.ninja"
    text = path.read_text() if path.is_file() else SORTED
    if not text.startswith(SORTED):
        below = os.path.relpath(folder, os.environ["SOURCE_TREE"])
        ledger = units.Ledger(folder=Path(os.environ["UNITS"]))
        heavy = tuple(os.environ["HEAVY_FILES"].split())
        whole = path.with_name(".build.ninja")
        whole.write_text(SORTED + sort(text, expected(ledger, below, heavy)))
        whole.replace(path)
    ninja = os.environ["NINJA"]
    os.execv(ninja, [ninja, *os.environ["NINJA_MORE"].split(), *words])


if __name__ == "__main__":
    main()
