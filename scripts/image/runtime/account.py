"""Give any user id a name, a home and writable folders for caches, also on read-only systems.

OpenShift, and `docker run --user 12345`, start a container with an id that has no name and whose
home is "/". getpass.getuser() fails for such an id, and so does torch.compile. Caches cannot be
written there. On a read-only root file system, other users cannot write their caches either.

The entrypoint uses this module, and so does the Python of /opt/venv at its start (a .pth file
imports it), because `docker exec` and other entrypoints bypass ours. It changes only the
environment, not /etc/passwd: to add an entry there, any id would have to be able to write it.

In that Python it also lifts the build constraint for `pip install --no-build-isolation`, because
pip refuses that option while there is one. It would constrain nothing: such a build uses the
packages that are installed.

It runs at each start of Python. So it imports only modules that are loaded anyway, and makes few
system calls.
"""

import os
import pwd
import stat
import sys
from collections.abc import Mapping, Sequence

NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # in the order of getpass.getuser()
MARK = "torch-images-"  # the private folder of a user is named this and the user id
INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
TEMPORARY = "/tmp"  # noqa: S108  where all programs go, unless TMPDIR says otherwise
REMEDY = "start the container with --tmpfs /tmp:exec"

BUILD_CONSTRAINT = "PIP_BUILD_CONSTRAINT"


def at_start() -> None:
    """Change the environment of this Python, whose start calls it."""
    os.environ.update(changes(os.environ, os.getuid()))
    if os.environ.get(BUILD_CONSTRAINT) and unisolated(sys.orig_argv):
        os.environ[BUILD_CONSTRAINT] = ""


def unisolated(command: Sequence[str]) -> bool:
    """Whether a command runs pip with --no-build-isolation, or a beginning of it that pip takes."""
    for place, word in enumerate(command):
        if word.startswith("--no-bu") and "--no-build-isolation".startswith(word):
            programs = (w.rpartition("/")[2].rstrip(".0123456789") for w in command[:place])
            return any(program in ("pip", "-mpip") for program in programs)
    return False


def changes(environ: Mapping[str, str], uid: int) -> dict[str, str]:
    """The variables that a user id lacks, with their values. Variables that are usable stay.

    If a private folder is needed, it is made below TMPDIR, /tmp, /var/tmp or ~/.cache.
    """
    # A process may inherit the environment of another user, whose folders it cannot use.
    stale = {name for name, v in environ.items() if f"/{MARK}" in v and not usable(v)}
    told = {name: v for name, v in environ.items() if v and name not in stale}
    found = {}
    if not any(name in told for name in NAMES) and _home(uid) is None:
        found = dict.fromkeys(("LOGNAME", "USER"), f"user{uid}")
    temporary = told.get("TMPDIR", TEMPORARY)
    bases = [temporary, TEMPORARY, "/var/tmp"]  # noqa: S108
    home = told.get("HOME") or _home(uid) or "/"
    if not usable(home) and (home == "/" or not os.path.isdir(home)):
        home = _private(bases, uid) or home
    if home != told.get("HOME"):
        found["HOME"] = home
    bases.append(f"{home}/.cache")
    triton = f"{told.get('TRITON_HOME', home)}/.triton/cache"
    # A variable, the folder that programs use without it, the check that this folder must pass, and
    # the name of the folder that replaces it.
    for name, usual, suits, own in (
        ("XDG_CACHE_HOME", f"{home}/.cache", keeps, "cache"),
        ("JUPYTER_CONFIG_DIR", f"{home}/.jupyter", keeps, "jupyter/config"),
        ("JUPYTER_DATA_DIR", f"{home}/.local/share/jupyter", keeps, "jupyter/data"),
        (INDUCTOR, f"{temporary}/torchinductor_{uid}", loads, "torchinductor"),
        ("TRITON_CACHE_DIR", triton, loads, "triton"),
    ):
        if name in told:
            continue
        if not suits(usual):
            private = _private(bases, uid)
            if private and (suits(private) or not usable(usual)):
                found[name] = f"{private}/{own}"
        elif name in stale:
            found[name] = usual
    return found


def complaint(environ: Mapping[str, str]) -> str:
    """Why torch.compile cannot work, and what to do about it; "" if it can."""
    temporary = environ.get("TMPDIR") or TEMPORARY
    place = environ.get(INDUCTOR) or temporary
    for folder in (temporary, place):
        if not usable(folder):
            return f"torch.compile cannot work: {folder} cannot be written; {REMEDY}"
    if not loads(place):
        return f"torch.compile cannot load what it compiles: {place} is mounted noexec; {REMEDY}"
    return ""


def usable(folder: str) -> bool:
    """Whether a folder can be written, or else be made."""
    there = _there(folder)
    return os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)


def loads(folder: str) -> bool:
    """Whether a folder is usable, and libraries can be loaded from it (no noexec mount)."""
    try:
        return usable(folder) and not os.statvfs(_there(folder)).f_flag & os.ST_NOEXEC
    except OSError:
        return False


def keeps(folder: str) -> bool:
    """Whether a folder is usable, or has a volume mounted at it or below it.

    A volume with models at ~/.cache/huggingface must be found, even if ~/.cache is read-only.
    """
    return usable(folder) or _mounted(folder)


def _there(path: str) -> str:
    """The longest part of an absolute path that exists; "" for any other path."""
    if not path.startswith("/"):
        return ""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _home(uid: int) -> str | None:
    """The home of a user id in /etc/passwd; None if the id is not there."""
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return None


def _private(bases: Sequence[str], uid: int) -> str:
    """Make or find this user's private folder below the first suitable base; "" if there is none.

    Bases from which libraries can be loaded come first. Other users can guess the folder's name,
    so a folder that another user owns or can write is refused.
    """
    for base in sorted(filter(usable, bases), key=loads, reverse=True):
        path = f"{base}/{MARK}{uid}"
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
            about = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISDIR(about.st_mode) and about.st_uid == uid and not about.st_mode & 0o022:
            return path
    return ""


def _mounted(folder: str) -> bool:
    """Whether something is mounted at a folder or below it."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as table:
            points = [line.split(" ", 5)[4] for line in table]
    except OSError:
        return False
    return any(f"{point}/".startswith(f"{folder}/") for point in points)
