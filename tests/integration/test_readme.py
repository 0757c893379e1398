"""The commands of README.md that need an engine, in their order."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests import readme
from tests.integration.support import ROOT, Built, invoke

COMMANDS = [c for c in readme.commands() if c not in readme.NOT_RUN and readme.needs_engine(c)]
CODES = {"cuda-doctor": {0, 1}}  # 1 where there is no GPU
CHECK = "./inv lock --check"  # a test of its own, below
# A slow test of test_reproduce.py builds this again from nothing.
REPRODUCE = "./inv reproduce torch-cu130:sm120"


ELSEWHERE = (CHECK, REPRODUCE, *readme.own_commands())


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in ELSEWHERE])
def test_a_command_runs(command: str, narrow: Built) -> None:
    """For the architecture whose image the tests build anyway, and without a GPU."""
    assert "torch-cu130:sm90" in narrow.tags
    own = command.replace("sm120", "sm90").replace("--arch 12.0", "--arch 9.0")
    own = own.replace("--gpus all ", "").replace("$PWD", str(ROOT))
    words = shlex.split(own)
    if words[0] == "./inv":
        done = invoke(*words[1:])
    else:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    codes = next((codes for part, codes in CODES.items() if part in command), {0})
    assert done.returncode in codes, done.stderr
    assert not re.search(r"^Traceback", done.stderr, re.MULTILINE)


def test_commands_include_those_of_other_tests() -> None:
    assert {*ELSEWHERE} <= {*COMMANDS}


@pytest.mark.slow  # it asks for every locked file
def test_check_covers_every_lock(locks: Path) -> None:
    """Exit code 3 for an input that is gone; 6 where a server does not answer or has an old index."""
    done = invoke(*shlex.split(CHECK)[1:])
    checked = set(re.findall(r"^(\S+): \d", done.stdout, re.MULTILINE))
    silent = set(
        re.findall(r"^(?!error)(\S+): .* (?:could not be|is too old) ", done.stderr, re.MULTILINE)
    )
    facts = ("release-", "host")  # of what a wheel lock names, and the programs of ./inv
    names = {path.stem for path in locks.iterdir() if not path.name.startswith(facts)}
    assert names <= checked | silent
    gone = re.search(r"^  (vanished|altered) ", done.stdout, re.MULTILINE)
    assert done.returncode == (3 if gone else 6 if silent else 0), done.stderr
