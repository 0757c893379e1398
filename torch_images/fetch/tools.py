"""Programs that builds and tests use but images do not contain: uv, pytest, the SBOM library.

They are installed on the host from a lock, for the images' platform. So a Mac with a remote builder
uses the same files as a Linux server.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from torch_images.errors import CommandError, LockError
from torch_images.host.cache import Part, filling, used
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.locks.wheels import read_wheels, requirements_text, uv_platform


def today() -> dt.date:
    """The date of a lock that is resolved now (UTC)."""
    return dt.datetime.now(dt.UTC).date()


def uv_command(*words: str) -> list[str]:
    """A command of uv."""
    import uv

    return [uv.find_uv_bin(), *words]


def install_tools(name: str, workspace: Workspace, run: Runner) -> Path:
    """The folder with the programs of locks/<name>.json, from the cache or installed now.

    Raises LockError if the lock is damaged, or its wheels cannot be installed.
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
        raise LockError(
            f"locks/{name}.json could not be installed: {error.output[-300:]}"
        ) from None
    return folder
