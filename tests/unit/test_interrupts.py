"""Ctrl-C before a verb has begun, and how ./inv starts and ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.unit.fakes import PYTHON
from torch_images import interrupts
from torch_images.host.network import _BUNDLE_VARIABLES, _INDEX_VARIABLES, detect


def interrupted(command: list[str], folder: Path) -> tuple[int, str]:
    """A command whose Ctrl-C comes before its first instruction; exit code and stderr.

    The signal is blocked, so that it waits until the command lets it through.
    """
    old = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        process.send_signal(signal.SIGINT)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    output, errors = process.communicate()
    assert output == ""
    return process.returncode, errors


def test_ctrl_c_during_the_imports_is_one_line(root: Path) -> None:
    command = [sys.executable, "-m", "torch_images", "matrix"]
    assert interrupted(command, root) == (130, "interrupted\n")


def test_raise_from_now_on_raises_in_a_verb() -> None:
    code = (
        "import os, signal\n"
        "from torch_images.interrupts import end_at_once, raise_from_now_on\n"
        "end_at_once()\n"
        "raise_from_now_on()\n"
        "try:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    print('cleaned up')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "cleaned up\n"


@pytest.fixture
def project(root: Path, tmp_path: Path) -> Callable[..., Path]:
    """A folder with ./inv and a Python environment of one program, which a script stands for."""

    def make(script: str, *, created: bool = True) -> Path:
        folder = tmp_path / "project"
        (folder / "locks").mkdir(parents=True)
        shutil.copy(root / "inv", folder)
        (folder / "locks" / "host.txt").write_text("x\n")
        if created:
            (folder / ".venv" / "bin").mkdir(parents=True)
            (folder / ".venv" / "host.txt").write_text("x\n")
        path = folder / ".venv/bin/python" if created else folder / "bin" / "python3"
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)
        return folder

    return make


def inv(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environ}
    return subprocess.run(
        [folder / "inv", "matrix"], env=env, capture_output=True, text=True, check=False
    )


def test_inv_starts_python_with_sigint_blocked(project: Callable[..., Path]) -> None:
    show = "print(*sys.argv[4:], signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    folder = project(f"#!{sys.executable}\nimport signal, sys\n{show}\n")
    assert inv(folder).stdout == f"{folder} matrix True\n"


# Each child ends with an error at the terminal's Ctrl-C.
CHECKING = """
from types import SimpleNamespace
from torch_images.interrupts import end_at_once, finishing, raise_from_now_on
end_at_once()
from torch_images.cli.resolving import side_by_side
from torch_images.host.runner import Runner
items = [SimpleNamespace(name=f"lock-{i}") for i in range(4)]
child = ["sh", "-c", "trap 'echo no answer; exit 2' INT; echo >&2; sleep 20 >&- 2>&- & wait"]
with finishing():
    raise_from_now_on()
    work = lambda _: Runner().run(child, show_errors=True)
    list(side_by_side(items, work, [], progress="checked"))
"""


def test_side_by_side_prints_no_failure_after_ctrl_c(root: Path) -> None:
    command = [sys.executable, "-c", CHECKING]
    with subprocess.Popen(
        command, cwd=root, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr
        for _ in range(4):  # each child has set its trap
            assert process.stderr.readline() == "\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr.read() == "interrupted\n"
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("tool", "output", "code"),
    [
        ("pip", "ERROR: Could not find a version that satisfies x (from versions: none)", 6),
        ("pip", "ERROR: 401 Client Error: Unauthorized for url: http://me:hunter2@h/x", 6),
        ("pip", "ERROR: Could not install packages due to an OSError: [Errno 28] No space left", 5),
        ("pip", "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", 3),
        ("pip", "ERROR: No matching distribution found for x==2", 3),
        ("pip", "Segmentation fault", 1),
        ("uv", "error: Failed to fetch: http://h/x/\n  cause: client error (Connect)", 6),
        ("uv", "error: Failed to fetch: http://me:hunter2@h/x/\n  cause: error resolving DNS", 6),
        ("uv", "error: No solution found when resolving dependencies\n  cause: x was not found", 6),
        ("uv", "error: No solution found when resolving\n  cause: there is no version of x==2", 3),
        ("uv", "error: Failed to download `x==1`\n  cause: Hash mismatch for `x==1`", 3),
        ("uv", "error: failed to write to file: No space left on device (os error 28)", 5),
    ],
)
def test_inv_ends_with_the_codes_of_the_readme(
    project: Callable[..., Path], tool: str, output: str, code: int
) -> None:
    folder = project(PYTHON, created=False)
    path = f"{folder}/bin:{os.environ['PATH']}"
    done = inv(folder, PATH=path, FAILS=tool, SAID=output)
    assert done.returncode == code, done.stderr
    assert output[:20] in done.stderr
    assert "hunter2" not in done.stderr
    assert not (folder / ".venv").exists()


@pytest.mark.parametrize(
    ("given", "index"),
    [
        ({"PIP_INDEX_URL": "http://p"}, "http://p"),
        ({"PIP_INDEX_URL": "http://p", "UV_INDEX_URL": "http://u"}, "http://u"),
        ({"UV_INDEX_URL": "http://u", "UV_DEFAULT_INDEX": "http://d"}, "http://d"),
    ],
)
def test_inv_gives_pip_and_uv_the_settings_of_builds(
    project: Callable[..., Path], tmp_path: Path, given: dict[str, str], index: str
) -> None:
    """A pip that asked the default index would fail where only a mirror can be reached.

    A further index that could not be reached, or had other versions, stopped uv.
    """
    folder, bundle = project(PYTHON, created=False), tmp_path / "ca"
    bundle.touch()
    names = (*_INDEX_VARIABLES, *_BUNDLE_VARIABLES)
    settings = {**dict.fromkeys(names, ""), "CURL_CA_BUNDLE": str(bundle), **given}
    further = {"UV_INDEX": "http://further", "UV_EXTRA_INDEX_URL": "http://further"}
    inv(folder, PATH=f"{folder}/bin:{os.environ['PATH']}", **settings, **further)
    network = detect(settings)
    assert (network.index, network.ca_bundle) == (index, bundle)
    pip, uv = (folder / "used").read_text().splitlines()
    assert pip == f"pip .venv/uv.txt {index} {index} http://further {bundle} {bundle}"
    assert uv == f"uv locks/host.txt {index} {index} {bundle} {bundle}"


# As PYTHON, for a pip that installs once somebody has read that it began, and written that it may.
SLOW_PYTHON = """#!/bin/sh
case "$*" in
  *ensurepip*) echo pip.whl ;;
  *--without-pip*) mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
  pip.whl/pip*) cp "$0" .venv/bin/uv; echo x >>installations; echo >begun; read -r _ <go ;;
  *torch_images*) echo ran ;;
esac
"""


def test_two_first_calls_at_once_make_one_environment(project: Callable[..., Path]) -> None:
    """Each removed the .venv that the other was filling, and both failed."""
    folder = project(SLOW_PYTHON, created=False)
    for name in ("begun", "go"):
        os.mkfifo(folder / name)
    env = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [folder / "inv", "matrix"], env=env, stdout=PIPE, stderr=PIPE, text=True
        )

    with start() as first:
        (folder / "begun").read_text()
        with start() as second:
            assert second.stderr
            line = second.stderr.readline()
            (folder / "go").write_text("\n")
            assert (
                line == "setup: another ./inv is creating the Python environment: waiting for it\n"
            )
            assert second.communicate() == ("ran\n", "")
        assert first.communicate() == ("ran\n", "setup: creating a Python environment in .venv\n")
    assert (folder / "installations").read_text() == "x\n"


def test_ending_after_finish_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By another thread; `finish` has ended all others by then, and would not see it."""
    monkeypatch.setattr(interrupts, "_over", True)
    events: list[str] = []
    with (
        pytest.raises(interrupts.Interrupted),
        interrupts.ending(lambda: events.append("ended")),
    ):
        events.append("went on")
    assert events == ["ended"]


TWO_ENDS = """
import os, signal, threading
from torch_images.interrupts import Interrupted, ending, finish
both = threading.Barrier(2, timeout=30)
def end():
    both.wait()
    os.write(1, b"ended ")
with ending(end), ending(end):
    finish(Interrupted(signal.SIGINT))
"""


def test_finish_ends_all_at_once(root: Path) -> None:
    """Each container takes seconds on a busy machine, and the process ends after ten."""
    done = subprocess.run([sys.executable, "-c", TWO_ENDS], cwd=root, stdout=PIPE, check=False)
    assert (done.returncode, done.stdout) == (130, b"ended ended ")
