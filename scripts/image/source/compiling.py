"""Compile a tree through the compile cache: for as long as wanted, with less where memory runs out.

What is compiled is in the cache at once, so a build that is stopped or killed loses nothing but the
units that were being compiled.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import progress
import units

from torch_images import jobs as planning

# What gcc, collect2, nvcc and the shell say of a process that the system ended for its
# memory, and what gcc says where it gets none. The launcher gives it to grep -E.
KILLED = re.compile(
    r"Killed signal terminated program|terminated with signal 9|died due to signal 9|: Killed$"
    r"|virtual memory exhausted",
    re.MULTILINE,
)
FULL = re.compile(r"No space left on device|Disk quota exceeded")
FAILED = re.compile(r"^FAILED: (?:\[[^]]*\] )?(\S+)", re.MULTILINE)
CACHE_FOLDER = Path("/run/compile-cache")
# ccache tells objects by all files that a compiler read (CCACHE_DEPEND), which -MD lists. What nvcc
# preprocesses is for one architecture, so objects that differ for another would be taken for equal.
CACHE = {
    "CCACHE_COMPILERCHECK": "content",
    "CCACHE_DEPEND": "1",
    "CCACHE_DIR": str(CACHE_FOLDER / "ccache"),
    "CCACHE_IGNOREOPTIONS": "--threads=*",
    "CCACHE_MAXSIZE": "40G",
}
# BuildKit shows the first 2 MiB of a step and drops the rest, the line that says why it failed too.
SHOWN, TAIL, LINE = 1_000_000, 200, 2000  # bytes, lines and characters


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the host asks of this build: until when to compile, and which part of the units.

    `deadline` is in seconds since 1970, 0 for none; `share` is such as "1/2", "" for all.
    """

    deadline: float = 0
    share: str = ""

    @classmethod
    def read(cls, settings: Mapping[str, Any], notes: Path) -> Limits:
        """From the host's settings. `notes` is a file that the steps of one call share.

        The slice begins with the first step that compiles, and is for all of them together.
        """
        share, slice_ = settings.get("share", ""), settings.get("slice", 0)
        if not slice_:
            return cls(share=share)
        try:
            begun = json.loads(notes.read_text())
        except (OSError, ValueError):
            begun = {}
        if begun.get("call") != settings["call"]:
            begun = {"call": settings["call"], "deadline": int(time.time()) + slice_}
            notes.parent.mkdir(parents=True, exist_ok=True)
            notes.write_text(json.dumps(begun))
        return cls(share=share, deadline=begun["deadline"])

    @property
    def over(self) -> bool:
        """Whether nothing more may be compiled."""
        return bool(self.deadline) and time.time() >= self.deadline


@dataclass(kw_only=True)
class Screen:
    """Shows a build's output, up to a limit; of the rest the end, if asked to."""

    left: int = SHOWN
    hidden: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))

    def show(self, line: str) -> None:
        """Show a line, or keep it for the end."""
        line = line if len(line) <= LINE else f"{line[:LINE]} ...\n"
        if self.left <= 0:
            self.hidden.append(line)
            return
        print(line, end="", flush=True)
        self.left -= len(line)
        if self.left <= 0:
            print("(more output is not shown, but for its end if this fails)", flush=True)

    def end(self) -> None:
        """Show the last lines that were not shown."""
        print("".join(self.hidden), end="", flush=True)
        self.hidden.clear()


def compile_tree(
    name: str,
    tree: Path,
    chosen: planning.Jobs,
    environment: dict[str, str],
    *,
    limits: Limits,
    ledger: units.Ledger,
    work: Path,
) -> str:
    """Compile, with fewer jobs each time that memory runs out. Returns what was printed.

    Exits with a message if compiling fails, if memory runs out with one job, if the disk is full,
    if the time is over, or if the share is compiled.
    """
    state = work / "state"
    state.mkdir()
    environment |= {
        "SOURCE_TREE": str(tree),
        "HEAVY_FILES": " ".join(planning.HEAVY_FILES),
        "PYTHONHASHSEED": "0",
        "STATE": str(state),
        "UNITS": str(ledger.folder),
        "CCACHE_TEMPDIR": str(work / "ccache"),
        "KILLED": KILLED.pattern,
        "DEADLINE": str(int(limits.deadline) or ""),
        "SHARE": limits.share,
    }
    path = environment["PATH"]
    environment |= before_ninja(state, path, "-k 0" if limits.share else "")
    os.umask(0o022)
    if limits.over:
        fail(f"unfinished: {name} was not begun")
    watch = progress.Watch(
        name=name,
        tree=tree,
        state=state,
        ledger=ledger,
        share=units.Share.parse(limits.share),
        launcher=environment.get("CMAKE_CXX_COMPILER_LAUNCHER", "/compile "),
        path=path,
    )
    reach(name, environment.get("CCACHE_REMOTE_STORAGE", ""))
    log = ""
    with watch:
        while True:
            environment |= {
                "MAX_JOBS": str(chosen.jobs),
                "CMAKE_BUILD_PARALLEL_LEVEL": str(chosen.jobs),
                "HEAVY_PLACES": str(chosen.heavy),
                "HEAVY_THREADS": str(chosen.threads),
            }
            for before in ("refused", "failed"):
                (state / before).unlink(missing_ok=True)
            code, text = run_build(tree, environment)
            log += text
            print("\n".join(f"{name}: {line}" for line in watch.report()), flush=True)
            if not code and not (state / "refused").exists():
                seconds = time.monotonic() - watch.started
                print(f"{name}: compiled in {seconds:.0f} s", flush=True)
                return log
            if reason := why_it_ends(name, chosen, watch, limits, text):
                fail(reason)
            chosen = chosen.fewer()
            print(f"{name}: out of memory, continuing with {chosen.jobs} jobs", flush=True)


def why_it_ends(
    name: str, chosen: planning.Jobs, watch: progress.Watch, limits: Limits, text: str
) -> str:
    """Why a build that did not succeed is not tried again; "" if it is, with fewer jobs."""
    if FULL.search(text):
        return f"the disk is full: {name}: {watch.summary()}"
    failed = watch.failed()
    refused = (watch.state / "refused").exists()
    if refused and (limits.over or not failed):
        share = f"share {limits.share} of " if limits.share and not limits.over else ""
        return f"unfinished: {share}{name}: {watch.summary()}"
    if not KILLED.search(text):
        return f"{name} did not compile, see above"
    if chosen.jobs > 1:
        return ""
    what = failed or next(reversed(FAILED.findall(text)), "")
    reason = f"{name}: out of memory with one job" + f", at {what}" * bool(what)
    peak = watch.peak
    return f"{reason}; the largest, {peak.what}, took {peak}" if peak.size else reason


def before_ninja(state: Path, path: str, more: str) -> dict[str, str]:
    """An environment in which order.py stands before Ninja, whose every call gets options `more`.

    `python -m build` hands Ninja no options. With "-k 0" Ninja goes on after units that another
    builder compiles. CMake is told of the program, too, for it looks for Ninja by itself.
    """
    program = state / "bin" / "ninja"
    program.parent.mkdir()
    here = Path(__file__).with_name("order.py")
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -B {here} "$@"\n')
    program.chmod(0o755)
    return {
        "PATH": f"{program.parent}:{path}",
        "CMAKE_MAKE_PROGRAM": str(program),
        "NINJA": str(shutil.which("ninja", path=path)),
        "NINJA_MORE": more,
    }


def run_build(tree: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run `python -m build` and show its output. Returns its exit status and its output."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    lines = []
    screen = Screen()
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            screen.show(line)
            lines.append(line)
    if process.returncode:
        screen.end()
    return process.returncode, "".join(lines)


def reach(name: str, storage: str, seconds: float = 10) -> None:
    """Exit with a message if a shared cache cannot be reached: ccache would go on without it.

    `storage` is what CCACHE_REMOTE_STORAGE says: URLs of caches, each with attributes after "|".
    """
    for url in storage.split():
        try:
            parts = urlsplit(url.partition("|")[0])
            host, port = parts.hostname, parts.port
        except ValueError:  # its words may be a part of the password
            fail(
                f"{name}: the shared compile cache does not answer: CCACHE_REMOTE_STORAGE has a "
                "URL that is not valid"
            )
        if not host:
            continue
        port = port or {"https": 443, "redis": 6379}.get(parts.scheme, 80)
        try:
            socket.create_connection((host, port), timeout=seconds).close()
        except (OSError, UnicodeError) as error:  # UnicodeError: such a host name cannot be
            fail(f"{name}: the shared compile cache does not answer: {host}:{port}: {error}")


def is_full(error: OSError) -> bool:
    """Whether an error means that the disk is full; copying a tree gives a list of errors."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT) or bool(FULL.search(str(error)))


def fail(message: str) -> NoReturn:
    """Exit with the message as one line; the host looks for its start, "build-wheel: "."""
    sys.exit(f"build-wheel: {' '.join(message.split())}")
