"""The words of an engine or registry that refuses -> the error that the user sees. Pure."""

from __future__ import annotations

import re

from torch_images.errors import DiskError, EngineError, NetworkError, UsageError


def load_refusal(reason: str) -> EngineError | DiskError:
    """The error for an engine that does not load an image."""
    if "no space left" in reason:
        return DiskError("the engine's disk is full", "free some with `docker system prune`")
    return EngineError(f"the engine did not take the layers: {reason}", "build again")


def registry_refusal(image: str, text: str, *, missing: bool = False) -> NetworkError | UsageError:
    """The error for a registry that gives no image.

    UsageError where `missing`, the engine's own answer that there is none, or where the text says
    so or refuses access. NetworkError otherwise.
    """
    if missing or re.search(r"not found|manifest unknown|denied|no such (?!host)", text):
        return UsageError(f"no registry gives {image}: {text}", "check its name, or `docker login`")
    return NetworkError(
        f"the registry of {image} could not be asked: {text}", "check network, proxy and login"
    )
