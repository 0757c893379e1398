"""NVIDIA's programs and headers for Triton's wheel: a build without the network leaves them out."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

_INCLUDE = re.compile(r"^\s*#\s*include\s*[<\"]([^>\"]+)[>\"]", re.MULTILINE)
_RELEASE = re.compile(r"\brelease (\d+\.\d+)")


def first(places: Sequence[str]) -> Path | None:
    """The first of some paths that exists."""
    return next((Path(place) for place in places if Path(place).exists()), None)


def add_programs(files: Path, programs: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Put programs into an unpacked wheel, over those that it has already.

    `programs` has for each path below `files` the places to take it from; the first that exists
    wins. Yields a message for each that is in none of them.
    """
    for path, places in programs.items():
        if source := first(places):
            target = files / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
        else:
            yield f"{' and '.join(places)} do not exist"


def add_headers(target: Path, include: Path, like: Path) -> Iterator[str]:
    """Copy headers of a toolkit's folder `include`: those that the folder `like` has, by name.

    Also what they include in turn from the folders of those. Yields a message if there are none.
    """
    waiting = [p.relative_to(like) for p in sorted(like.rglob("*")) if p.is_file()]
    folders = {name.parent for name in waiting}
    done: set[Path] = set()
    while waiting:
        name = waiting.pop()
        source = include / name
        if name in done or name.parent not in folders or not source.is_file():
            continue
        done.add(name)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target / name)
        for included in _INCLUDE.findall(source.read_text(errors="replace")):
            waiting += [Path(included), name.parent / included]
    if not done:
        yield f"{include} has none of the headers that {like} has"


def other_releases(programs: Iterable[Path], cuda: str) -> Iterator[str]:
    """A message for each of NVIDIA's programs that is not of a CUDA version such as "13.0"."""
    for program in programs:
        if not program.is_file():
            continue
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        release = _RELEASE.search(done.stdout)
        if release and release[1] != cuda:
            yield f"{program.name} is of CUDA {release[1]}, the wheel is for {cuda}"
