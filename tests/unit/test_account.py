"""What the start gives a user id: a name, a home, folders for caches."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from _torch_images import account
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.conftest import ROOT

MODULES = ROOT / "scripts/image/runtime"
PROGRAM = (MODULES / "_torch_images/account.py").read_text()
OTHER = 54321  # an id without a name
# Run as that id where the tests are root's, who can write everywhere; else it has the test's own id.
ASK = """
import json, os, sys
exec(sys.stdin.read())
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[3]))
    os.setuid(int(sys.argv[2]))
uid = os.getuid()
told = json.loads(sys.argv[1])
given = changes(told, uid)
print(json.dumps([given, complaint({**told, **given})]))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user can reach; pytest's own are root's alone."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)
    for left in Path("/tmp").glob(f"torch-images-{OTHER}*"):  # where TMPDIR is no use
        shutil.rmtree(left)


def make_folder(folder: Path, name: str, mode: int) -> str:
    """A folder of root's, or of the test's user, with a mode for all others."""
    path = folder / name
    path.mkdir()
    path.chmod(mode)
    return str(path)


def ask(
    environ: dict[str, str], program: str = PROGRAM, group: int = 0
) -> tuple[dict[str, str], str]:
    """What an id without rights gets, and the complaint that is left."""
    done = subprocess.run(
        [sys.executable, "-sES", "-c", ASK, json.dumps(environ), str(OTHER), str(group)],
        input=program,
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    given, complaint = json.loads(done.stdout)
    return given, complaint


# What another user may have made where this one would put files.
TRAPS = ["open to all", "closed", "own, but open", "own, but of a group", "link to an own one"]


def plant(path: Path, trap: str) -> str:
    """Make such a trap."""
    if trap == "link to an own one":  # whoever owns the link can turn it elsewhere
        own = path.with_name("elsewhere")
        own.mkdir(mode=0o700)
        os.chown(own, OTHER, 0)
        path.symlink_to(own)
        return str(path)
    path.mkdir()
    path.chmod({"closed": 0o755, "own, but of a group": 0o770}.get(trap, 0o777))
    if trap.startswith("own"):
        os.chown(path, OTHER, 0)
    return str(path)


ROOT_ONLY = pytest.mark.skipif(os.getuid() != 0, reason="takes another user id")


def test_changes_of_a_user_with_name_and_home(folder: Path) -> None:
    home = make_folder(folder, "home", 0o777)
    assert ask({"HOME": home, "USER": "me", "TMPDIR": home}) == ({}, "")


@ROOT_ONLY
@pytest.mark.parametrize("home", [{"HOME": "/"}, {"HOME": ""}, {}, {"HOME": "/no/such"}])
def test_changes_of_an_id_without_a_name(folder: Path, home: dict[str, str]) -> None:
    temporary = make_folder(folder, "tmp", 0o1777)
    given, complaint = ask({"TMPDIR": temporary, **home})
    private = f"{temporary}/torch-images-{OTHER}"
    variables = {"LOGNAME": f"user{OTHER}", "USER": f"user{OTHER}"}
    assert (given, complaint) == ({**variables, "HOME": private}, "")
    about = Path(private).stat()
    assert (about.st_uid, about.st_mode & 0o777) == (OTHER, 0o700)
    assert ask({"TMPDIR": temporary, **home, **given}) == ({}, "")  # and keeps them


@ROOT_ONLY
@pytest.mark.parametrize("trap", TRAPS)
def test_another_user_cannot_plant_the_home(folder: Path, trap: str) -> None:
    temporary = make_folder(folder, "tmp", 0o1777)
    planted = plant(Path(temporary, f"torch-images-{OTHER}"), trap)
    given, _ = ask({"TMPDIR": temporary, "HOME": "/"})
    assert not given["HOME"].startswith(planted)


@ROOT_ONLY
@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("user", ["me", 'a\\b/c:d*e?f"g<h>i|j'])
def test_another_user_cannot_plant_code_that_torch_loads(
    folder: Path, trap: str, user: str
) -> None:
    """Inductor loads libraries from a folder of a name that everybody knows.

    Whoever makes it first in /tmp would have his code run by others.
    """
    temporary, home = make_folder(folder, "tmp", 0o1777), make_folder(folder, "home", 0o777)
    name = "a_b_c_d_e_f_g_h_i_j" if user != "me" else user  # as torch changes it
    plant(Path(temporary, f"torchinductor_{name}"), trap)
    given, _ = ask({"TMPDIR": temporary, "HOME": home, "USER": user})
    private = f"{temporary}/torch-images-{OTHER}"
    assert given == {account.INDUCTOR: f"{private}/torchinductor"}
    about = Path(private).lstat()
    assert (about.st_uid, about.st_mode & 0o777) == (OTHER, 0o700)


@ROOT_ONLY
@pytest.mark.parametrize("trap", TRAPS)
def test_another_user_cannot_plant_kernels_that_triton_loads(folder: Path, trap: str) -> None:
    """Kubernetes' pods often have /tmp as their home."""
    shared = make_folder(folder, "tmp", 0o1777)
    plant(Path(shared, ".triton"), trap)
    given, _ = ask({"TMPDIR": shared, "HOME": shared, "USER": "me"})
    assert given == {"TRITON_CACHE_DIR": f"{shared}/torch-images-{OTHER}/triton"}


def test_changes_keeps_a_volume_for_inductor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever mounts a folder of the host there knows whose it is."""
    place = plant(folder / "torchinductor_me", "open to all")
    env = {"TMPDIR": str(folder), "HOME": str(folder), "USER": "me", "TRITON_CACHE_DIR": "/mine"}
    assert account.INDUCTOR in account.changes(env, os.getuid())
    with monkeypatch.context() as patch:  # all that is Python's would be loaded all the same
        patch.setattr(account, "loads", lambda _: False)
        assert account.INDUCTOR in account.changes(env, os.getuid())
    monkeypatch.setattr(account, "_mounted", lambda path: path == place)
    assert account.INDUCTOR not in account.changes(env, os.getuid())


@ROOT_ONLY
@pytest.mark.parametrize(
    ("group", "mode", "own"), [(OTHER, 0o775, True), (OTHER, 0o777, False), (0, 0o775, False)]
)
def test_changes_keeps_kernels_of_umask_002(folder: Path, group: int, mode: int, own: bool) -> None:
    """The next start sent Triton elsewhere, without a word, where each kernel is compiled anew."""
    shared = make_folder(folder, "tmp", 0o1777)
    path = Path(make_folder(Path(shared), ".triton", mode))
    os.chown(path, OTHER, group)
    changes = ask({"TMPDIR": shared, "HOME": shared, "USER": "me"}, group=group)[0]
    assert ("TRITON_CACHE_DIR" not in changes) == own


@ROOT_ONLY
def test_changes_adds_the_users_bin_to_path(folder: Path) -> None:
    """Not in a home that others can write, and not before the image's own."""
    home, path = make_folder(folder, "home", 0o755), "/opt/venv/bin:/usr/bin"
    env = {"TMPDIR": make_folder(folder, "tmp", 0o1777), "HOME": home, "USER": "me", "PATH": path}
    assert home not in ask(env)[0]["PATH"]  # it is root's
    os.chown(home, OTHER, 0)
    longer = {"PATH": f"{path}:{home}/.local/bin"}
    assert ask(env)[0] == longer
    assert ask(env | longer)[0] == {}
    Path(home).chmod(0o777)
    assert "PATH" not in ask(env)[0]
    assert "PATH" not in account.changes({**os.environ, "PATH": path}, 0)


@ROOT_ONLY
def test_changes_replaces_a_home_without_write_access(folder: Path) -> None:
    """Another user's, or `daemon`'s: matplotlib, numba and pip's own folders failed there."""
    home, temporary = make_folder(folder, "home", 0o755), make_folder(folder, "tmp", 0o1777)
    private = f"{temporary}/torch-images-{OTHER}"
    environ = {"HOME": home, "TMPDIR": temporary, "USER": "me"}
    assert ask(environ) == ({"HOME": private}, "")
    assert ask({**environ, "HOME": private}) == ({}, "")
    Path(home).chmod(0o555)  # as on a read-only system: what it has must be found
    os.chown(home, OTHER, 0)
    assert "HOME" not in ask(environ)[0]


@ROOT_ONLY
def test_changes_keeps_a_home_with_a_volume(folder: Path) -> None:
    home, temporary = make_folder(folder, "home", 0o755), make_folder(folder, "tmp", 0o1777)
    table = folder / "mountinfo"
    table.write_text(f"1 1 0:1 / {home}/models rw\n1 1 0:1 / {home}2 rw\n")
    program = PROGRAM.replace("/proc/self/mountinfo", str(table))
    given, complaint = ask({"HOME": home, "TMPDIR": temporary, "USER": "me"}, program)
    private = f"{temporary}/torch-images-{OTHER}"
    assert complaint == ""
    assert given == {
        "XDG_CACHE_HOME": f"{private}/cache",
        "JUPYTER_CONFIG_DIR": f"{private}/jupyter/config",
        "JUPYTER_DATA_DIR": f"{private}/jupyter/data",
        "TRITON_CACHE_DIR": f"{private}/triton",
    }
    mine = {"XDG_CACHE_HOME": "/mine", "TRITON_CACHE_DIR": "/mine", "JUPYTER_DATA_DIR": "/mine"}
    environ = {"HOME": home, "TMPDIR": temporary, "USER": "me", **mine}
    assert ask(environ, program)[0].keys() == {"JUPYTER_CONFIG_DIR"}  # what the user sets stays
    table.write_text(f"1 1 0:1 / {home} rw\n")  # GitHub's /github/home, of another user
    assert ask(environ, program)[0] == {"HOME": private}


NAMES = [*account.NAMES, "HOME", "TMPDIR", "XDG_CACHE_HOME", "TRITON_HOME", account.INDUCTOR]


@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    )
)
def test_changes_takes_any_environment(environ: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(account, "TEMPORARY", folder)
        patch.chdir(folder)
        account.complaint(environ)
        given = account.changes(environ, os.getuid())
        assert given.get("HOME", "/").startswith("/")
        kept = {n for n, value in environ.items() if value and n != "HOME"}
        assert not kept & given.keys()


@pytest.mark.parametrize(
    ("words", "given", "expected"),
    [
        (["install", "--no-build-isolation", "."], {}, ""),
        (["wheel", "--no-build-iso", "."], {}, ""),
        (["install", "."], {}, "/held"),
        (["install", "--no-binary", ":all:", "."], {}, "/held"),
        (["install", "."], {"PIP_NO_BUILD_ISOLATION": "False"}, ""),
        (["install", "."], {"PIP_NO_BUILD_ISOLATION": "1"}, "/held"),  # builds are isolated
        (["install", "."], {"PIP_CONFIG_FILE": "[install]\nno-build-isolation = no"}, ""),
        (["wheel", "."], {"PIP_CONFIG_FILE": "[install]\nno-build-isolation = no"}, "/held"),
        (["install", "."], {"PIP_CONFIG_FILE": "no settings"}, "/held"),
    ],
)
def test_a_python_that_starts_pip_changes_its_own_environment(
    words: list[str], given: dict[str, str], expected: str, tmp_path: Path
) -> None:
    """As in images, where a .pth file calls it; Python runs sitecustomize before the program, too.

    pip refuses every command where builds are not isolated and a build constraint is set.
    """
    (tmp_path / "sitecustomize.py").write_text(
        "from _torch_images import account; account.at_start()\n"
    )
    (tmp_path / "pip").write_text(
        f"import json, os; print(json.dumps(os.environ.get('{account.BUILD_CONSTRAINT}')))"
    )
    env = {"PYTHONPATH": f"{tmp_path}:{MODULES}", "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    env |= {account.BUILD_CONSTRAINT: "/held", "PATH": "/usr/bin", **given}
    if "PIP_CONFIG_FILE" in given:
        (tmp_path / "pip.conf").write_text(given["PIP_CONFIG_FILE"])
        env["PIP_CONFIG_FILE"] = f"{tmp_path}/pip.conf"
    done = subprocess.run(
        [sys.executable, tmp_path / "pip", *words],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == expected


def test_at_start_in_a_removed_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a relative TMPDIR. An exception here would end the .pth file before its next line."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(os, "environ", {"TMPDIR": "here"})
    account.at_start()
    assert os.environ == {"TMPDIR": "here"}


@ROOT_ONLY
def test_changes_creates_torchs_folder_first(folder: Path) -> None:
    shared, home = make_folder(folder, "tmp", 0o1777), make_folder(folder, "home", 0o777)
    for _ in range(2):  # it stays
        assert ask({"TMPDIR": shared, "HOME": home, "USER": "me"})[0] == {}
    about = Path(shared, "torchinductor_me").lstat()
    assert (about.st_uid, about.st_mode & 0o777) == (OTHER, 0o700)


@ROOT_ONLY
def test_changes_ignores_planted_folders(folder: Path) -> None:
    shared = make_folder(folder, "tmp", 0o1777)
    program = PROGRAM.replace('"/var/tmp"', '"/no/such"')
    program = program.replace(f'TEMPORARY = "{account.TEMPORARY}"', f'TEMPORARY = "{shared}"')
    plant(Path(shared, f"torch-images-{OTHER}"), "open to all")
    given, _ = ask({"TMPDIR": shared, "HOME": "/", "USER": "me"}, program)
    about = Path(given["HOME"]).lstat()
    assert (about.st_uid, about.st_mode & 0o777) == (OTHER, 0o700)
