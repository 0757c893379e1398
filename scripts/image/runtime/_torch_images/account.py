"""Give any user id a name, a home and writable folders for caches, also on read-only systems.

OpenShift, and `docker run --user 12345`, start a container with an id that has no name and whose
home is "/". getpass.getuser() fails for such an id, and so does torch.compile. Caches cannot be
written there. On a read-only root file system, other users cannot write their caches either.

The entrypoint uses this module, and so does the Python of /opt/venv at its start (a .pth file
imports it), because `docker exec` and other entrypoints bypass ours. It changes only the
environment, not /etc/passwd: to add an entry there, any id would have to be able to write it.

In that Python it also lifts pip's build constraint where builds are not isolated, because pip
refuses that while there is one. It would constrain nothing: such a build uses the packages that are
installed.

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
LONGEST = 80  # characters that a line shows of a variable
_SANITISED = dict.fromkeys(map(ord, '\\/:*?"<>|'), "_")  # as torch does it with a user's name


def at_start() -> None:
    """Change the environment of this Python, whose start calls it."""
    try:
        given = changes(os.environ, os.getuid())
    except OSError:  # TMPDIR is relative, and the working directory was removed
        given = {}
    given.pop("PATH", None)  # pip warns of programs that the shell will not find
    os.environ.update(given)
    if os.environ.get(BUILD_CONSTRAINT) and unisolated(sys.orig_argv):
        os.environ[BUILD_CONSTRAINT] = ""


def unisolated(command: Sequence[str]) -> bool:
    """Whether a command runs pip, and an option or a setting says that builds are not isolated.

    pip takes the beginning of an option, too.
    """
    programs = [word.rpartition("/")[2].rstrip(".0123456789") for word in command]
    place = next((n for n, name in enumerate(programs) if name in ("pip", "-mpip")), len(command))
    words = command[place + 1 :]
    options = (word for word in words if word.startswith("--no-bu"))
    return any("--no-build-isolation".startswith(word) for word in options) or any(
        _set_unisolated(word) for word in words[:1]
    )


def _set_unisolated(command: str) -> bool:
    """Whether pip's variables or files turn isolation off for a command of pip's.

    The value that does so is "no": https://github.com/pypa/pip/issues/5735
    """
    try:  # in this process these modules are needed anyway
        from pip._internal.configuration import Configuration
        from pip._internal.exceptions import ConfigurationError

        settings = Configuration(isolated=False)
        settings.load()
        for section in (":env:", command, "global"):  # the first that says anything decides
            try:
                value = settings.get_value(f"{section}.no-build-isolation")
            except ConfigurationError:
                continue
            return str(value).lower() in ("0", "f", "false", "n", "no", "off")
    except Exception:  # noqa: BLE001  pip itself says what is wrong with its settings
        return False
    return False


def changes(environ: Mapping[str, str], uid: int) -> dict[str, str]:
    """The variables that a user id lacks, with their values. Variables that are usable stay.

    If a private folder is needed, it is made below TMPDIR, /tmp, /var/tmp or ~/.cache.
    """
    # A process may inherit the environment of another user, whose folders it cannot use.
    stale = {name for name, v in environ.items() if f"/{MARK}" in v and not usable(v)}
    valid = {name: v for name, v in environ.items() if v and name not in stale}
    additions = {}
    user = next((valid[name] for name in NAMES if name in valid), "") or _known(uid, "pw_name")
    if not user:
        user = f"user{uid}"
        additions = dict.fromkeys(("LOGNAME", "USER"), user)
    temporary = temporary_folder(valid)
    bases = [temporary, TEMPORARY, "/var/tmp"]  # noqa: S108
    home = valid.get("HOME") or _known(uid, "pw_dir") or "/"
    # A home of one's own stays on a read-only system, with its packages, and one with a volume.
    stays = home != "/" and (_owned(home, uid) or _mounted(home, at=False))
    if not stays and not usable(home):
        home = _private(bases, uid) or home
    if home != valid.get("HOME"):
        additions["HOME"] = home
    programs = f"{home}/.local/bin"  # where pip puts them for a user who cannot write /opt/venv
    path = valid.get("PATH", "")
    if path and uid and programs not in path.split(":") and _alone(home, uid):
        additions["PATH"] = f"{path}:{programs}"
    bases.append(f"{home}/.cache")
    inductor = f"{temporary}/torchinductor_{user.translate(_SANITISED)}"
    triton = f"{valid.get('TRITON_HOME', home)}/.triton"
    # A variable; the folder that programs use without it; where code is loaded from there, the
    # folder that must be this user's; the name of the folder that replaces it.
    for name, usual, code, own in (
        ("XDG_CACHE_HOME", f"{home}/.cache", "", "cache"),
        ("JUPYTER_CONFIG_DIR", f"{home}/.jupyter", "", "jupyter/config"),
        ("JUPYTER_DATA_DIR", f"{home}/.local/share/jupyter", "", "jupyter/data"),
        (INDUCTOR, inductor, inductor, "torchinductor"),
        ("TRITON_CACHE_DIR", f"{triton}/cache", triton, "triton"),
    ):
        if name in valid:
            continue
        suits = loads if code else keeps
        # `_ours` may make the folder, so it is only asked about a usable one. A relative path
        # (TRITON_HOME) is not: it is another folder wherever a Python starts.
        foreign = (
            code and usable(usual) and not (_ours(code, uid) or _mounted(code) or _of_volume(code))
        )
        if foreign or not suits(usual):
            private = _private(bases, uid)
            if private and (foreign or suits(private) or not usable(usual)):
                additions[name] = f"{private}/{own}"
        elif name in stale:
            additions[name] = usual
    return additions


def complaint(environ: Mapping[str, str]) -> str:
    """Why torch.compile cannot work, and what to do about it; "" if it can."""
    temporary = temporary_folder(environ)
    place = environ.get(INDUCTOR) or temporary
    for folder in (temporary, place):
        if not usable(folder):
            return f"torch.compile cannot work: {shown(folder)} cannot be written; {REMEDY}"
    if not loads(place):
        problem = f"{shown(place)} is mounted noexec"
        return f"torch.compile cannot load what it compiles: {problem}; {REMEDY}"
    return ""


def shown(value: str) -> str:
    """The value of a variable as part of a line: escaped if it is not plain text, and short."""
    text = value if value.isprintable() else ascii(value)[1:-1]
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def temporary_folder(environ: Mapping[str, str]) -> str:
    """The folder that Python's tempfile takes, and so torch."""
    configured = (os.path.abspath(v) for v in map(environ.get, ("TMPDIR", "TEMP", "TMP")) if v)
    folders = (*configured, TEMPORARY, "/var/tmp")  # noqa: S108
    return next((f for f in folders if os.path.isdir(f) and usable(f)), TEMPORARY)


def usable(folder: str) -> bool:
    """Whether a folder can be written, or else be made."""
    existing = _existing(folder)
    return os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK)


def loads(folder: str) -> bool:
    """Whether a folder is usable, and libraries can be loaded from it (no noexec mount)."""
    try:
        return usable(folder) and not os.statvfs(_existing(folder)).f_flag & os.ST_NOEXEC
    except OSError:
        return False


def keeps(folder: str) -> bool:
    """Whether a folder is usable, or has a volume mounted at it or below it.

    A volume with models at ~/.cache/huggingface must be found, even if ~/.cache is read-only.
    """
    return usable(folder) or _mounted(folder)


def _existing(path: str) -> str:
    """The longest part of an absolute path that exists; "" for any other path."""
    if not path.startswith("/"):
        return ""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _known(uid: int, field: str) -> str:
    """What /etc/passwd says of a user id; "" if the id is not there."""
    try:
        return str(getattr(pwd.getpwuid(uid), field))
    except KeyError:
        return ""


def _private(bases: Sequence[str], uid: int) -> str:
    """Make or find this user's private folder below the first suitable base; "" if there is none.

    Bases from which libraries can be loaded come first. Other users can guess the folder's name. If
    they were first at each base, the name gets an end that nobody can guess.
    """
    for end in ("", f"-{os.urandom(8).hex()}"):
        for base in sorted(filter(usable, bases), key=loads, reverse=True):
            path = f"{base}/{MARK}{uid}{end}"
            try:
                os.makedirs(path, mode=0o700, exist_ok=True)
            except OSError:
                continue
            if _alone(path, uid):
                return path
    return ""


def _owned(path: str, uid: int) -> bool:
    try:
        return os.stat(path).st_uid == uid
    except OSError:
        return False


def _ours(folder: str, uid: int) -> bool:
    """Whether nobody else can put files into a folder. It is made if others could make it first."""
    existing = _existing(folder)
    if existing != folder and not _alone(existing, uid):
        try:
            os.makedirs(folder, mode=0o700)
        except OSError:
            return False
        existing = folder
    return _alone(existing, uid)


def _alone(path: str, uid: int) -> bool:
    """Whether a path is a folder that a user owns and no other can write, or a user's link to one.

    Whoever owns a link can turn it elsewhere. A group of the user's own number has no other members
    by custom, and folders are open to it (umask 002). Root's group is no such group.
    """
    try:
        about = os.lstat(path)
        if stat.S_ISLNK(about.st_mode) and about.st_uid == uid:
            about = os.stat(path)
    except OSError:
        return False
    others = 0o002 if 0 != uid == about.st_gid == os.getgid() else 0o022
    return stat.S_ISDIR(about.st_mode) and about.st_uid == uid and not about.st_mode & others


def _of_volume(folder: str) -> bool:
    """Whether a folder of somebody else's lies in a home, or other folder, of a volume.

    Whoever mounts it knows whose it is. If all users can write there, as in /tmp, nobody does.
    """
    try:
        image = os.stat("/").st_dev
        places = [os.stat(place) for place in (folder, os.path.dirname(folder))]
    except OSError:
        return False
    return all(place.st_dev != image and not place.st_mode & 0o002 for place in places)


def _mounted(folder: str, *, at: bool = True) -> bool:
    """Whether something is mounted below a folder, or `at` it."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as table:
            points = [line.split(" ", 5)[4] for line in table]
    except OSError:
        return False
    return any(f"{point}{'/' if at else ''}".startswith(f"{folder}/") for point in points)
