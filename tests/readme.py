"""The commands of README.md, and which tests run them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
# Those that no test can run: the hosts of the tests have no GPU, and it would start itself.
NOT_RUN = (
    "nvidia-smi --query-gpu=name,driver_version --format=csv",
    "./inv test",
)


# The folder of the example of a user's own image: tests/integration/test_own.py runs its commands.
OWN = "docs/examples/own/transformers"


def commands() -> tuple[str, ...]:
    """The lines of all console blocks, in their order, without comments."""
    blocks = re.findall(r"^```console\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return tuple(re.sub(r" +# .*", "", line) for line in lines)


def own_commands() -> tuple[str, ...]:
    """Those for a user's own image."""
    first = next(at for at, command in enumerate(commands()) if OWN in command)
    return commands()[first : first + 3]


def needs_engine(command: str) -> bool:
    """Whether a command needs an engine, or the network; tests/integration runs those."""
    if command.startswith("docker "):
        return True
    engine = ("build", "lock", "push", "reproduce", "sbom", "tag")
    verbs = tuple(f"./inv {v}" for v in (*engine, f"--project {OWN} "))
    return command.startswith(verbs) and "--help" not in command
