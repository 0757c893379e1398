"""Errors for the user from a failed bake, by its last lines, and from the system."""

from __future__ import annotations

import errno
import re
import sys

from torch_images.errors import (
    BuildError,
    DiskError,
    EngineError,
    LockError,
    NetworkError,
    TorchImagesError,
    UnfinishedError,
    UsageError,
)
from torch_images.host.refusals import FOREIGN, NATIVE

_FAILURES: tuple[tuple[str, type[TorchImagesError], str, str], ...] = (
    (
        r"no space left on device|No space left on device|disk quota exceeded",
        DiskError,
        "the disk filled up during the build",
        "free some space (`invoke gc`, or `invoke gc --images`) and build again",
    ),
    (
        (
            r"Hash mismatch for `(?P<what>[^`]+)`.*?Expected:\s*(?P<want>sha256:\w+)"
            r".*?Computed:\s*(?P<got>sha256:\w+)"
        ),
        LockError,
        "{what} is not the locked wheel: expected {want}, found {got}",
        "the index serves another file; if that is intended, run `invoke lock --renew --all`",
    ),
    (
        (
            r"Because (?P<what>\S+) was not found in the (?:package registry|cache|provided)"
            r"|(?P<what2>\S+) has no wheels? (?:with|that)"
        ),
        LockError,
        "a locked wheel is not in the package index ({what})",
        "run `invoke lock --renew --all`, or name an index that has it in UV_DEFAULT_INDEX",
    ),
    (
        (
            r"error sending request|Could not connect|dns error|Failed to fetch|"
            r"Temporary failure resolving|Connection refused|client error \(Connect\)|"
            r"failed to do request|invalid peer certificate"
        ),
        NetworkError,
        "a package index or registry could not be reached during the build",
        (
            "check network and proxy (HTTPS_PROXY), certificates (SSL_CERT_FILE) and mirror "
            "(UV_DEFAULT_INDEX)"
        ),
    ),
    (
        rf"(?P<what>{FOREIGN})",
        EngineError,
        "the image is for another processor than the builder's: {what}",
        NATIVE,
    ),
    (
        r"buildkit.*not (?:enabled|supported)|unknown flag: --",
        EngineError,
        "this docker buildx is too old",
        "0.13 or newer is needed",
    ),
)


# Patterns of the last line of a compile step, with the error and the advice for each.
_COMPILING: tuple[tuple[str, type[TorchImagesError], str], ...] = (
    (
        r"unfinished: (share .*)",
        UnfinishedError,
        "compile the other shares, then run the same command without --share",
    ),
    (r"unfinished: (.*)", UnfinishedError, "run the same command again to continue"),
    (
        r"(the disk is full: .*)",
        DiskError,
        (
            "compiled files are kept in the build cache: free some space elsewhere, and run the "
            "same command again to continue"
        ),
    ),
    (
        r"(.*out of memory.*)",
        BuildError,
        "compiled files are kept; continue on a builder with more memory",
    ),
    (r"(.*)", BuildError, ""),
)


# Errors about a path that the user gave.
_PATHS = (
    *(errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
)


def explain(output: str) -> Exception:
    """The error for a failed bake, from its last lines."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
    joined = " ".join(re.sub(r"^#\d+ (?:\d+\.\d+ )?", "", line) for line in plain.splitlines())
    stage = re.search(r"^(?:#\d+ )?(?:\d+\.\d+ )?build-wheel: (.+)$", plain, re.MULTILINE)
    compile_error = _own(stage[1]) if stage else None
    for number, (pattern, kind, message, hint) in enumerate(_FAILURES):
        if compile_error and (number or not isinstance(compile_error, BuildError)):
            return compile_error  # the compile step explains every failure but a full disk
        if match := re.search(pattern, joined, re.DOTALL):
            words = match.groupdict("")
            words["what"] = words.get("what") or words.get("what2") or ""
            error: Exception = kind(message.format(**words), hint)
            return error
    lines = [line for line in plain.splitlines() if re.match(r"(?:ERROR|error)[: ]", line)]
    return BuildError(f"the build failed: {lines[-1] if lines else plain.strip()[-200:]}")


def _own(line: str) -> TorchImagesError:
    """The error of a compile step, from its last line."""
    matches = ((re.fullmatch(pattern, line), kind, hint) for pattern, kind, hint in _COMPILING)
    match, kind, hint = next(each for each in matches if each[0])
    assert match
    return kind(match[1], hint)


def of_system(error: OSError) -> TorchImagesError | None:
    """The error for a full disk, an unusable path, or an error of docker-py or requests.

    Those libraries derive their errors from OSError. None for anything else.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" ({error.filename})" if error.filename else ""
        return DiskError(f"the disk is full{where}", "free some space and try again")
    if error.errno in _PATHS and error.filename:
        return UsageError(
            f"'{str(error.filename)[:200]}' cannot be used: {error.strerror}", "name another path"
        )
    if "docker" in sys.modules:  # else no engine was used, and imports are slow
        from torch_images.host.container import of_docker

        return of_docker(error)
    return None
