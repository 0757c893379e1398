"""README.md: its length, its order, and those of its commands that need no engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import readme
from tests.unit.conftest import ROOT
from tests.unit.fakes import invoke
from torch_images.config.choose import choose_id
from torch_images.config.types import Config
from torch_images.locks.image_lock import compat_versions
from torch_images.pick.gpus import find_gpu
from torch_images.pick.pick import judge

CHOICES = re.findall(
    r"^\| (.+?) \| (\d.+?) \| `./inv (build .+?)` \| `(.+?)` \|$", readme.README, re.MULTILINE
)
RUN = [c for c in readme.commands() if c not in readme.NOT_RUN and not readme.needs_engine(c)]


def test_commands_include_those_that_are_not_run() -> None:
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


@pytest.mark.parametrize(("gpus", "drivers", "build", "image"), CHOICES)
def test_a_choice_can_be_built_and_runs_on_its_drivers(
    real: Config, gpus: str, drivers: str, build: str, image: str
) -> None:
    [plan] = json.loads(invoke(ROOT, *shlex.split(build), "--dry-run", "--json").stdout)["images"]
    assert image in plan["tags"]
    spec = choose_id(real, plan["id"])
    compat = compat_versions(real, ROOT / "locks", spec.platform)[spec.cuda.version]
    for gpu in gpus.split(", "):
        model = find_gpu(real, f"{gpu}90" if gpu == "RTX 50" else gpu)
        for branch in re.findall(r"\d+", drivers):
            known = compat if spec.compat else ""
            assert judge(spec.cuda, model, f"{branch}.999", compat=known).works, branch


def test_choices_cover_old_and_new_drivers() -> None:
    assert len(CHOICES) >= 5
