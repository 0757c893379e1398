"""README.md: its length, its order, and those of its commands that need no engine."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import readme
from tests.unit.conftest import ROOT

RUN = [c for c in readme.commands() if c not in readme.NOT_RUN and not readme.needs_engine(c)]


def test_every_command_that_is_not_run_is_there() -> None:
    assert set(readme.NOT_RUN) < set(readme.commands())
    assert len(RUN) >= 5


@pytest.mark.parametrize("command", RUN)
def test_a_command_runs(command: str, tmp_path: Path) -> None:
    """As it stands, but for ./inv, which would make an environment, and the server of the clone."""
    inv = shlex.join([sys.executable, "-m", "torch_images"])
    cloned = command.startswith("git clone ")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{ROOT}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/torch-images/torch-images",
    }
    done = subprocess.run(
        ["bash", "-ec", f"{re.sub(r'^[.]/inv', inv, command)} && pwd"],
        cwd=tmp_path if cloned else ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if cloned:
        assert (tmp_path / "torch-images" / "inv").is_file()
        assert done.stdout.strip() == str(tmp_path / "torch-images")
