"""Messages of Docker, BuildKit and the system -> the error for the user."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from torch_images.errors import (
    BuildError,
    DiskError,
    EngineError,
    LockError,
    NetworkError,
    NoAnswerError,
    TorchImagesError,
    UnfinishedError,
    UsageError,
)
from torch_images.host.network import cause


@dataclass(frozen=True)
class Diagnosis:
    """The error for messages that match a pattern.

    `text` and `hint` are templates: they may name the pattern's groups, `match` (all that the
    pattern matched), `message` (all of it, on one line), and what the caller of `diagnose` adds.
    """

    pattern: str
    error: type[TorchImagesError]
    text: str
    hint: str = ""


# The message of runc 1.1.5 if the kernel cannot start a program, as of another processor.
FOREIGN = (
    Diagnosis(
        r"exec /\S+: exec format error",
        EngineError,
        "the image is for another processor than the engine's: {match}",
        "run scripts/setup-engine --platform with the image's platform, such as linux/arm64, where "
        "the engine runs, or give a native builder with --builder",
    ),
)

# Messages of Docker 26.1.5 with runc 1.1.5 that cannot give a container a GPU. "GPU vendor" is from
# Docker 29; the messages of NVIDIA's hook are in the source of its Container Toolkit. A file that
# cannot be mounted or started is listed in a CDI spec, e.g. a file of a replaced driver.
GPU = (
    Diagnosis(
        r"[^:\n]*(?:could not select device driver|CDI|GPU vendor|NVIDIA Container Runtime Hook"
        r"|nvidia-container-cli|error mounting|fork/exec).*",
        EngineError,
        "the engine cannot give the container a GPU: {match}",
        "install nvidia-container-toolkit; --gpus nvidia.com/gpu=all needs CDI on in the engine, "
        "and a spec from `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`: docs/gpu.md",
    ),
)

LOAD = (
    Diagnosis(
        "no space left",
        DiskError,
        "the engine's disk is full",
        "free some with `invoke gc --images`",
    ),
    Diagnosis("", EngineError, "the engine refused the layers: {message}", "build again"),
)

REFUSED = (
    r"(?i):\s(?:401|403)\b|unauthorized|denied|forbidden|no basic auth credentials"
    r"|authentication required|insufficient_scope"
)
# Messages of buildx, `docker push` and the engine's pulls. A second attempt may fix a NetworkError:
# 5xx, 429, timeouts.
REGISTRY = (
    Diagnosis(  # the helper's output, which follows, may be anything
        r"(?P<reason>[^\n]*error getting credentials.*?)(?:, out:|$)",
        UsageError,
        "{host}: {reason}",
        "see credsStore and credHelpers in Docker's config.json",
    ),
    Diagnosis(
        REFUSED,
        UsageError,
        "{host} refuses {reference}: {message}",
        "`docker login {host}`, or ask for the right to read or write there",
    ),
    Diagnosis(
        r"(?i):\s(?:400|404|405|413)\b|x509|server gave HTTP response to HTTPS client"
        r"|not found|(?:manifest|name) unknown|does not exist|invalid reference|unsupported",
        UsageError,
        "{host} refuses {reference}: {message}",
        "check its name",
    ),
    Diagnosis(
        "no such host|no answer within",
        NoAnswerError,
        "{host} could not be reached: {message}",
        "check its name, and this machine's network",
    ),
    Diagnosis(
        "",
        NetworkError,
        "{host} could not be reached: {message}",
        "run the same again later",
    ),
)

_DISK = Diagnosis(
    r"no space left on device|No space left on device|disk quota exceeded",
    DiskError,
    "the disk filled up during the build",
    "free some space (`invoke gc`, or `invoke gc --images`) and build again",
)
_BAKE = (
    _DISK,
    Diagnosis(
        r"Hash mismatch for `(?P<wheel>[^`]+)`.*?Expected:\s*(?P<locked>sha256:\w+)"
        r".*?Computed:\s*(?P<actual>sha256:\w+)",
        LockError,
        "{wheel} is not the locked wheel: expected {locked}, found {actual}",
        "the index serves another file; if that is intended, run `invoke lock --renew --all`",
    ),
    Diagnosis(
        r"(?P<wheel>\S+) (?:was not found in the (?:package registry|cache|provided)"
        r"|has no wheels? (?:with|that))",
        LockError,
        "a locked wheel is not in the package index ({wheel})",
        "run `invoke lock --renew --all`, or name an index that has it in UV_DEFAULT_INDEX",
    ),
    Diagnosis(
        r"error sending request|Could not connect|dns error|Failed to fetch|"
        r"Temporary failure resolving|Connection refused|client error \(Connect\)|"
        r"failed to do request|invalid peer certificate",
        NetworkError,
        "a package index or registry could not be reached during the build",
        "check network and proxy (HTTPS_PROXY), certificates (SSL_CERT_FILE) and mirror "
        "(UV_DEFAULT_INDEX)",
    ),
    *FOREIGN,
    Diagnosis(
        r"buildkit.*not (?:enabled|supported)|unknown flag: --",
        EngineError,
        "this docker buildx is too old",
        "0.13 or newer is needed",
    ),
)

# The last line of a compile step, without its name.
_COMPILE = (
    Diagnosis(
        r"^unfinished: (?P<reason>share .*)",
        UnfinishedError,
        "{reason}",
        "compile the other shares, then run the same command without --share",
    ),
    Diagnosis(
        r"^unfinished: (?P<reason>.*)",
        UnfinishedError,
        "{reason}",
        "run the same command again to continue",
    ),
    Diagnosis(
        r"^the disk is full: ",
        DiskError,
        "{message}",
        "compiled files are kept in the build cache: free some space elsewhere, and run the "
        "same command again to continue",
    ),
    Diagnosis(
        r"out of memory",
        BuildError,
        "{message}",
        "compiled files are kept; continue on a builder with more memory",
    ),
    Diagnosis("", BuildError, "{message}"),
)

# Errors about a path that the user gave.
_PATHS = (
    *(errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY),
)


def diagnose(table: Sequence[Diagnosis], output: str, **facts: str) -> TorchImagesError | None:
    """The error of the first diagnosis that matches; None without one."""
    for each in table:
        if match := re.search(each.pattern, output, re.DOTALL):
            own = {"match": match[0], "message": output}
            words = {k: " ".join(v.split()) for k, v in (own | match.groupdict("")).items()}
            text, hint = (template.format(**facts, **words) for template in (each.text, each.hint))
            return each.error(text, hint)
    return None


def refusal(table: Sequence[Diagnosis], output: str, **facts: str) -> TorchImagesError:
    """As `diagnose`, for a table whose last pattern matches everything."""
    error = diagnose(table, output, **facts)
    assert error
    return error


def of_registry(reference: str, output: str) -> TorchImagesError:
    """The error for a failed push, pull or look at a registry, from the last line."""
    last = (_plain(output).strip().splitlines() or ["no output"])[-1]
    message = last.removeprefix("ERROR:").strip()[-300:]
    return refusal(REGISTRY, message, host=reference.partition("/")[0], reference=reference)


def _plain(output: str) -> str:
    """Output without the codes of a terminal."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)


def explain(output: str) -> TorchImagesError:
    """The error for a failed bake, from its last lines."""
    plain = _plain(output)
    joined = " ".join(re.sub(r"^#\d+ (?:\d+\.\d+ )?", "", line) for line in plain.splitlines())
    stage = re.search(r"^(?:#\d+ )?(?:\d+\.\d+ )?build-wheel: (.+)$", plain, re.MULTILINE)
    if stage:  # the compile step explains every failure but a full disk
        error = refusal(_COMPILE, stage[1])
        full = isinstance(error, BuildError) and diagnose([_DISK], joined)
        return full or error
    if problem := diagnose(_BAKE, joined):
        return problem
    lines = [line for line in plain.splitlines() if re.match(r"(?:ERROR|error)[: ]", line)]
    return BuildError(f"the build failed: {lines[-1] if lines else plain.strip()[-200:]}")


def of_system(error: OSError) -> TorchImagesError | None:
    """The error for a full disk, an unusable path, or an error of docker-py or requests.

    Those libraries derive their errors from OSError. None for anything else.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        path = error.filename2 or error.filename  # of a copy, the new file
        where = f" ({path})" if path else ""
        return DiskError(
            f"the disk is full{where}",
            "free some space (`invoke gc`), or name other places in TORCH_IMAGES_CACHE and TMPDIR",
        )
    if error.errno in _PATHS and error.filename:
        return UsageError(
            f"'{str(error.filename)[:200]}' cannot be used: {error.strerror}",
            "name another path (TORCH_IMAGES_CACHE: the cache), or use a clone of your own",
        )
    # Imports are slow; without these modules no engine was used.
    docker, requests = sys.modules.get("docker.errors"), sys.modules.get("requests")
    if docker and isinstance(error, docker.APIError):
        reason = " ".join(str(error.explanation or error).split())
        return EngineError(f"the engine refused: {reason}", "try again, or restart the engine")
    if requests and isinstance(error, requests.ConnectionError | requests.Timeout):
        return EngineError(f"engine connection lost: {cause(error)}", "try again once it runs")
    return None
