"""How far a run of the integration tests is, and how long each file took the last time."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path

import pytest


class Progress:
    """Prints a line as each file of tests begins, and keeps the seconds that each one took.

    `files` are the names of all files, `kept` is the JSON file with the seconds of earlier runs.
    """

    def __init__(self, files: list[str], kept: Path) -> None:
        self._files, self._kept = files, kept
        self._begun: list[str] = []
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._started = time.monotonic()
        try:
            self._last: dict[str, float] = json.loads(kept.read_text())
        except (OSError, ValueError):  # no run yet, or one that was cut off
            self._last = {}

    def begin(self, name: str) -> str | None:
        """The line for a test of a file; None if it is not the file's first one."""
        if name in self._begun:
            return None
        self._begun.append(name)
        line = f"file {len(self._begun)} of {len(self._files)}: {name}"
        return f"{line}, {self._last[name]:.0f} s the last time" if name in self._last else line

    def add(self, name: str, seconds: float) -> None:
        """Count the seconds of a part of a test."""
        self._seconds[name] += seconds

    def save(self) -> None:
        """Keep the seconds of this run; files that it left out keep theirs."""
        self._kept.parent.mkdir(parents=True, exist_ok=True)
        own = {name: round(seconds, 1) for name, seconds in sorted(self._seconds.items())}
        self._kept.write_text(json.dumps({**self._last, **own}, indent=2) + "\n")

    @pytest.hookimpl
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Print the line of a file that begins."""
        if line := self.begin(file_of(nodeid)):
            self._reporter.ensure_newline()
            self._reporter.write_line(line, bold=True)

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a set-up, a call or a tear-down."""
        self.add(file_of(report.nodeid), report.duration)

    @pytest.hookimpl
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Find what prints."""
        self._reporter = session.config.pluginmanager.getplugin("terminalreporter")
        if "all" in self._last:
            self._reporter.write_line(f"the last run took {self._last['all'] / 60:.0f} min")

    @pytest.hookimpl
    def pytest_sessionfinish(self) -> None:
        """Keep what was counted."""
        self.add("all", time.monotonic() - self._started)
        self.save()


def file_of(nodeid: str) -> str:
    """The name of a test's file."""
    return nodeid.partition("::")[0].rpartition("/")[2]
