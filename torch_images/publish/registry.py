"""What a registry has under a name, asked through buildx, which uses Docker's own credentials."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
# A name with a host before it, as Docker reads one (https://github.com/distribution/reference).
_HOST = re.compile(r"localhost/|[^/]*[.:][^/]*/")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"[a-z0-9]+(?:[.-]+[a-z0-9]+)*(?::[0-9]{{1,5}})?(?:/{_PART})+"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_COMPAT = re.compile(r"(?:[0-9]{3}\.[0-9]{1,3}(?:\.[0-9]{1,2})?-[0-9a-z.]{1,20})?")
_LARGEST = 10**12  # bytes of a layer
_LONGEST = 60.0  # seconds between two attempts


@dataclass(frozen=True, kw_only=True)
class Published:
    """An image in a registry: its manifest's digest, what its labels say, and bytes to pull."""

    digest: str
    labels: labels.ImageLabels
    size: int


def has_host(image: str) -> bool:
    """Whether a name is one in a registry: its first part is a host, as in "ghcr.io/me/x:y"."""
    return _HOST.match(image) is not None


def lookup(reference: str, run: Runner) -> TagTarget | None:
    """The image that has a name in its registry; None for none.

    Raises UsageError where the registry refuses, NetworkError where it cannot be asked.
    """
    answer = _inspect(reference, run)
    if answer is None:
        return None
    with _understood(reference):
        digest, said = _identity(answer)
        created = optional(optional(answer, "image", kind=dict), "created", kind=str)
    return TagTarget.of(digest, created, said)


def published(reference: str, run: Runner) -> Published:
    """What a registry has under a name: labels that can be read, and sizes that can be true.

    Raises UsageError for a text that is no reference, and as `contents` does.
    """
    if not _REFERENCE.fullmatch(reference):
        raise UsageError(
            f"'{shown(re.sub('.*@', '***@', reference))}' is no name of a published image",
            "give one such as ghcr.io/me/torch-cu130:sm120, or with @sha256:...",
        )
    answer, manifest = _described(reference, run)
    with _understood(reference):
        digest, said = _identity(answer)
        if not _COMPAT.fullmatch(said.compat):
            raise MalformedError(f"its compat library is {shown(said.compat)}, which is no version")
        sizes = [layer["size"] for layer in manifest["layers"]]
        if not all(0 <= size <= _LARGEST for size in sizes):
            raise MalformedError("a layer has a size that none can have")
    return Published(digest=digest, labels=said, size=sum(sizes))


def contents(reference: str, run: Runner) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The manifest of a published image, and its history. Raises as `lookup` does."""
    answer, manifest = _described(reference, run)
    with _understood(reference):
        history = member(answer, "image", "history", kind=list)
        return manifest, [member(history, number, kind=dict) for number in range(len(history))]


def _described(reference: str, run: Runner) -> tuple[dict[str, Any], dict[str, Any]]:
    """What buildx says of a published image, and its manifest with digests and sizes."""
    answer = _inspect(reference, run)
    if answer is None:
        raise UsageError(f"{reference} is not in its registry", "push it first")
    command = ["docker", "buildx", "imagetools", "inspect", "--raw", reference]
    try:
        raw = run.run(command).output
    except CommandError as error:
        raise problem(reference, error.output) from None
    with _understood(reference):
        manifest = member(parse(raw), kind=dict)
        member(manifest, "config", "digest", kind=str)
        for number in range(len(member(manifest, "layers", kind=list))):
            member(manifest, "layers", number, "digest", kind=str)
            member(manifest, "layers", number, "size", kind=int)
    return answer, manifest


def _identity(answer: dict[str, Any]) -> tuple[str, labels.ImageLabels]:
    """The digest and the labels in what buildx says. Raises MalformedError."""
    digest = member(answer, "manifest", "digest", kind=str)
    if not _DIGEST.fullmatch(digest):
        raise MalformedError(f"{shown(digest)} is not a digest")
    image = optional(answer, "image", kind=dict)
    held = optional(optional(image, "config", kind=dict), "Labels", kind=dict)
    said = labels.read({name: member(held, name, kind=str) for name in held})
    if said.torch and not is_version(said.torch):
        raise MalformedError(f"its torch is {shown(said.torch)}, which is no version")
    return digest, said


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
