"""Environments that users make on top of the image see its packages, and change none of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SEES = """
import os, pip, sys, torch
print(sys.prefix, torch.__version__, torch.__file__, pip.__file__)
"""
# What is at work in a Python: whether it finds torch, and whether account.py ran.
FINDS = "import importlib.util, sys; print(importlib.util.find_spec('torch'), '_torch_images' in sys.modules)"


def run(*words: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """A command without what only these checks have in their environment, and torch sets."""
    own = ("PYTHON", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    env = {name: v for name, v in os.environ.items() if not name.startswith(own)}
    return subprocess.run(
        [str(word) for word in words],
        env=env | extra,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of Python's own making, with a pip of its own."""
    folder = tmp_path_factory.mktemp("made") / "environment"
    done = run(sys.executable, "-m", "venv", "--system-site-packages", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_an_environment_sees_torch(environment: Path) -> None:
    """Else the first package that needs torch downloads 3 GB of it again."""
    done = run(environment / "bin/python", "-c", SEES)
    assert done.stdout.split() == [
        str(environment),
        torch.__version__,
        torch.__file__,
        f"{environment}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages/pip/__init__.py",
    ], done.stderr


def test_its_pip_installs_into_it(environment: Path) -> None:
    """Not into the image's, whose pip comes next in PATH where an environment has none."""
    done = run(environment / "bin/pip", "--version")
    assert str(environment) in done.stdout, done.stderr


def test_its_pip_keeps_to_the_constraints(environment: Path) -> None:
    done = run(environment / "bin/pip", "install", "--no-index", "torch==1.0")
    assert done.returncode == 1
    assert f"(constraint) torch=={torch.__version__.partition('+')[0]}" in done.stdout + done.stderr
    # Python 3.11 gives an environment a setuptools of its own, which is too old for torch.
    done = run(environment / "bin/pip", "install", "--no-index", "--no-deps", "torch")
    assert (done.returncode, "already satisfied" in done.stdout) == (0, True), done.stderr


REFUSED = f"(constraint) torch=={torch.__version__.partition('+')[0]}"


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        ((), {}),  # sudo, env -i
        (("--isolated",), {"PIP_CONSTRAINT": "/usr/share/torch-images/constraints.txt"}),
        ((), {"PIP_CONSTRAINT": "{own}"}),
        ((), {"PIP_CONFIG_FILE": "{conf}"}),
    ],
    ids=["no environment", "isolated", "own variable", "own pip.conf"],
)
def test_pip_keeps_to_the_constraints_and_to_the_users(
    tmp_path: Path, words: tuple[str, ...], environ: dict[str, str]
) -> None:
    own, conf = tmp_path / "own.txt", tmp_path / "pip.conf"
    own.write_text("sympy==0.1\n")
    conf.write_text(f"[install]\nconstraint = {own}\n")
    env = {name: value.format(own=own, conf=conf) for name, value in environ.items()}
    said = {}
    for name in ("torch==1.0", "sympy==0.2"):
        command = [sys.executable, "-m", "pip", *words, "install", "--no-index", "--no-deps", name]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        said[name] = done.stdout + done.stderr
    assert REFUSED in said["torch==1.0"]
    joined = any("{" in value for value in environ.values())
    assert ("(constraint) sympy==0.1" in said["sympy==0.2"]) is joined


def test_an_empty_variable_lifts_the_constraints() -> None:
    done = run(
        sys.executable, "-m", "pip", "install", "--no-index", "torch==1.0", PIP_CONSTRAINT=""
    )
    assert done.returncode == 1
    assert "(constraint)" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "setting"), [(["--no-build-isolation"], "1"), ([], "0"), ([], "false")]
)
def test_pip_builds_without_isolation(words: list[str], setting: str) -> None:
    """It refuses every command where isolation is off and a build constraint is set."""
    command = (sys.executable, "-m", "pip", "install", "--no-index", *words, "torch")
    done = run(*command, PIP_NO_BUILD_ISOLATION=setting)
    assert done.returncode == 0, done.stderr


def test_its_python_gives_an_id_without_a_name_what_it_lacks(environment: Path) -> None:
    done = run(environment / "bin/python", "-c", FINDS)
    assert done.stdout.endswith(" True\n"), done.stderr


@pytest.mark.parametrize("options", [["-c"], ["-sES", "-c"]], ids=["plain", "as ours"])
def test_debians_python_has_debians_packages_only(options: list[str]) -> None:
    """Its programs are tested with those; and ours start in it at each start of a container."""
    done = run("/usr/bin/python3", *options, FINDS)
    assert done.stdout == "None False\n", done.stderr


def test_torchs_folder_for_code_is_guarded(tmp_path: Path) -> None:
    """By the path that this release of torch takes: whoever makes it first runs code of others."""
    user = 'a\\b/c:d*e?f"g<h>i|j'
    tmp_path.chmod(0o1777)
    extra = {"TMPDIR": str(tmp_path), "USER": user, "LOGNAME": user}
    code = (
        "from torch._inductor.runtime.cache_dir_utils import default_cache_dir\n"
        "print(default_cache_dir())"
    )
    [usual] = run(sys.executable, "-c", code, **extra).stdout.split()
    assert Path(usual).stat().st_mode & 0o777 == 0o700  # the start of Python made it
    Path(usual).chmod(0o777)
    code = "import os; print(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
    done = run(sys.executable, "-c", code, **extra)
    assert done.stdout.startswith(f"{tmp_path}/torch-images-{os.getuid()}/"), done.stderr
