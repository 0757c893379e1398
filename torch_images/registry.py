"""What a registry has under a name, asked through buildx, which uses Docker's own credentials."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from torch_images.errors import CommandError, NetworkError, UsageError
from torch_images.runner import Runner
from torch_images.tagging import Holder

T = TypeVar("T")

# What no second attempt mends. Everything else may: 5xx, 429, connections that break or time out.
_REFUSED = re.compile(
    r":\s(?:401|403)\b|unauthorized|denied|forbidden|no basic auth credentials"
    r"|authentication required|insufficient_scope",
    re.IGNORECASE,
)
_PERMANENT = re.compile(
    r":\s(?:400|404|405|413)\b|no such host|x509|server gave HTTP response to HTTPS client"
    r"|does not exist|invalid reference|unsupported",
    re.IGNORECASE,
)
_LONGEST = 60.0  # seconds between two attempts


def holder(reference: str, run: Runner) -> Holder | None:
    """The image that has a name in its registry; None for none.

    Raises UsageError where the registry refuses, NetworkError where it cannot be asked.
    """
    found = _inspect(reference, run)
    if found is None:
        return None
    image = found.get("image") or {}
    labels = (image.get("config") or {}).get("Labels") or {}
    return Holder.of(str(found["manifest"]["digest"]), str(image.get("created", "")), labels)


def contents(reference: str, run: Runner) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The manifest of a published image, and its history. Raises as `holder` does."""
    found = _inspect(reference, run)
    if found is None:
        raise UsageError(f"{reference} is not in its registry", "push it first")
    command = ["docker", "buildx", "imagetools", "inspect", "--raw", reference]
    try:
        return json.loads(run.run(command).output), found["image"]["history"]
    except CommandError as error:
        raise problem(reference, error.output) from None


def problem(reference: str, text: str) -> UsageError | NetworkError:
    """The user's view of what a registry, or the way to it, said."""
    said = " ".join(text.removeprefix("ERROR:").split())[-300:]
    host = reference.partition("/")[0]
    if "error getting credentials" in said:
        said = said.partition(", out:")[0]  # what follows is the helper's own, and may be anything
        return UsageError(
            f"{host}: {said}", "see credsStore and credHelpers in Docker's config.json"
        )
    if _REFUSED.search(said):
        return UsageError(
            f"{host} refuses: {said}", f"`docker login {host}`, or ask for the right to write there"
        )
    if _PERMANENT.search(said):
        return UsageError(f"{host} cannot take {reference}: {said}", "check its name")
    return NetworkError(f"{host} could not be reached: {said}", "run the same again later")


def persist(
    attempt: Callable[[], T],
    *,
    retries: int,
    say: Callable[[str], None],
    progress: Callable[[], int] = lambda: 0,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Try until it works: again after 1, 2, 4 ... seconds where a NetworkError says that it may.

    `retries` is how often in a row it may fail without any `progress`, a number that only grows.
    """
    failed, reached = 0, progress()
    while True:
        try:
            return attempt()
        except NetworkError as error:
            failed = 1 if progress() > reached else failed + 1
            reached = progress()
            if failed > retries:
                raise
            wait = min(2.0 ** (failed - 1), _LONGEST)
            say(f"{error.message}; again in {wait:.0f} s ({failed} of {retries})")
            sleep(wait)


def _inspect(reference: str, run: Runner) -> dict[str, Any] | None:
    command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{json .}}", reference]
    try:
        found: dict[str, Any] = json.loads(run.run(command).output)
    except CommandError as error:
        if re.search(r"not found\s*$", error.output):
            return None
        raise problem(reference, error.output) from None
    return found
