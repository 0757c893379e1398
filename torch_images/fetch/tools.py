"""Programs that builds and tests use but images do not hold: uv, pytest, the SBOM library.

They are installed on the host from a lock, for the images' platform. So a Mac with a remote builder
hands over the same files as a Linux server.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch_images.errors import CommandError, LockError
from torch_images.host.cache import Part, keep, used
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.locks.complete import check_wheels
from torch_images.locks.wheels import read_wheels, uv_platform


def install_tools(name: str, workspace: Workspace, run: Runner) -> Path:
    """The folder with the programs of locks/<name>.txt, from the cache or installed now.

    Raises LockError if the lock is damaged, or its wheels cannot be installed.
    """
    path = workspace.locks / f"{name}.txt"
    lock = read_wheels(path)
    check_wheels(lock)
    folder = workspace.cache / Part.TOOLS / f"{name}-{lock.digest[:16]}"
    if folder.exists():
        return used(folder)
    platform = ["--python-platform", uv_platform(lock.platform), "--python-version", lock.python]
    return _install(path, platform, folder, workspace, run)


def install_scanner(workspace: Workspace, run: Runner) -> Path:
    """The folder with the scanner of locks/scan.txt, for this Python.

    Unlike the other tools it runs on this machine, so its lock is for every Python and platform.
    Raises LockError as `install_tools` does.
    """
    path = workspace.root / "locks" / "scan.txt"
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise LockError("there is no locks/scan.txt", "restore it from the repository") from None
    here = f"{sys.implementation.cache_tag}-{hashlib.sha256(text).hexdigest()[:16]}"
    folder = workspace.cache / Part.TOOLS / f"scan-{here}"
    if folder.exists():
        return used(folder)
    return _install(path, ["--python", sys.executable], folder, workspace, run)


def _install(
    path: Path, target: Sequence[str], folder: Path, workspace: Workspace, run: Runner
) -> Path:
    """Install the wheels of a lock into a folder of the cache. Raises LockError."""
    import uv

    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    command = [uv.find_uv_bin(), "pip", "install", "--quiet", "--target", str(scratch), *target]
    command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(path)]
    try:
        run.run(command, env=workspace.network.for_uv())
        scratch.chmod(0o755)
        return keep(scratch, folder)
    except CommandError as error:
        raise LockError(f"{path.name} could not be installed: {error.output[-300:]}") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
