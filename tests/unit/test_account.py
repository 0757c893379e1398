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

import account
import after_torch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.conftest import ROOT

MODULES = ROOT / "scripts/image/runtime"
OTHER = 54321  # an id without a name
# Run as that id where the tests are root's, who can write everywhere; else it has the test's own id.
ASK = """
import json, os, sys
exec(sys.stdin.read())
if os.getuid() == 0:
    os.setgroups([])
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
    shutil.rmtree(f"/tmp/torch-images-{OTHER}", ignore_errors=True)  # where TMPDIR is no use


def made(folder: Path, name: str, mode: int) -> str:
    """A folder of root's, or of the test's user, with a mode for all others."""
    path = folder / name
    path.mkdir()
    path.chmod(mode)
    return str(path)


def ask(environ: dict[str, str]) -> tuple[dict[str, str], str]:
    """What an id without rights gets, and the complaint that is left."""
    done = subprocess.run(
        [sys.executable, "-sES", "-c", ASK, json.dumps(environ), str(OTHER)],
        input=(MODULES / "account.py").read_text(),
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    given, complaint = json.loads(done.stdout)
    return given, complaint


ROOT_ONLY = pytest.mark.skipif(os.getuid() != 0, reason="takes another user id")


def test_a_user_with_name_and_home_gets_nothing(folder: Path) -> None:
    home = made(folder, "home", 0o777)
    assert ask({"HOME": home, "USER": "me"}) == ({}, "")


@ROOT_ONLY
@pytest.mark.parametrize("home", [{"HOME": "/"}, {"HOME": ""}, {}, {"HOME": "/no/such"}])
def test_an_id_without_a_name_gets_one_and_a_private_home(
    folder: Path, home: dict[str, str]
) -> None:
    temporary = made(folder, "tmp", 0o1777)
    given, complaint = ask({"TMPDIR": temporary, **home})
    private = f"{temporary}/torch-images-{OTHER}"
    named = {"LOGNAME": f"user{OTHER}", "USER": f"user{OTHER}"}
    assert (given, complaint) == ({**named, "HOME": private}, "")
    about = Path(private).stat()
    assert (about.st_uid, about.st_mode & 0o777) == (OTHER, 0o700)
    assert ask({"TMPDIR": temporary, **home, **given}) == ({}, "")  # and keeps them


@ROOT_ONLY
@pytest.mark.parametrize("trap", ["folder", "link", "open"])
def test_a_folder_that_another_user_made_is_not_taken(folder: Path, trap: str) -> None:
    temporary = made(folder, "tmp", 0o1777)
    planted = Path(temporary, f"torch-images-{OTHER}")
    if trap == "link":
        planted.symlink_to(made(folder, "elsewhere", 0o777))
    else:
        planted.mkdir()
        planted.chmod(0o777)
    if trap == "open":
        os.chown(planted, OTHER, 0)
    given, _ = ask({"TMPDIR": temporary, "HOME": "/"})
    assert given["HOME"] != str(planted)


@ROOT_ONLY
def test_a_home_that_cannot_be_written_stays_and_caches_go_elsewhere(folder: Path) -> None:
    home, temporary = made(folder, "home", 0o755), made(folder, "tmp", 0o1777)
    given, complaint = ask({"HOME": home, "TMPDIR": temporary, "USER": "me"})
    private = f"{temporary}/torch-images-{OTHER}"
    assert complaint == ""
    assert given == {
        "XDG_CACHE_HOME": f"{private}/cache",
        "JUPYTER_CONFIG_DIR": f"{private}/jupyter/config",
        "JUPYTER_DATA_DIR": f"{private}/jupyter/data",
        "TRITON_CACHE_DIR": f"{private}/triton",
    }
    mine = {"XDG_CACHE_HOME": "/mine", "TRITON_CACHE_DIR": "/mine", "JUPYTER_DATA_DIR": "/mine"}
    told = {"HOME": home, "TMPDIR": temporary, "USER": "me", **mine}
    assert ask(told)[0].keys() == {"JUPYTER_CONFIG_DIR"}  # what the user sets stays


@ROOT_ONLY
def test_the_folders_of_another_user_are_replaced(folder: Path) -> None:
    """A program that changes its user hands its environment on."""
    home, temporary = made(folder, "home", 0o777), made(folder, "tmp", 0o1777)
    theirs = made(Path(temporary), "torch-images-0", 0o700)
    told = {"TMPDIR": temporary, "USER": "me", "XDG_CACHE_HOME": f"{theirs}/cache"}
    assert ask({**told, "HOME": home})[0] == {"XDG_CACHE_HOME": f"{home}/.cache"}
    assert ask({**told, "HOME": theirs})[0]["HOME"] == f"{temporary}/torch-images-{OTHER}"


@ROOT_ONLY
def test_it_says_what_cannot_be_written(folder: Path) -> None:
    closed = made(folder, "closed", 0o755)
    _, complaint = ask({"HOME": "/", "TMPDIR": closed})
    assert complaint == (
        f"torch.compile cannot work: {closed} cannot be written; "
        "start the container with --tmpfs /tmp:exec"
    )


def test_a_volume_below_a_cache_keeps_it_in_use() -> None:
    """Of /dev itself, /dev/shm and /dev/pts are mounted: nothing else says that of /proc/self."""
    assert account._mounted("/dev")
    assert account._mounted("/")
    assert not account._mounted("/dev/sh")


NAMES = [*account.NAMES, "HOME", "TMPDIR", "XDG_CACHE_HOME", "TRITON_HOME", account.INDUCTOR]


@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    )
)
def test_no_environment_stops_a_start(environ: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(account, "TEMPORARY", folder)
        account.complaint(environ)
        given = account.changes(environ, os.getuid())
        assert given.get("HOME", "/").startswith("/")
        kept = {n for n, value in environ.items() if value and n != "HOME"}
        assert not kept & given.keys()


@pytest.mark.parametrize(
    ("command", "lifted"),
    [
        ("/opt/venv/bin/python3 /opt/venv/bin/pip install --no-build-isolation .", True),
        ("/opt/venv/bin/python3.12 /opt/venv/bin/pip3.12 install . --no-build-isolation", True),
        ("python -m pip install --no-cache-dir --no-build-isolation x", True),
        ("python -I -mpip wheel --no-build-iso x", True),
        ("python -m pip install x", False),
        ("python -m pip install --no-binary :all: x", False),
        ("python -m pip install --no-b x", False),  # pip does not know which of its options it is
        ("python train.py --no-build-isolation", False),
        ("python -m build --no-isolation --no-build-isolation pip", False),
        ("python", False),
        ("", False),
    ],
)
def test_only_pip_without_isolation_loses_its_build_constraint(command: str, lifted: bool) -> None:
    assert account.unisolated(command.split()) == lifted


@pytest.mark.parametrize(
    ("words", "given", "found"),
    [
        (["install", "--no-build-isolation", "."], "/held", ""),
        (["install", "."], "/held", "/held"),
        (["install", "--no-build-isolation", "."], None, None),
    ],
)
def test_a_python_that_starts_pip_changes_its_own_environment(
    words: list[str], given: str | None, found: str | None, tmp_path: Path
) -> None:
    """As in images, where a .pth file calls it; Python runs sitecustomize before the program, too."""
    (tmp_path / "sitecustomize.py").write_text("import account; account.at_start()\n")
    (tmp_path / "pip").write_text(
        f"import json, os; print(json.dumps(os.environ.get('{account.BUILD_CONSTRAINT}')))"
    )
    env = {"PYTHONPATH": f"{tmp_path}:{MODULES}", "HOME": str(tmp_path), "USER": "me"}
    if given is not None:
        env[account.BUILD_CONSTRAINT] = given
    done = subprocess.run(
        [sys.executable, tmp_path / "pip", *words],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == found


def test_the_pth_file_calls_what_is_there(root: Path) -> None:
    text = (root / "scripts/image/finish/install-files").read_text()
    assert "for module in _torch_images _torch_images.after_torch;" in text
    assert 'echo "import $module; $module.at_start()"' in text
    assert account.at_start.__name__ == after_torch.at_start.__name__ == "at_start"
