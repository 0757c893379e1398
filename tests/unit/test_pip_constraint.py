"""pip's command line as the start of Python leaves it. tests/programs has the real pip."""

from __future__ import annotations

import pytest
from _torch_images import pip_constraint
from _torch_images.pip_constraint import BUILDS, FILE, VARIABLE

PINNED = ["--constraint", FILE]


@pytest.mark.parametrize(
    ("original", "command", "pip"),
    [
        (["python3", "/opt/venv/bin/pip", "list"], ["/opt/venv/bin/pip", "list"], True),
        (["python", "-I", "-m", "pip", "list"], ["-m", "list"], True),
        (["python", "-mpip"], ["-m"], True),
        (["python", "/usr/bin/pip3.13", "list"], ["/usr/bin/pip3.13", "list"], True),
        (["python", "train.py", "pip", "install"], ["train.py", "pip", "install"], False),
        (["python", "-m", "piptools", "sync"], ["-m", "sync"], False),
        (["python", "/x/__pip-runner__.py", "install"], ["/x/__pip-runner__.py", "install"], False),
        (["python"], [""], False),
        ([], [], False),
        ([], ["pip"], False),
    ],
)
def test_runs_pip(original: list[str], command: list[str], pip: bool) -> None:
    assert pip_constraint.runs_pip(original, command) is pip


def test_the_pip_of_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip --python /opt/venv/bin/python install` starts itself there by this file."""
    monkeypatch.setenv("_PIP_RUNNING_IN_SUBPROCESS", "1")
    assert pip_constraint.runs_pip(["python", "/x/__pip-runner__.py"], ["/x/__pip-runner__.py"])


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("pip install x", 2),
        ("pip --isolated --proxy http://x install -c own.txt x", 5),
        ("pip wheel install", 2),
        ("pip uninstall wheel", 0),
        ("pip --verbose show wheel", 0),
        ("pip list", 0),
        ("pip --version", 0),
        ("pip", 0),
    ],
)
def test_only_what_installs_is_constrained(command: str, place: int) -> None:
    words = command.split()
    environ: dict[str, str] = {}
    pip_constraint.constrain(words, environ)
    before = command.split()
    assert words == (before[:place] + PINNED + before[place:] if place else before)
    assert environ == ({BUILDS: FILE} if place else {})


@pytest.mark.parametrize(
    ("environ", "after", "lifted"),
    [
        ({VARIABLE: FILE, BUILDS: FILE}, {BUILDS: FILE}, False),  # pip then reads pip.conf's
        ({VARIABLE: "own.txt", BUILDS: "b"}, {VARIABLE: "own.txt", BUILDS: f"{FILE} b"}, False),
        ({VARIABLE: "", BUILDS: ""}, {VARIABLE: "", BUILDS: ""}, True),
        ({VARIABLE: ""}, {VARIABLE: "", BUILDS: FILE}, True),
    ],
)
def test_a_users_own_constraints_are_joined_and_empty_ones_lift(
    environ: dict[str, str], after: dict[str, str], lifted: bool
) -> None:
    words = ["pip", "install", "x"]
    pip_constraint.constrain(words, environ)
    assert environ == after
    assert (words == ["pip", "install", "x"]) is lifted
