"""Shells that the entrypoint did not start, and login shells: what they read, with the start replaced."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.locks.constraints import constraints, refusals
from torch_images.locks.image_lock import image_lock

HOME = "/usr/local/lib/torch-images"
IMAGE = {"PATH": "/opt/venv/bin:/usr/bin:/bin", "VIRTUAL_ENV": "/opt/venv"}
# What /etc/profile makes of it before it reads our file.
LOST = {"PATH": "/usr/bin:/bin"}
# It only counts how often it ran.
STANDS_IN = """
import os
print("export TORCH_IMAGE_STARTED=1 STARTS=" + str(int(os.environ.get("STARTS", 0)) + 1))
"""
CONSTRAINTS = "/usr/share/torch-images/constraints.txt"
SHOW = 'echo "$PATH ${STARTS-0} ${PIP_CONSTRAINT-none}"'


@pytest.fixture
def hook(root: Path, tmp_path: Path) -> Path:
    """The files that shells read, below `tmp_path`."""
    source = root / "scripts/image"
    text = (source / "runtime/shell.sh").read_text()
    (tmp_path / "shell.sh").write_text(
        text.replace(HOME, str(tmp_path)).replace(CONSTRAINTS, f"{tmp_path}/constraints.txt")
    )
    (tmp_path / "start.py").write_text(STANDS_IN)
    installs = (source / "finish/install-files").read_text()
    [text] = re.findall(
        r"^cat >/etc/profile\.d/torch-images\.sh <<END\n(.+?)^END$",
        installs,
        re.MULTILINE | re.DOTALL,
    )
    text = text.replace("$runtime", str(tmp_path)).replace("\\$", "$")
    (tmp_path / "profile.d.sh").write_text(text)
    return tmp_path


def shown(shell: str, file: Path, environ: dict[str, str]) -> list[str]:
    """PATH, the number of starts, and pip's constraints in a shell that has read a file."""
    command = [f"/bin/{shell}", "-euc", f". {file}; {SHOW}"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_another_shell_starts_once_and_keeps_its_path(hook: Path, shell: str) -> None:
    file = hook / "shell.sh"
    assert shown(shell, file, IMAGE) == [IMAGE["PATH"], "1", "none"]
    started = {"TORCH_IMAGE_STARTED": "1", "STARTS": "1"}
    for environ in (IMAGE, LOST):  # a script may want a PATH of its own
        result = shown(shell, file, {**environ, **started})
        assert result == [environ["PATH"], "1", "none"]


@pytest.mark.parametrize("started", ["", "1"])
def test_a_login_starts_once_more_only_if_it_lost_its_path(hook: Path, started: str) -> None:
    """An interactive one reads /etc/bash.bashrc first, and has started then."""
    file = hook / "profile.d.sh"
    environ = {"TORCH_IMAGE_STARTED": started, "STARTS": started or "0"}
    assert shown("bash", file, {**LOST, **environ})[1] == str(int(started or 0) + 1)
    assert shown("bash", file, {**IMAGE, **environ})[1] == "1"


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize(
    "axes", [{}, {"cuda": "12.8"}, {"source": "fork", "cuda": "13.0"}], ids=str
)
def test_a_shell_that_lost_the_images_variables_refuses_what_the_image_refuses(
    hook: Path, config: Config, root: Path, shell: str, axes: dict[str, str]
) -> None:
    """Poetry would fetch gigabytes of CUDA libraries before it refuses torch."""
    spec = choose(config, **axes)
    lock = image_lock(config, spec, root / "locks")
    (hook / "constraints.txt").write_text(constraints(config, spec, lock))
    variables = " ".join(f"${{{name}}}" for name in sorted(refusals(lock)))
    command = [f"/bin/{shell}", "-euc", f'. {hook}/shell.sh; echo "{variables}"']
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=True)
    values = [sorted(value.split(",")) for value in done.stdout.split()]
    assert values == [sorted(value.split(",")) for _, value in sorted(refusals(lock).items())]
    assert done.stderr == ""


def test_a_start_that_fails_leaves_the_shell_quiet(hook: Path) -> None:
    """scp, rsync and editors break on a line that a shell prints."""
    for fault in ("1 / 0", "raise SystemExit(3)", "def"):
        (hook / "start.py").write_text(fault)
        assert shown("bash", hook / "shell.sh", LOST)[1] == "0"
