"""Make the choice of a libcuda effective for the container's processes, and undo an earlier one.

Root writes the loader's cache. It reaches all processes, also those of `docker exec` and sshd.
Other users, and root on a read-only file system, use the environment instead.

The host's libraries may be where the loader does not look, such as /usr/local/nvidia/lib64 (GKE,
CDI specifications written by hand). Then their folder is made known in the same way.
"""

import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from facts import SYSTEM

from torch_images.inside.decision import TOOLKIT, Choice, Host

# Sorts before the toolkit's 00-compat-*.conf: the first folder that has a library wins.
CONF = "etc/ld.so.conf.d/0-torch-images.conf"
LOADER_CACHE = "etc/ld.so.cache"
CACHE, ENVIRONMENT, NOTHING = "loader cache", "environment", "nothing to change"


def run_ldconfig() -> bool:
    """Rewrite the loader's cache. Whether ldconfig succeeded; it may take 10 seconds."""
    done = subprocess.run(
        ["/sbin/ldconfig"], env={"LC_ALL": "C"}, capture_output=True, check=False, timeout=10
    )
    return done.returncode == 0


def apply(
    choice: Choice,
    host: Host,
    root: Path,
    environ: Mapping[str, str],
    compat_root: str,
    *,
    ldconfig: Callable[[], bool] = run_ldconfig,
) -> tuple[str, dict[str, str]]:
    """Make a choice effective.

    Returns CACHE, ENVIRONMENT or NOTHING, and the variables to set. `compat_root` is the folder
    that has all compat libraries of images: folders below it that an earlier start has put into
    the environment are removed.
    """
    conf, own = root / CONF, host.library.rpartition("/")[0]
    cleaned = _clean(environ, compat_root)
    path = {**environ, **cleaned}.get("LD_LIBRARY_PATH", "")
    lacks = choice.library != TOOLKIT and not _loader_finds(own, root)
    folders = [folder for folder in (choice.folder, own if lacks else "") if folder]
    if folders and (_write(conf, folders, ldconfig) or _read(conf) == folders):
        return CACHE, {**cleaned, **_before(choice.folder, path)}
    if not choice.folder and (not folders or _with_libcuda(path)):
        if not _read(conf) or _remove(conf, ldconfig):
            extra = _for_triton(host, root, {**environ, **cleaned})
            if extra and _cached(ldconfig) and not _for_triton(host, root, {**environ, **cleaned}):
                return CACHE, cleaned
            return NOTHING, {**cleaned, **extra}
        folders = [own] if own else []  # an earlier choice that only root can undo
    if not folders:
        return NOTHING, cleaned
    parts = path.split(":") if path else []
    joined = ":".join([*(folder for folder in folders if folder not in parts), *parts])
    return ENVIRONMENT, {"LD_LIBRARY_PATH": joined, "TRITON_LIBCUDA_PATH": folders[0]}


def exports(environment: Mapping[str, str]) -> str:
    """The variables as `export` lines for a shell."""
    return "".join(f"export {name}={shlex.quote(v)}\n" for name, v in environment.items())


def _loader_finds(folder: str, root: Path) -> bool:
    """Whether the loader finds the libcuda in a folder by itself, if there is one.

    LD_LIBRARY_PATH does not count: some hosts name the folder there, but `docker exec` does not get
    the variables of a CDI specification. Nor does what an earlier start has put into the cache.
    """
    if not folder or folder.endswith(SYSTEM):
        return True
    cache = _bytes(root / LOADER_CACHE)
    if cache is None:  # a system without a cache
        return True
    return os.fsencode(f"{folder}/libcuda.so.1\0") in cache and folder not in _read(root / CONF)


def _with_libcuda(path: str) -> list[str]:
    """The folders of LD_LIBRARY_PATH that have a libcuda."""
    return [part for part in path.split(":") if part and os.path.exists(f"{part}/libcuda.so.1")]


def _before(folder: str, path: str) -> dict[str, str]:
    """The LD_LIBRARY_PATH that puts `folder` first, if `path` has a folder with another libcuda."""
    return {"LD_LIBRARY_PATH": f"{folder}:{path}"} if folder and _with_libcuda(path) else {}


def _for_triton(host: Host, root: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Where Triton finds the host's libcuda, if the loader's cache does not have it.

    The loader looks into the system's folders anyway, but Triton asks `ldconfig -p`. A CDI
    specification without the hook that renews the cache leaves it as it is in the image.
    """
    if not host.library or environ.get("TRITON_LIBCUDA_PATH"):
        return {}
    cache = _bytes(root / LOADER_CACHE)
    if cache is None:
        return {}  # a system without a cache: Triton looks elsewhere
    return (
        {}
        if b"libcuda.so.1\0" in cache
        else {"TRITON_LIBCUDA_PATH": host.library.rpartition("/")[0]}
    )


def _clean(environ: Mapping[str, str], compat_root: str) -> dict[str, str]:
    """The changes to an environment that remove an earlier choice from it."""
    changes = {}
    for name in ("LD_LIBRARY_PATH", "TRITON_LIBCUDA_PATH"):
        parts = environ.get(name, "").split(":")
        kept = [part for part in parts if not f"{part}/".startswith(f"{compat_root}/")]
        if kept != parts:
            changes[name] = ":".join(kept)
    return changes


def _write(conf: Path, folders: list[str], ldconfig: Callable[[], bool]) -> bool:
    """Put folders first in the loader's cache. Whether that was possible."""
    try:
        if os.path.lexists(conf) and not os.path.isfile(conf):
            return False
        conf.write_text("".join(f"{folder}\n" for folder in folders))
    except OSError:
        return False
    if _cached(ldconfig):
        return True
    try:
        conf.unlink()
    except OSError:
        pass
    return False


def _remove(conf: Path, ldconfig: Callable[[], bool]) -> bool:
    """Remove an earlier choice from the loader's cache. Whether that was possible."""
    try:
        conf.unlink()
    except OSError:
        return False
    return _cached(ldconfig)


def _cached(ldconfig: Callable[[], bool]) -> bool:
    try:
        return ldconfig()
    except (OSError, subprocess.SubprocessError):
        return False


def _read(conf: Path) -> list[str]:
    """The folders that an earlier start has put there; [] if it did not."""
    return (_bytes(conf) or b"").decode(errors="replace").splitlines()


def _bytes(path: Path) -> bytes | None:
    """The content of a file; None if it cannot be read. A pipe would be waited for."""
    try:
        return path.read_bytes() if os.path.isfile(path) else None
    except OSError:
        return None
