"""An engine where there is none: the way to scripts/setup-engine.

./inv allows it, and says whether to ask first; plain `invoke` changes nothing outside the project.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from torch_images.errors import EngineError
from torch_images.host.connection import connect, current
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner


def ready_engine(root: Path, run: Runner, *, allowed: str, bootstraps: bool = False) -> Engine:
    """The engine, set up first where that is needed and allowed.

    `allowed` is "yes", "ask", or "" for no. With `bootstraps`, the programs that make bookworm
    bases count as part of it. Raises EngineError, also for a Docker configuration that names no
    engine: nothing is set up in place of the one that was meant.
    """
    if shutil.which("docker") or not allowed:
        current(run)
    try:
        engine = connect(run)
        if not allowed or not bootstraps or can_bootstrap():
            return engine
    except EngineError:
        if not allowed:
            raise
    yes = ["--yes"] if allowed == "yes" else []
    if run.interact([str(root / "scripts" / "setup-engine"), *yes]):
        raise EngineError("no Docker Engine was set up", "the lines above say why") from None
    return connect(run)


def can_bootstrap() -> bool:
    """Whether the programs that make bookworm bases are there; newuidmap is for all but root."""
    tools = ["mmdebstrap"] if os.geteuid() == 0 else ["mmdebstrap", "newuidmap"]
    return all(shutil.which(tool) for tool in tools)
