"""Programs that builds and tests use but images do not hold: uv, pytest, the SBOM library.

They are installed on the host from a lock, for the images' platform. So a Mac with a remote builder
hands over the same files as a Linux server.
"""

from __future__ import annotations

from pathlib import Path

from torch_images.errors import CommandError, LockError
from torch_images.host.cache import Part, filling, used
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.locks.complete import check_wheels
from torch_images.locks.wheels import read_wheels, uv_platform


def install_tools(name: str, workspace: Workspace, run: Runner) -> Path:
    """The folder with the programs of locks/<name>.txt, from the cache or installed now.

    Raises LockError if the lock is damaged, or its wheels cannot be installed.
    """
    import uv

    path = workspace.locks / f"{name}.txt"
    lock = read_wheels(path)
    check_wheels(lock)
    folder = workspace.cache / Part.TOOLS / f"{name}-{lock.digest[:16]}"
    if folder.exists():
        return used(folder)
    command = [uv.find_uv_bin(), "pip", "install", "--quiet"]
    command += ["--python-platform", uv_platform(lock.platform), "--python-version", lock.python]
    command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(path)]
    try:
        with filling(folder) as made:
            run.run([*command, "--target", str(made)], env=workspace.network.for_uv())
            made.chmod(0o755)
    except CommandError as error:
        raise LockError(f"{path.name} could not be installed: {error.output[-300:]}") from None
    return folder
