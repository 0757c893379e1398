"""The commands of README.md that need an engine, in their order."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest

from tests import readme
from tests.integration.support import ROOT, Built, invoke

COMMANDS = [c for c in readme.commands() if c not in readme.NOT_RUN and readme.needs_engine(c)]
# What these say where there is no GPU, or no newer input; 1 is for "something is newer".
CODES = {"cuda-doctor": {0, 1}, "lock --check": {0, 1, 3, 6}}
# test_reproduce.py builds this again from nothing, which takes minutes.
REPRODUCE = "./inv reproduce torch-cu130:sm120"


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != REPRODUCE])
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


def test_the_command_that_another_test_runs_is_there() -> None:
    assert REPRODUCE in COMMANDS
