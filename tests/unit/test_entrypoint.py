"""torch-entrypoint as a process: what the command gets, and that it starts whatever goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import command
import pytest

from tests.scripts import ROOT, installed

PROGRAM = (ROOT / "scripts/image/commands/torch-entrypoint").read_text()
INSTALLED = "/usr/local/lib/torch-images"
SHOW = "import os, sys; sys.stdout.buffer.write(open('/proc/self/environ', 'rb').read())"
QUIET = {b"TORCH_IMAGE_QUIET": b"1", b"PATH": os.fsencode(os.defpath)}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program with this checkout's modules, which find no facts of an image beside them."""
    modules = installed(tmp_path / "modules", "runtime")
    path = tmp_path / "torch-entrypoint"
    path.write_text(PROGRAM.replace(INSTALLED, str(modules)).replace("-IS", "-ISB", 1))
    path.chmod(0o755)
    return path


def run(
    program: Path, *command: str, environ: dict[bytes, bytes] | None = None
) -> subprocess.CompletedProcess[bytes]:
    environ = QUIET if environ is None else environ
    return subprocess.run([program, *command], env=environ, capture_output=True, check=False)


def environment(done: subprocess.CompletedProcess[bytes]) -> dict[bytes, bytes]:
    assert done.returncode == 0, done.stderr
    pairs = (entry.partition(b"=") for entry in done.stdout.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def test_command_gets_every_variable_unchanged(program: Path) -> None:
    """A shell drops names with "." or "-", which GitHub's actions, Kubernetes and Spark use."""
    given = {
        **QUIET,
        b"a.b": b"1",
        b"INPUT_X-Y": b"two words",
        b"EMPTY": b"",
        b"LINES": b"one\ntwo\n",
        b"NOT_UTF8": b"\xff\xed\xa0\x80=",
        b"%\xe9": b"$(echo no) `no` '\"",
    }
    received = environment(run(program, sys.executable, "-c", SHOW, environ=given))
    assert {name: received[name] for name in given} == given
    assert b"LC_CTYPE" not in received  # Python's own, by PEP 538
    assert received[b"TORCH_IMAGE_STARTED"] == b"1"


def test_ctrl_c_ends_a_start(program: Path) -> None:
    """Without a traceback, and without the command."""
    (program.parent / "modules" / "start.py").write_text("import os\nos.kill(os.getpid(), 2)\n")
    done = subprocess.run(
        ["env", "--default-signal=INT", program, "echo"],
        env=QUIET,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.parametrize("start", ["torch-entrypoint", "pod-start"])
def test_the_command_is_the_process_with_the_usual_signals(program: Path, start: str) -> None:
    """Python ignores SIGPIPE; a command that inherits that never ends in `command | head`."""
    if start == "pod-start":
        text = (ROOT / "scripts/image/pod/pod-start").read_text()
        text = text.replace(INSTALLED, str(program.parent / "modules"))
        program.write_text(text.replace("(start_sshd, start_jupyter)", "()"))
    shell = f"echo $$; exec {program} /bin/sh -c 'echo $$; exec grep SigIgn /proc/self/status'"
    done = subprocess.run(
        ["/bin/sh", "-c", shell], env=QUIET, capture_output=True, text=True, check=True
    )
    first, second, _, ignored = done.stdout.split()
    assert second == first
    own = Path("/proc/self/status").read_text().split("SigIgn:")[1].split()[0]
    python = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1  # of these tests' own Python
    assert int(ignored, 16) == int(own, 16) & ~python


def test_execute_without_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell looks into /usr/local/bin then; Python's own default lacks it."""
    tried: list[str] = []

    def execve(path: str, *_: object) -> None:
        tried.append(path)
        raise FileNotFoundError

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for environ, path in (({}, "/usr/local/bin/name"), ({"PATH": "/mine"}, "/mine/name")):
        with pytest.raises(SystemExit):
            command.execute(["name"], environ, lambda _: None)
        assert path in tried
    assert tried[-1] == "/mine/name"
    assert tried.count("/usr/local/bin/name") == 1


def test_command_failing_to_start_is_one_line(program: Path, tmp_path: Path) -> None:
    """With the statuses of shells: 127 for none, 126 for one that is not executable."""
    plain, crlf = tmp_path / "plain", tmp_path / "crlf"
    plain.write_text("echo hello\n")
    crlf.write_text("#!/bin/sh\r\necho\r\n")
    crlf.chmod(0o755)
    for name, status, message in (
        ("no-such-command", 127, "there is no command 'no-such-command'"),
        ("./no/such", 127, "there is no command './no/such'"),
        ("no\nsuch\udcff", 127, r"there is no command 'no\nsuch\udcff'"),
        (str(plain), 126, f"'{plain}' cannot be executed: Permission denied"),
        (str(tmp_path), 126, f"'{tmp_path}' cannot be executed: Permission denied"),
        (str(crlf), 127, f"'{crlf}' starts with #! and a program that is not here, or ends lines in CRLF"),
    ):  # fmt: skip
        done = run(program, name)
        assert (done.returncode, done.stderr.decode()) == (status, f"torch-images: {message}\n")
    plain.chmod(0o755)  # neither a program nor a script that names one: sh reads it, as before
    done = run(program, str(plain), environ={**QUIET, b"PATH": os.fsencode(tmp_path)})
    assert (done.returncode, done.stdout) == (0, b"hello\n")
    done = run(program, "plain", environ={**QUIET, b"PATH": os.fsencode(f"/no:{tmp_path}")})
    assert (done.returncode, done.stdout) == (0, b"hello\n")


@pytest.mark.parametrize(
    "name", ["start", "facts", "effect", "_torch_images/account", "_torch_images/defaults"]
)
@pytest.mark.parametrize("fault", ["raise SystemExit(3)", "raise KeyboardInterrupt", "def"])
def test_command_starts_beside_a_faulty_module(program: Path, name: str, fault: str) -> None:
    """What still works is done, and nothing is printed but lines of ours."""
    (program.parent / "modules" / f"{name}.py").write_text(f"{fault}\n")
    given = {b"a.b": b"1", b"PATH": os.fsencode(os.defpath)}
    done = run(program, sys.executable, "-c", SHOW, environ=given)
    assert environment(done)[b"a.b"] == b"1"
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("torch-images: the start failed, and only the command runs: ")


def test_shells_get_the_same_as_the_command(program: Path) -> None:
    """One implementation: what start.py prints, a shell evaluates to what the command has."""
    given = {b"PATH": os.fsencode(os.defpath), b"HOME": b"/"}
    script = (
        f'eval "$(/usr/bin/python3 -sESB {program.parent}/modules/start.py)"; exec "$0" -c "{SHOW}"'
    )
    shell = subprocess.run(
        ["/bin/sh", "-c", script, sys.executable], env=given, capture_output=True, check=False
    )
    assert shell.stderr == b""
    command = environment(run(program, sys.executable, "-c", SHOW, environ=given))
    ignored = {b"PWD", b"OLDPWD", b"_", b"SHLVL"}
    assert {k: v for k, v in environment(shell).items() if k not in ignored} == command


def test_no_module_beside_it_is_taken_for_pythons_own(program: Path) -> None:
    """Users put programs into /usr/local/bin, where this one is."""
    for name in ("signal", "errno", "json", "start"):
        (program.parent / f"{name}.py").write_text("1 / 0\n")
    assert run(program, "echo", "hello").stdout == b"hello\n"


def test_a_closed_standard_error_changes_nothing(program: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{program} echo hello 2>&-"], env={}, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"hello\n")
