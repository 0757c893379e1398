"""What the start and the shells give a process with torch."""

from __future__ import annotations

import json
import os
import shlex
import subprocess

PRINT_SETTINGS = """
import json, torch
matmul = torch.backends.cuda.matmul
print(json.dumps({
    "precision": torch.get_float32_matmul_precision(),
    "allowed": matmul.allow_tf32,
    "matmul": getattr(matmul, "fp32_precision", "none"),
    "convolutions": torch.backends.cudnn.allow_tf32,
    "expandable": torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"],
}))
"""


# Ways to start Python; the last is that of `docker exec C python`.
STARTS = (
    ("torch-entrypoint", "python"),
    ("bash", "-c", 'python "$@"', "bash"),
    ("env", "-i", "/opt/venv/bin/python"),
    ("python",),
)


def settings(start: tuple[str, ...], **environ: str) -> dict[str, object]:
    done = subprocess.run(
        [*start, "-c", PRINT_SETTINGS],
        env={**os.environ, "TORCH_IMAGE_STARTED": "", "TORCH_IMAGE_QUIET": "1", **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_torch_has_the_same_settings_whatever_started_python() -> None:
    """Under `docker exec C python`, products were exact and slow that were fast under `docker run`."""
    first, *others = [settings(start) for start in STARTS]
    assert first["precision"] == "high"
    assert others == [first] * len(others)


def test_without_the_profile_torch_has_its_own_settings() -> None:
    """tests/container/test_start.py has those with it."""
    assert settings(("python",), TORCH_IMAGE_PROFILE="Off") == {
        "precision": "highest",
        "allowed": False,
        "matmul": "none",
        "convolutions": True,
        "expandable": False,
    }


def test_any_bash_of_sshd_finds_the_environment() -> None:
    """A platform's sshd starts `bash -c python` with its own environment, and no login shell.

    bash takes itself for a child of sshd by SSH_CLIENT, and then reads /etc/bash.bashrc.
    """
    show = (
        "import json, os, sys, torch; print(json.dumps([sys.prefix, os.environ['PIP_CONSTRAINT']]))"
    )
    done = subprocess.run(
        ["/bin/bash", "-c", f"python -c {shlex.quote(show)}"],
        env={"HOME": "/root", "PATH": "/usr/bin:/bin", "SSH_CLIENT": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    # torch's oneDNN says so in an emulator of an Arm processor, which lacks that register.
    said = [line for line in done.stderr.splitlines() if "MIDR_EL1" not in line]
    assert (done.returncode, said) == (0, [])
    assert json.loads(done.stdout) == ["/opt/venv", "/usr/share/torch-images/constraints.txt"]
