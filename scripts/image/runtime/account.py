"""A name, a home and folders for caches, whatever the user id and whatever is read-only.

OpenShift, and `docker run --user 12345`, give a container an id that has no name and whose home is
"/". getpass.getuser() fails for it, and torch.compile with that; caches have no place. A read-only
root file system takes the places of caches away from other users, too.

Read twice: by the start of a container, and by the Python of /opt/venv when it starts (a .pth file
there imports this), so that `docker exec` and replaced entrypoints have the same. All that changes
is environments. /etc/passwd stays as it is: for an entry there, every id must be able to write it.

Only modules that are loaded anyway, and few questions: it is part of every start of Python.
"""

import os
import pwd
import stat
from collections.abc import Mapping, Sequence

NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # in the order of getpass.getuser()
MARK = "torch-images-"  # folders of our own are called this and the user id
INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
TEMPORARY = "/tmp"  # noqa: S108  where all programs go, unless TMPDIR says otherwise
REMEDY = "start the container with --tmpfs /tmp:exec"


def changes(environ: Mapping[str, str], uid: int) -> dict[str, str]:
    """The environment that a user id lacks: what is set and can be used is left as it is.

    Makes a private folder below TMPDIR, /tmp, /var/tmp or ~/.cache where one is needed.
    """
    # The folders of another user of this container, which gave its environment on, are no use.
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
    # Variable, the place that programs take without it, whether that will do, and the name of ours.
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
    """Whether a folder can be written, or made."""
    there = _there(folder)
    return os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)


def loads(folder: str) -> bool:
    """Whether a folder can be written, or made, and libraries in it be loaded."""
    try:
        return usable(folder) and not os.statvfs(_there(folder)).f_flag & os.ST_NOEXEC
    except OSError:
        return False


def keeps(folder: str) -> bool:
    """Whether a folder can be written, or made, or has a volume at it or below it.

    That of the models in ~/.cache/huggingface stays where it is, though ~/.cache is read-only.
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
    """The home that /etc/passwd has for a user id; None where it does not know it."""
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return None


def _private(bases: Sequence[str], uid: int) -> str:
    """A folder of this user's alone, where libraries can be loaded if any base allows that.

    Others can know its name beforehand, so one that is not this user's is not taken. "" for none.
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
