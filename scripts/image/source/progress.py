"""How far a build is: a line about once a minute, and the largest compiler that was seen."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import units

# What compiles and links, as the system names its processes.
_COMPILERS = frozenset(
    ("cc1", "cc1plus", "as", "cicc", "ptxas", "cudafe++", "fatbinary", "nvlink", "ld", "ld.bfd")
    + ("ld.gold", "ld.lld", "lto1", "clang", "clang++")
)
_SOURCE = re.compile(r"\.(?:c|cc|cpp|cxx|cu|S)$")
_TEXT, _SAMPLE = 60.0, 1.0  # seconds between two lines, and between two looks at memory
_ENOUGH = 10  # units that were compiled before the time of the others is estimated


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The memory in bytes of the largest compiler, and what it worked on."""

    size: int = 0
    what: str = ""

    def __str__(self) -> str:
        return f"{self.size / 1e9:.1f} GB" if self.size >= 1e9 else f"{self.size / 1e6:.0f} MB"  # noqa: PLR2004


@dataclass(frozen=True, kw_only=True)
class Count:
    """Units of a share: all of them, those that went by in this build, and `known` ones.

    An earlier build compiled the known ones, with whatever recipe; they did not go by yet.
    """

    planned: int
    passed: int
    known: int


def line(count: Count, hits: int, seconds: float) -> str:
    """How far a build is, that has been compiling for so many seconds.

    Of the rest, a unit that no build compiled is taken to need as long as one that was compiled
    now, and a known one as long as the average of all that went by.
    """
    compiled = count.passed - hits
    text = (
        f"{count.passed} of {count.planned or 'an unknown number of'} units, {hits} from the cache"
    )
    if not count.planned or compiled < _ENOUGH:
        return text
    new = count.planned - count.passed - count.known
    left = new * seconds / compiled + count.known * seconds / count.passed
    return f"{text}, about {duration(left)} left"


def duration(seconds: float) -> str:
    """Time as people say it, such as "1 h 20 min"."""
    minutes = round(seconds / 60)
    if not minutes:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"  # noqa: PLR2004


def largest(proc: Path = Path("/proc")) -> Peak:
    """The compiler with the largest memory among the processes that run now."""
    best = Peak()
    for status in proc.glob("[0-9]*/status"):
        try:
            text = status.read_text()
            words = status.with_name("cmdline").read_text(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        name, size = (re.search(p, text) for p in (r"^Name:\t(.*)", r"\nVmHWM:\s*(\d+) kB"))
        alive = words != [""]  # memory was read, then it ended: its command is not known any more
        if alive and name and size and name[1] in _COMPILERS and int(size[1]) * 1024 > best.size:
            source = next((w for w in words if _SOURCE.search(w)), "")
            best = Peak(size=int(size[1]) * 1024, what=" ".join((name[1], source)).strip())
    return best


@dataclass(kw_only=True)
class Watch:
    """Looks on while a tree is compiled, in a thread; use it in a `with`."""

    name: str
    tree: Path
    state: Path
    ledger: units.Ledger
    share: units.Share
    launcher: str
    path: str
    peak: Peak = field(default_factory=Peak)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._planned: dict[str, str] = {}
        self._first: float | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def total(self) -> tuple[int, int]:
        """How many units of the tree are compiled, and how many there are, in all shares."""
        planned = units.planned(self.tree, self.launcher, self.path) or self._planned
        return len(self.ledger.compiled() & planned.keys()), len(planned)

    def summary(self) -> str:
        """What was reached, in words."""
        done, planned = self.total()
        counted = f"{done} of {planned} units" if planned else f"{len(self._passed())} units"
        seconds = duration(time.monotonic() - self.started)
        size = f", the largest compiler took {self.peak}" * bool(self.peak.size)
        return f"{counted} compiled, {seconds} in this build{size}"

    def failed(self) -> str:
        """The source of the last unit that did not compile; "" for none."""
        return next(reversed(self._lines("failed")), "")

    def report(self) -> Iterator[str]:
        """What the compile cache had in this build, and how many units were compiled again."""
        counts: dict[str, tuple[int, int]] = {}
        for _, _, origin, source in self._finished():
            kind = "CUDA" if source.endswith(".cu") else "C/C++"
            hits, all_ = counts.get(kind, (0, 0))
            counts[kind] = (hits + (origin == "cache"), all_ + 1)
        rates = ", ".join(f"{kind} {n} of {all_}" for kind, (n, all_) in sorted(counts.items()))
        yield f"compile cache hits: {rates or 'no requests'}"
        if lost := len(self._lines("lost")):
            yield f"lost or damaged in the compile cache, and compiled again: {lost}"
        if again := len(self._lines("again")):
            yield f"compilers killed and started again: {again}"

    def _look(self) -> None:
        """Until the build is over: look at memory often, and say how far it is now and then."""
        last_report = time.monotonic()
        while not self._over.wait(_SAMPLE):
            current = largest()
            self.peak = max(self.peak, current, key=lambda peak: peak.size)
            passed = self._passed()
            if passed and self._first is None:
                # CMake has configured the tree.
                self._first = time.monotonic()
                self._planned = units.planned(self.tree, self.launcher, self.path)
            if passed and time.monotonic() - last_report >= _TEXT:
                last_report = time.monotonic()
                print(f"{self.name}: {self._line(passed)}", flush=True)

    def _passed(self) -> frozenset[str]:
        """The units that were compiled, or came from the cache, in this build."""
        return frozenset(unit for unit, *_ in self._finished())

    def _finished(self) -> Iterator[list[str]]:
        """Of each unit that went by: its name, its milliseconds, where it came from, its source."""
        for entry in self._lines("finished"):
            if len(words := entry.split(" ", 3)) == 4:  # noqa: PLR2004  else it is being written
                yield words

    def _lines(self, filename: str) -> list[str]:
        try:
            return (self.state / filename).read_text().splitlines()
        except FileNotFoundError:
            return []

    def _line(self, passed: frozenset[str]) -> str:
        own = {u for u, source in self._planned.items() if self.share.has(u, source)}
        known = (self.ledger.known() & own) - passed
        hits = sum(origin == "cache" for _, _, origin, _ in self._finished())
        count = Count(planned=len(own), passed=len(passed), known=len(known))
        return line(count, hits, time.monotonic() - (self._first or self.started))
