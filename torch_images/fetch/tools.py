"""Programs that builds and tests use but images do not contain: uv, pytest, the SBOM library.

They are installed on the host from a lock, for the images' platform. So a Mac with a remote builder
uses the same files as a Linux server.
"""

from __future__ import annotations

import datetime as dt
import signal
from pathlib import Path

from torch_images.errors import CommandError, LockError, NetworkError
from torch_images.host.cache import Part, filling, used
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.locks.wheels import read_wheels, requirements_text, uv_platform

# uv does not limit the data of an index. These limits do: 16 GiB of address space, files of 4 GiB
# (8 GiB in some shells), and one hour. Installing locks/host-dev.txt takes 1.65 GB of address
# space, resolving torch, transformers and vLLM 2.0 GB, and 2.4 GB with 192 processors.
_BOUNDED = """\
ulimit -v 16777216; ulimit -f 8388608
if command -v timeout >/dev/null; then exec timeout --foreground 3600 "$@"; fi
exec "$@\""""
_TIMED_OUT = 124  # exit code of `timeout`


def today() -> dt.date:
    """The date of a lock that is resolved now (UTC)."""
    return dt.datetime.now(dt.UTC).date()


def uv_command(*words: str) -> list[str]:
    """A command of uv that ends even if a server keeps sending."""
    import uv

    return ["sh", "-c", _BOUNDED, "uv", uv.find_uv_bin(), *words]


def endless(error: CommandError) -> NetworkError | None:
    """The error for the user if a command of uv reached one of these limits, else None."""
    hint = "name another one in UV_DEFAULT_INDEX"
    if error.code == _TIMED_OUT:
        return NetworkError("the package index took more than an hour", hint)
    codes = (-signal.SIGXFSZ, 128 + signal.SIGXFSZ)
    if error.code in codes or "memory allocation of " in error.output:
        return NetworkError("the package index sends more than any wheel can have", hint)
    return None


def install_tools(name: str, workspace: Workspace, run: Runner) -> Path:
    """The folder with the programs of locks/<name>.json, from the cache or installed now.

    Raises LockError if the lock is damaged, or its wheels cannot be installed, and NetworkError.
    """
    lock = read_wheels(workspace.locks / f"{name}.json")
    folder = workspace.cache / Part.TOOLS / f"{name}-{lock.digest[:16]}"
    if folder.exists():
        return used(folder)
    command = uv_command("pip", "install", "--quiet")
    command += ["--python-platform", uv_platform(lock.platform), "--python-version", lock.python]
    command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", "-"]
    try:
        with filling(folder) as new:
            run.run(
                [*command, "--target", str(new)],
                env=workspace.network.for_uv(),
                stdin=requirements_text(lock.wheels),
            )
            new.chmod(0o755)
    except CommandError as error:
        end = error.output[-300:]
        raise endless(error) or LockError(
            f"locks/{name}.json could not be installed: {end}"
        ) from None
    return folder
