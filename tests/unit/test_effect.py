"""How a choice is made to hold: the loader's cache where it can be written, else the environment.

The rows of tests/decisions.py that unit tests lay out show the plain cases.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import effect
import pytest

from torch_images.inside.decision import Choice, Host, Library

OURS, OLD = "/opt/cuda-compat/13.0", "/opt/cuda-compat/12.8"
HOSTS, ELSEWHERE = "/usr/lib/x86_64-linux-gnu", "/usr/local/nvidia/lib64"
HOST = Host(driver="570.86.15", library=f"{HOSTS}/libcuda.so.1", nodes=True)
GKE = Host(driver="580.95.05", library=f"{ELSEWHERE}/libcuda.so.1", nodes=True)
TOOLKITS = Host(library=f"{HOSTS}/libcuda.so.1", toolkit=Library("/t", "", None))
TAKE = Choice("compat", works=True, reason="", folder=OURS)
LEAVE = Choice("host", works=True, reason="")
UNDO = Choice("host", works=True, reason="", folder=HOSTS)
TOOLKIT = Choice("toolkit", works=True, reason="")


def both(folder: str, path: str = "") -> dict[str, str]:
    """The variables that put a folder first."""
    return {"LD_LIBRARY_PATH": path or folder, "TRITON_LIBCUDA_PATH": folder}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A start: its choice, what an earlier one left, and what becomes of it.

    `conf` and `after` are the loader's configuration before and afterwards, "-" where the system
    has no folder for it. `cached`: whether the loader's cache has a libcuda, None without a cache.
    `answer`: of ldconfig. `runs`: how often it does.
    """

    choice: Choice
    host: Host = HOST
    environ: Mapping[str, str] = field(default_factory=dict)
    conf: str = ""
    cached: bool | None = None
    answer: bool | Exception = True
    how: str
    changes: Mapping[str, str] = field(default_factory=dict)
    after: str = ""
    runs: int = 1


FAILURES = (False, OSError("no such program"), subprocess.TimeoutExpired("ldconfig", 10))
CASES = {
    "root writes": Case(choice=TAKE, how=effect.CACHE, after=OURS),
    "root writes over another": Case(choice=TAKE, conf=OLD, how=effect.CACHE, after=OURS),
    # No configuration stays that the cache does not have: the next `ldconfig` would read it.
    **{
        f"ldconfig fails: {answer!r}": Case(
            choice=TAKE, conf=OLD, answer=answer, how=effect.ENVIRONMENT, changes=both(OURS)
        )
        for answer in FAILURES
    },
    "an earlier choice taken back": Case(choice=LEAVE, conf=OURS, how=effect.NOTHING),
    "an earlier choice stays in the cache": Case(
        choice=LEAVE, conf=OURS, answer=False, how=effect.ENVIRONMENT, changes=both(HOSTS)
    ),
    # A folder whose name merely starts alike is someone else's.
    "an earlier choice leaves the environment": Case(
        choice=LEAVE,
        environ=both(OLD, f"/a:{OLD}:/opt/cuda-compat-mine:/b"),
        how=effect.NOTHING,
        changes={"LD_LIBRARY_PATH": "/a:/opt/cuda-compat-mine:/b", "TRITON_LIBCUDA_PATH": ""},
        runs=0,
    ),
    "a new choice replaces an earlier one": Case(
        choice=TAKE,
        environ=both(OLD, f"{OLD}:/mine"),
        answer=False,
        how=effect.ENVIRONMENT,
        changes=both(OURS, f"{OURS}:/mine"),
    ),
    "the toolkit's choice is undone": Case(
        choice=UNDO, host=TOOLKITS, how=effect.CACHE, after=HOSTS
    ),
    "the toolkit's choice stays": Case(
        choice=TOOLKIT,
        host=Host(library=GKE.library, toolkit=TOOLKITS.toolkit),
        cached=False,
        how=effect.NOTHING,
        changes={"TRITON_LIBCUDA_PATH": ELSEWHERE},
    ),
    # A CDI specification whose hook does not renew the cache, seen on a GPU machine: Triton asks it.
    "Triton is told of what the cache lacks": Case(
        choice=LEAVE,
        cached=False,
        how=effect.NOTHING,
        changes={"TRITON_LIBCUDA_PATH": HOSTS},
    ),
    # GKE's device plugin mounts it there and names it nowhere. NVML is there, too.
    "GKE": Case(choice=LEAVE, host=GKE, cached=False, how=effect.CACHE, after=ELSEWHERE),
    "GKE, compat": Case(
        choice=TAKE, host=GKE, cached=False, how=effect.CACHE, after=f"{OURS}\n{ELSEWHERE}"
    ),
    "GKE, not root": Case(
        choice=TAKE,
        host=GKE,
        environ={"LD_LIBRARY_PATH": "/mine"},
        conf="-",
        cached=False,
        how=effect.ENVIRONMENT,
        changes=both(OURS, f"{OURS}:{ELSEWHERE}:/mine"),
        runs=0,
    ),
}


def laid_out(root: Path, case: Case) -> Path:
    """The tree of a case; its loader's configuration."""
    conf, cache = root / effect.CONF, root / effect.LOADER_CACHE
    cache.parent.mkdir()
    if case.conf != "-":
        conf.parent.mkdir()
    if case.conf not in ("", "-"):
        conf.write_text(f"{case.conf}\n")
    if case.cached is not None:
        cache.write_bytes(b"libc.so.6\0" + b"libcuda.so.1\0" * case.cached)
    return conf


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_apply(tmp_path: Path, case: Case) -> None:
    conf = laid_out(tmp_path, case)
    runs: list[int] = []

    def ldconfig() -> bool:
        runs.append(1)
        if isinstance(case.answer, Exception):
            raise case.answer
        return case.answer

    for _ in range(2 if case.how == effect.CACHE else 1):  # a start after it does the same
        result = effect.apply(
            case.choice, case.host, tmp_path, case.environ, "/opt/cuda-compat", ldconfig=ldconfig
        )
        assert result == (case.how, case.changes)
        assert (conf.read_text().strip() if conf.exists() else "") == case.after
    assert len(runs) == case.runs * (2 if case.how == effect.CACHE else 1)


def apply(root: Path, choice: Choice, ldconfig: Callable[[], bool], **environ: str) -> object:
    return effect.apply(choice, HOST, root, environ, "/opt/cuda-compat", ldconfig=ldconfig)


def test_apply_without_permission_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    laid_out(tmp_path, Case(choice=TAKE, conf=OURS, how=""))
    for name in ("write_text", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    assert apply(tmp_path, TAKE, lambda: False) == (effect.CACHE, {})
    other = Choice("compat", works=True, reason="", folder=OLD)
    result = apply(tmp_path, other, lambda: False, LD_LIBRARY_PATH="/mine")
    assert result == (effect.ENVIRONMENT, both(OLD, f"{OLD}:/mine"))
    result = apply(tmp_path, LEAVE, lambda: False, LD_LIBRARY_PATH="/mine")
    assert result == (effect.ENVIRONMENT, both(HOSTS, f"{HOSTS}:/mine"))


def test_apply_writes_through_no_link(tmp_path: Path) -> None:
    """Of another image's layer, say, to a file that is not there. A pipe would be waited for."""
    conf = laid_out(tmp_path, Case(choice=TAKE, how=""))
    conf.symlink_to(tmp_path / "elsewhere")
    assert apply(tmp_path, TAKE, lambda: True) == (effect.ENVIRONMENT, both(OURS))
    assert not (tmp_path / "elsewhere").exists()


def test_apply_puts_the_choice_before_ld_library_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LD_LIBRARY_PATH goes before the cache. An empty part of it is not the working directory."""
    laid_out(tmp_path, Case(choice=TAKE, how=""))
    folder = tmp_path / "named"
    folder.mkdir()
    (folder / "libcuda.so.1").touch()
    monkeypatch.chdir(folder)
    for path, changes in (
        (f"/none::{folder}", {"LD_LIBRARY_PATH": f"{OURS}:/none::{folder}"}),
        ("/none:", {}),
    ):
        result = apply(tmp_path, TAKE, lambda: True, LD_LIBRARY_PATH=path)
        assert result == (effect.CACHE, changes)


def test_ldconfig_prints_nothing_and_gets_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its output must not reach the shell that evaluates what a start prints. It is a stand-in."""
    program = tmp_path / "ldconfig"
    program.write_text(f"#!/bin/sh\nenv > {tmp_path}/env\necho out\necho err >&2\nexit 1\n")
    program.chmod(0o755)
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda _, **more: real([str(program)], **more))
    monkeypatch.setenv("LD_PRELOAD_OF_A_TEST", "x")
    assert not effect.run_ldconfig()
    assert capfd.readouterr() == ("", "")
    assert "LD_PRELOAD_OF_A_TEST" not in (tmp_path / "env").read_text()
