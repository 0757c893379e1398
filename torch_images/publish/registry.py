"""Registries through buildx, which uses Docker's own credentials.

A name refers to one image, or to an index with an image for each platform.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

from packaging.version import Version
from pydantic import BaseModel, Field

from torch_images.build import labels
from torch_images.errors import CommandError, NetworkError, UsageError, shown
from torch_images.host.buildx import check_buildx
from torch_images.host.diagnose import REFUSED, of_registry
from torch_images.host.runner import Runner
from torch_images.host.workspace import home
from torch_images.publish.tag_rules import Manifest, TagTarget

T = TypeVar("T")

# A name that begins with a host, by Docker's rules (https://github.com/distribution/reference).
_HOST = re.compile(r"localhost/|[^/]*[.:][^/]*/")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"[a-z0-9]+(?:[.-]+[a-z0-9]+)*(?::[0-9]{{1,5}})?(?:/{_PART})+"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_ANSWER = 60.0  # seconds to wait for buildx
# What some registries answer with status 403 for a name that they lack. buildx asks by HEAD, and so
# cannot show it.
_FORBIDDEN = re.compile(r"HEAD request to (https?://([^/\s]+)/\S+): 403\b")
_LACKS = re.compile(r'"code"\s*:\s*"(?:NAME|MANIFEST)_UNKNOWN"')
_BODY = """\
import sys, urllib.request as url
url.HTTPDefaultErrorHandler.http_error_default = lambda _, request, answer, *rest: answer
print(url.urlopen(sys.argv[1], timeout=15).read(65536))
"""
_LONGEST = 60.0  # seconds between two attempts
_TEXT = 40  # characters of a version


_Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
_Time = Annotated[str, Field(pattern=r"^[0-9TZ:.+-]{0,40}$")]
_Word = Annotated[str, Field(pattern=r"^[a-z0-9]{1,20}$")]


class _Platform(BaseModel):
    os: _Word
    architecture: _Word


class _Entry(BaseModel):
    digest: _Digest
    platform: _Platform | None = None


class _Target(BaseModel):
    digest: _Digest
    manifests: list[_Entry] = Field(default=[], max_length=100)


class _Settings(BaseModel):
    labels: dict[str, str] | None = Field(default=None, alias="Labels")


class _Image(_Platform):
    created: _Time = ""
    config: _Settings = _Settings()


class _Answer(BaseModel):
    """What `docker buildx imagetools inspect --format "{{json .}}"` prints (buildx 0.13).

    `image` is one image's configuration or, for an index of several platforms, one for each.
    """

    manifest: _Target
    image: _Image | Annotated[dict[str, _Image], Field(max_length=100)]

    def target(self) -> TagTarget:
        """The images of the name. Raises ValueError unless they have one version of torch."""
        images = self.image.values() if isinstance(self.image, dict) else (self.image,)
        digests = {_name(e.platform): e.digest for e in self.manifest.manifests if e.platform}
        manifests = tuple(
            Manifest(
                platform=_name(image),
                digest=digests[_name(image)] if self.manifest.manifests else self.manifest.digest,
                created=image.created,
                labels=labels.read(image.config.labels or {}),
            )
            for image in sorted(images, key=_name)
            if not self.manifest.manifests or _name(image) in digests
        )
        torches = {image.labels.torch for image in manifests}
        if len(torches) != 1 or len(min(torches)) > _TEXT:
            raise ValueError("its images do not have one version of torch")
        Version(min(torches) or "0")
        return TagTarget(digest=self.manifest.digest, manifests=manifests)


class _Layer(BaseModel):
    size: int = Field(ge=0, le=10**12)


class _Layers(BaseModel):
    layers: list[_Layer] = Field(min_length=1, max_length=1000)


def _name(platform: _Platform) -> str:
    return f"{platform.os}/{platform.architecture}"


def lookup(reference: str, run: Runner) -> TagTarget | None:
    """The image or index under a name in its registry; None if there is none.

    Raises UsageError for an invalid name and if the registry refuses, NetworkError if it is
    unreachable or its answer is invalid.
    """
    text = _inspect(reference, run, "--format", "{{json .}}")
    if text is None:
        return None
    return _understood(reference, lambda: _Answer.model_validate_json(text).target())


def pull_size(reference: str, run: Runner) -> int:
    """The bytes of the layers of one image, named by its digest. Raises as `lookup` does."""
    text = _inspect(reference, run, "--raw") or ""
    layers = _understood(reference, lambda: _Layers.model_validate_json(text).layers)
    return sum(layer.size for layer in layers)


def of_platform(reference: str, platform: str, run: Runner) -> Manifest:
    """The image under a name for a platform.

    Raises UsageError if the registry has none, and as `lookup` does.
    """
    target = lookup(reference, run)
    if target is None:
        raise UsageError(f"{reference} is not in its registry", "push it first")
    if image := target.of_platform(platform):
        return image
    others = " and ".join(image.platform for image in target.manifests)
    raise UsageError(f"{reference} has no image for {platform}", f"it has one for {others}")


def exact(reference: str, run: Runner, *, platform: str) -> str:
    """The name of one image: for an index, the platform's by digest, else the same name.

    Raises as `of_platform` does.
    """
    target = lookup(reference, run)
    if target and [image.digest for image in target.manifests] == [target.digest]:
        return reference
    return at(reference, of_platform(reference, platform, run).digest)


def at(reference: str, digest: str) -> str:
    """The reference of a digest in the repository of another reference."""
    folder, slash, last = reference.partition("@")[0].rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}@{digest}"


def has_host(image: str) -> bool:
    """Whether the first part of a name is a registry's host, as in "ghcr.io/me/x:y"."""
    return _HOST.match(image) is not None


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
        done = run.run(command, env=env, check=False, seconds=_ANSWER)
    return not done.code or not re.search(REFUSED, done.output + done.errors)


def retry(
    attempt: Callable[[], T],
    *,
    retries: int = 5,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call `attempt` until it works; after most NetworkErrors again in 1, 2, 4 ... seconds."""
    for failed in range(retries):
        try:
            return attempt()
        except NetworkError as error:
            if not error.again:
                raise
            wait = min(2.0**failed, _LONGEST)
            say(f"{error.message}; again in {wait:.0f} s ({failed + 1} of {retries})")
            sleep(wait)
    return attempt()


def _inspect(reference: str, run: Runner, *words: str) -> str | None:
    """What buildx prints about a name; None if it does not exist."""
    if not _REFERENCE.fullmatch(reference):
        raise UsageError(
            f"'{shown(re.sub('.*@', '***@', reference))}' is not the name of a published image",
            "give one such as ghcr.io/me/torch-cu130:sm120, or with @sha256:...",
        )
    command = ["docker", "buildx", "imagetools", "inspect", *words, reference]
    try:
        return run.run(command, seconds=_ANSWER).output
    except CommandError as error:
        if re.search(r"not found\s*$", error.output) or _lacks(reference, error.output, run):
            return None
        if "docker --help" in error.output:
            check_buildx(run)
        raise of_registry(reference, error.output) from None


def _lacks(reference: str, message: str, run: Runner) -> bool:
    """Whether a registry that refuses a request says that it does not have the name."""
    match = _FORBIDDEN.search(message)
    if not match or match[2] != reference.partition("/")[0]:
        return False
    # a process, which can be ended at a time
    done = run.run([sys.executable, "-Ic", _BODY, match[1]], check=False, seconds=_ANSWER)
    return bool(_LACKS.search(done.output))


def _understood(reference: str, read: Callable[[], T]) -> T:
    """What `read` makes of an answer. Raises NetworkError for an invalid one."""
    try:
        return read()
    except ValueError as error:  # of pydantic, too
        reason = shown(" ".join(str(error).split()))
        raise NetworkError(
            f"buildx describes {reference} in an invalid way: {reason}",
            "see `docker buildx imagetools inspect`",
        ) from None
