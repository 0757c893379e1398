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


def commands() -> tuple[str, ...]:
    """The lines of all console blocks, in their order, without comments."""
    blocks = re.findall(r"^```console\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return tuple(re.sub(r" +# .*", "", line) for line in lines)


def needs_engine(command: str) -> bool:
    """Whether a command needs an engine, or the network; tests/integration runs those."""
    if command.startswith("docker "):
        return True
    engine = ("build", "lock", "push", "reproduce", "sbom", "tag")
    return command.startswith(tuple(f"./inv {v}" for v in engine)) and "--help" not in command
