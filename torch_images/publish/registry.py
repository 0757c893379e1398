"""Queries to a registry through buildx, which uses Docker's own credentials.

A name may refer to one manifest, or to an index with a manifest for each platform.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from torch_images.build import labels
from torch_images.errors import CommandError, NetworkError, UsageError, shown
from torch_images.host.runner import Runner
from torch_images.host.workspace import home
from torch_images.jsondoc import MalformedError, member, optional, parse
from torch_images.platforms import AMD64
from torch_images.publish.index import Index
from torch_images.publish.registry_answers import (
    at,
    digest_of,
    entries_of,
    identity_of,
    is_index,
    manifest_of,
    platform_of,
)
from torch_images.publish.tag_rules import TagTarget

T = TypeVar("T")

# Errors that no second attempt fixes. Others may pass: 5xx, 429, broken connections, timeouts.
_REFUSED = re.compile(
    r":\s(?:401|403)\b|unauthorized|denied|forbidden|no basic auth credentials"
    r"|authentication required|insufficient_scope",
    re.IGNORECASE,
)
_PERMANENT = re.compile(
    r":\s(?:400|404|405|413)\b|x509|server gave HTTP response to HTTPS client"
    r"|does not exist|invalid reference|unsupported",
    re.IGNORECASE,
)
# A name that begins with a host, by Docker's rules (https://github.com/distribution/reference).
_HOST = re.compile(r"localhost/|[^/]*[.:][^/]*/")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"[a-z0-9]+(?:[.-]+[a-z0-9]+)*(?::[0-9]{{1,5}})?(?:/{_PART})+"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_COMPAT = re.compile(r"(?:[0-9]{3}\.[0-9]{1,3}(?:\.[0-9]{1,2})?-[0-9a-z.]{1,20})?")
# The message of a buildx that lacks an option; host/ requires no oldest version.
_LACKING = re.compile(r"unknown flag: (\S+)")
_LARGEST = 10**12  # bytes of a layer
_LONGEST = 60.0  # seconds between two attempts


@dataclass(frozen=True, kw_only=True)
class Published:
    """An image in a registry: its manifest's digest, its labels, and bytes to pull."""

    digest: str
    labels: labels.ImageLabels
    size: int


def has_host(image: str) -> bool:
    """Whether the first part of a name is a registry's host, as in "ghcr.io/me/x:y"."""
    return _HOST.match(image) is not None


def lookup(reference: str, run: Runner) -> TagTarget | None:
    """The image or index, with its images, under a name in its registry; None if there is none.

    An index is as old as its oldest image. Raises UsageError if the registry refuses, NetworkError
    if it is unreachable or its answer about an index is invalid.
    """
    answer = _inspect(reference, run)
    if answer is None:
        return None
    with _understood(reference):
        if not is_index(answer):
            one = manifest_of(answer)
            return replace(TagTarget.of(one.digest, one.created, one.labels), manifests=(one,))
        digest = digest_of(answer, "manifest")
        entries = entries_of(answer)
        images = tuple(manifest_of(_of_entry(reference, entry, run), entry) for entry in entries)
        torches = sorted({m.labels.torch for m in images})
        if len(torches) > 1:
            raise MalformedError(f"its images have torch {' and '.join(torches)}")
        return TagTarget(
            digest=digest,
            torch=torches[0] or "0",
            created=min(m.created for m in images)[:10],
            manifests=images,
        )


def published(reference: str, run: Runner, *, platform: str = AMD64.name) -> Published:
    """The image under a name in a registry, for a platform, with checked labels and sizes.

    Raises UsageError for an invalid reference, and as `contents` does.
    """
    if not _REFERENCE.fullmatch(reference):
        raise UsageError(
            f"'{shown(re.sub('.*@', '***@', reference))}' is not the name of a published image",
            "give one such as ghcr.io/me/torch-cu130:sm120, or with @sha256:...",
        )
    answer, manifest = _described(reference, run, platform)
    with _understood(reference):
        digest, image_labels = identity_of(answer)
        if not _COMPAT.fullmatch(image_labels.compat):
            raise MalformedError(
                f"its compat library is {shown(image_labels.compat)}, which is not a version"
            )
        sizes = [layer["size"] for layer in manifest["layers"]]
        if not all(0 <= size <= _LARGEST for size in sizes):
            raise MalformedError("a layer has an impossible size")
    return Published(digest=digest, labels=image_labels, size=sum(sizes))


def contents(
    reference: str, run: Runner, *, platform: str = AMD64.name
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The manifest of a published image for a platform, and its history.

    Raises UsageError if the image is not in its registry, or not for the platform; otherwise as
    `lookup` does.
    """
    answer, manifest = _described(reference, run, platform)
    with _understood(reference):
        history = member(answer, "image", "history", kind=list)
        return manifest, [member(history, number, kind=dict) for number in range(len(history))]


def is_public(reference: str, run: Runner) -> bool:
    """Whether a registry serves an image to everybody, tried without Docker's credentials.

    False only if the registry refuses; any other error counts as public.
    """
    own = Path(os.environ.get("DOCKER_CONFIG") or home() / ".docker")
    with tempfile.TemporaryDirectory() as folder:
        # buildx may be installed there. The configuration with contexts and builders is left out.
        Path(folder, "cli-plugins").symlink_to(own.absolute() / "cli-plugins")
        names = ("DOCKER_AUTH_CONFIG", "DOCKER_CONTEXT", "BUILDX_BUILDER")
        env = {"DOCKER_CONFIG": folder, **dict.fromkeys(names)}
        command = ["docker", "buildx", "imagetools", "inspect", "--raw", reference]
        done = run.run(command, env=env, check=False)
    return not done.code or not _REFUSED.search(done.output + done.errors)


def exact(reference: str, run: Runner, *, platform: str) -> str:
    """The name of one manifest: for an index, the platform's by digest, else the same name.

    Raises UsageError if the name is not in its registry, and for an index without the platform;
    otherwise as `lookup` does.
    """
    return _chosen(reference, run, platform, foreign=True)[0]


def make_index(reference: str, index: Index, run: Runner) -> None:
    """Give an index a name in the registry that has its images.

    First checks that buildx would write exactly the expected bytes: another version might make
    another index. Raises UsageError, with the version to install, if not; otherwise as `lookup`
    does.
    """
    create = ["docker", "buildx", "imagetools", "create", "--progress=plain", f"--tag={reference}"]
    annotations = (f"--annotation=index:{name}={text}" for name, text in index.annotations.items())
    words = [*annotations, *(json.dumps(descriptor) for descriptor in index.descriptors)]
    written = _create([*create, "--dry-run", *words], reference, run)
    if written.rstrip("\n").encode() != index.data:
        raise UsageError(
            "this docker buildx writes an index with unexpected bytes",
            "install another version of docker-buildx; 0.13 is known to work",
        )
    _create([*create, *words], reference, run)


def name_index(reference: str, digest: str, run: Runner) -> None:
    """Give an index in a registry another name there. Raises as `lookup` does."""
    create = ["docker", "buildx", "imagetools", "create", "--progress=plain", f"--tag={reference}"]
    _create([*create, at(reference, digest)], reference, run)


def _create(command: list[str], reference: str, run: Runner) -> str:
    """The output of a buildx command. Raises UsageError or NetworkError."""
    try:
        return run.run(command).output
    except CommandError as error:
        if lacking := _LACKING.search(error.output):
            raise UsageError(
                f"this docker buildx has no option {lacking[1]} of imagetools create",
                "install a newer docker-buildx; 0.13 is known to work",
            ) from None
        raise problem(reference, error.output.rpartition("ERROR:")[2]) from None


def _chosen(
    reference: str, run: Runner, platform: str, *, foreign: bool = False
) -> tuple[str, dict[str, Any]]:
    """The name of a manifest for a platform, and its description by buildx.

    With `foreign`, a single manifest may be for another platform.
    """
    answer = _inspect(reference, run)
    if answer is None:
        raise UsageError(f"{reference} is not in its registry", "push it first")
    with _understood(reference):
        if not is_index(answer):
            own = platform_of(optional(answer, "image", kind=dict))
            if not foreign and own not in ("", platform):
                raise _not_for(reference, platform, [own])
            return reference, answer
        entries = {platform_of(entry["platform"]): entry for entry in entries_of(answer)}
        if platform not in entries:
            raise _not_for(reference, platform, entries)
        entry = entries[platform]
        return at(reference, entry["digest"]), _of_entry(reference, entry, run)


def _not_for(reference: str, platform: str, others: Iterable[str]) -> UsageError:
    return UsageError(
        f"{reference} has no image for {platform}", f"it has one for {shown(' and '.join(others))}"
    )


def _described(reference: str, run: Runner, platform: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The description of a published image by buildx, and its manifest with digests and sizes."""
    name, answer = _chosen(reference, run, platform)
    manifest = _inspect(name, run, "--raw") or {}
    with _understood(reference):
        member(manifest, "config", "digest", kind=str)
        for number in range(len(member(manifest, "layers", kind=list))):
            member(manifest, "layers", number, "digest", kind=str)
            member(manifest, "layers", number, "size", kind=int)
    return answer, manifest


def _of_entry(reference: str, entry: dict[str, Any], run: Runner) -> dict[str, Any]:
    """The description of an image in an index. Raises MalformedError, and as `lookup` does."""
    name, platform = at(reference, entry["digest"]), platform_of(entry["platform"])
    answer = _inspect(name, run)
    if answer is None:
        raise MalformedError(f"its index names a missing image for {platform}")
    manifest = is_index(answer) or manifest_of(answer)
    if manifest is True or (manifest.digest, manifest.platform) != (entry["digest"], platform):
        raise MalformedError(f"its index names another image for {platform}")
    return answer


def problem(reference: str, text: str) -> UsageError | NetworkError:
    """The error for the message of a registry or of the way to it."""
    message = " ".join(text.removeprefix("ERROR:").split())[-300:]
    host = reference.partition("/")[0]
    if "error getting credentials" in message:
        message = message.partition(", out:")[0]  # the helper's output follows, and may be anything
        return UsageError(
            f"{host}: {message}", "see credsStore and credHelpers in Docker's config.json"
        )
    if _REFUSED.search(message):
        return UsageError(
            f"{host} refuses: {message}",
            f"`docker login {host}`, or ask for the right to write there",
        )
    if _PERMANENT.search(message):
        return UsageError(f"{host} refuses {reference}: {message}", "check its name")
    hint = "check its name, and this machine's network" if "no such host" in message else ""
    return NetworkError(
        f"{host} could not be reached: {message}", hint or "run the same again later"
    )


def retry(
    attempt: Callable[[], T],
    *,
    retries: int,
    say: Callable[[str], None],
    progress: Callable[[], int] = lambda: 0,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call `attempt` until it works; after a NetworkError again in 1, 2, 4 ... seconds.

    `retries` limits consecutive failures without `progress`, a number that only grows.
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


def _inspect(reference: str, run: Runner, *words: str) -> dict[str, Any] | None:
    """The description of a name by buildx, in the form of `words`; None if it does not exist."""
    how = words or ("--format", "{{json .}}")
    try:
        answer = run.run(["docker", "buildx", "imagetools", "inspect", *how, reference]).output
    except CommandError as error:
        if re.search(r"not found\s*$", error.output):
            return None
        raise problem(reference, error.output) from None
    with _understood(reference):
        return member(parse(answer), kind=dict)


@contextlib.contextmanager
def _understood(reference: str) -> Iterator[None]:
    """Turn MalformedError into a NetworkError that names the reference."""
    try:
        yield
    except MalformedError as error:
        raise NetworkError(
            f"buildx describes {reference} in an invalid way: {error}",
            "see `docker buildx imagetools inspect`",
        ) from None
