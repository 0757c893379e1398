"""Facts about `docker buildx` and its builders."""

from __future__ import annotations

import re
import shutil

from torch_images.errors import EngineError, TorchImagesError
from torch_images.host.runner import Runner


def check_buildx(run: Runner) -> None:
    """Raise EngineError unless the docker CLI has buildx."""
    if not shutil.which("docker") or run.run(["docker", "buildx", "version"], check=False).code:
        raise EngineError(
            "docker buildx is not installed",
            "install docker-buildx (Debian, Ubuntu) or docker-buildx-plugin (Docker's packages)",
        )


def is_remote(builder: str, run: Runner) -> bool:
    """Whether a buildx builder is not the engine itself, so that images must be loaded from it.

    Raises EngineError for a builder that is unknown or does not answer, and if buildx is missing.
    """
    command = ["docker", "buildx", "inspect", *([builder] if builder else [])]
    try:
        described = run.run(command).output
    except TorchImagesError:  # also if docker is missing
        check_buildx(run)
        raise EngineError(f"no builder '{builder}'", "see `docker buildx ls`") from None
    facts = dict(re.findall(r"^(Driver|Endpoint|Error):[ \t]*(\S.*)$", described, re.MULTILINE))
    if "Error" in facts:
        raise EngineError(f"builder '{builder or 'default'}' does not answer: {facts['Error']}")
    if facts.get("Driver") != "docker":
        return True
    return facts.get("Endpoint") != run.run(["docker", "context", "show"]).output.strip()
