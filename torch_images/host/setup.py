"""Setting up a missing engine with scripts/setup-engine.

./inv allows it, with or without a question; plain `invoke` changes nothing outside the project.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from torch_images.errors import EngineError, RightsError
from torch_images.host.connection import connect, current
from torch_images.host.emulation import check_platform, emulated
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.platforms import Platform, native

# apt checks Debian's signatures with it; Ubuntu lacks it.
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def ready_engine(
    root: Path,
    run: Runner,
    *,
    allowed: str,
    bootstraps: bool = False,
    signed: bool = False,
    platforms: Sequence[Platform] = (),
) -> Engine:
    """The engine, set up first if needed and allowed.

    `allowed` is "yes", "ask", or "" for no. With `bootstraps`, it includes the programs that make
    Debian bases, if `signed` with Debian's keys. It also includes emulators of those `platforms`
    that are not this machine's.
    Raises EngineError, also for a Docker configuration that names no engine: this sets up no other
    engine in its place. Raises RightsError if the user may not use the engine's socket.
    """
    foreign = tuple(each for each in platforms if each != native())
    engine = (
        _complete_engine(run, foreign, bootstraps=bootstraps, signed=signed) if allowed else None
    )
    if allowed and not engine:
        words = ["--yes"] if allowed == "yes" else []
        for each in foreign:
            words += ["--platform", each.name]
        if run.interact([str(root / "scripts" / "setup-engine"), *words]):
            what = "".join(f", or no emulator of {each}," for each in foreign)
            raise EngineError(f"no Docker Engine{what} was set up", "the lines above say why")
    engine = engine or connect(run)
    for each in foreign:
        check_platform(each)
    return engine


def _complete_engine(
    run: Runner, foreign: Sequence[Platform], *, bootstraps: bool, signed: bool
) -> Engine | None:
    """The engine; None if it, an emulator or a program to bootstrap with is missing."""
    if not shutil.which("docker"):
        return None
    endpoint = current(run)
    try:
        engine = connect(run, endpoint)
    except RightsError:
        raise  # another engine would not help
    except EngineError:
        return None
    ready = all(map(emulated, foreign)) and (
        not bootstraps or can_bootstrap(foreign, signed=signed)
    )
    return engine if ready else None


def can_bootstrap(platforms: Sequence[Platform] = (), *, signed: bool = False) -> bool:
    """Whether the programs that make Debian bases are installed; if `signed`, with Debian's keys.

    Only users other than root need newuidmap. `platforms` other than this machine's need arch-test:
    mmdebstrap asks it whether their programs run here.
    """
    tools = ["mmdebstrap"] if os.geteuid() == 0 else ["mmdebstrap", "newuidmap"]
    if any(each != native() for each in platforms):
        tools.append("arch-test")
    return all(shutil.which(tool) for tool in tools) and (not signed or KEYRING.exists())
