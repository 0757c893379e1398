"""What integration tests share beside fixtures."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SELECT = "cu*-sm120-wheel-bookworm-runtime"


@dataclass(frozen=True)
class Built:
    """One image as `invoke build --json` reported it."""

    id: str
    digest: str
    tags: tuple[str, ...]
    observed: dict[str, str]
    checks: dict[str, int]


def invoke(
    *words: str, cwd: Path = ROOT, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a verb as a user does, with its output captured.

    In a copy of the project it reads the locks of the copy, unless `env` says otherwise.
    """
    own = {"TORCH_IMAGES_LOCKS": str(cwd / "locks")} if cwd != ROOT else {}
    return subprocess.run(
        [sys.executable, "-m", "invoke", *words],
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1", **own, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def facts(**values: Any) -> dict[str, Any]:
    """Options for a container without network, as most of these tests want it."""
    return {"network_mode": "none", **values}
