"""What a registry has under a name, asked through buildx, which uses Docker's own credentials."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch_images.build import labels
from torch_images.errors import CommandError, NetworkError, UsageError, shown
from torch_images.host.runner import Runner
from torch_images.jsondoc import MalformedError, member, optional, parse
from torch_images.locks.grammar import is_version
from torch_images.publish.tag_rules import TagTarget

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
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST = 60.0  # seconds between two attempts


def lookup(reference: str, run: Runner) -> TagTarget | None:
    """The image that has a name in its registry; None for none.

    Raises UsageError where the registry refuses, NetworkError where it cannot be asked.
    """
    answer = _inspect(reference, run)
    if answer is None:
        return None
    with _understood(reference):
        digest = member(answer, "manifest", "digest", kind=str)
        if not _DIGEST.fullmatch(digest):
            raise MalformedError(f"{shown(digest)} is not a digest")
        image = optional(answer, "image", kind=dict)
        held = optional(optional(image, "config", kind=dict), "Labels", kind=dict)
        created = optional(image, "created", kind=str)
        said = labels.read({name: member(held, name, kind=str) for name in held})
        if said.torch and not is_version(said.torch):
            raise MalformedError(f"its torch is {shown(said.torch)}, which is no version")
    return TagTarget.of(digest, created, said)


def contents(reference: str, run: Runner) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The manifest of a published image, and its history. Raises as `lookup` does."""
    described = _inspect(reference, run)
    if described is None:
        raise UsageError(f"{reference} is not in its registry", "push it first")
    command = ["docker", "buildx", "imagetools", "inspect", "--raw", reference]
    try:
        answer = run.run(command).output
    except CommandError as error:
        raise problem(reference, error.output) from None
    with _understood(reference):
        manifest = member(parse(answer), kind=dict)
        member(manifest, "config", "digest", kind=str)
        for number in range(len(member(manifest, "layers", kind=list))):
            member(manifest, "layers", number, "digest", kind=str)
            member(manifest, "layers", number, "size", kind=int)
        history = member(described, "image", "history", kind=list)
        return manifest, [member(history, number, kind=dict) for number in range(len(history))]


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


def retry(
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
        answer = run.run(command).output
    except CommandError as error:
        if re.search(r"not found\s*$", error.output):
            return None
        raise problem(reference, error.output) from None
    with _understood(reference):
        return member(parse(answer), kind=dict)


@contextlib.contextmanager
def _understood(reference: str) -> Iterator[None]:
    """Say whose answer is none that buildx gives."""
    try:
        yield
    except MalformedError as error:
        raise NetworkError(
            f"what was said of {reference} cannot be understood: {error}",
            "see `docker buildx imagetools inspect`",
        ) from None
