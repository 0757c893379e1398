"""How containers start: the command becomes the process, shells get what it gets, users decide."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.integration.support import Built, facts, quiet, running
from torch_images.build.render import CONSTRAINTS
from torch_images.host.engine import Engine
from torch_images.locks.constraints import VARIABLES

# The environment of whatever runs it, and whether torch has the profile, as one line.
CODE = """import json, os, torch
tf32 = torch.backends.cuda.matmul.allow_tf32
print(json.dumps({**os.environ, "tf32": tf32}))"""
SHOW = f"python -c '{CODE}'"


@pytest.fixture(scope="module")
def image(built: Built) -> str:
    return built.digest


WAITS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
print("ready", flush=True)
while True: signal.pause()
"""


def test_signal_reaches_the_command(image: str) -> None:
    with running(image, "python", "-c", WAITS) as name:
        subprocess.run(["docker", "kill", "--signal=TERM", name], check=True, capture_output=True)
        done = subprocess.run(["docker", "wait", name], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "42"


TRAINS = """
import os, signal, sys, time, torch
from torch.utils.data import DataLoader
def save(*_):
    time.sleep(1)  # workers that got the signal have ended by now
    torch.save({}, "/tmp/checkpoint.pt")
    sys.exit(0 if os.path.getsize("/tmp/checkpoint.pt") else 1)
signal.signal(signal.SIGTERM, save)
for n, _ in enumerate(DataLoader(range(10**7), num_workers=2)):
    if n == 0:
        print("ready", flush=True)
"""


@pytest.mark.parametrize(
    "command", [("python", "-c", TRAINS), ("bash", "-c", 'true; python -c "$0"', TRAINS)]
)
def test_docker_stop_lets_a_training_with_workers_save(
    image: str, command: tuple[str, ...]
) -> None:
    """Other signals, ten times: tests/programs/test_signals.py."""
    with running(image, *command) as name:
        subprocess.run(["docker", "stop", "--time=60", name], check=True, capture_output=True)
        done = subprocess.run(["docker", "wait", name], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "0"


def test_command_replaces_the_entrypoint(image: str, engine: Engine) -> None:
    """Nothing stays between PID 1 and the command, and nothing else runs."""
    code = (
        "import os; print(os.getppid(), sorted(int(p) for p in os.listdir('/proc') if p.isdigit()) "
        "== [1, os.getpid()], open('/proc/1/comm').read().strip())"
    )
    done = engine.run(image, "python", "-c", code, **facts())
    assert done.output.splitlines()[-1] == "1 True tini"


REAPS = """
import os, time
read, write = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:  # an orphan as soon as its parent ends
        os.write(write, str(os.getpid()).encode())
    os._exit(0)
os.wait()
orphan = os.read(read, 20).decode()
deadline = time.monotonic() + 60
while os.path.exists(f"/proc/{orphan}") and time.monotonic() < deadline:
    os.sched_yield()
print(os.path.exists(f"/proc/{orphan}"))
"""


def test_orphans_are_reaped(image: str, engine: Engine) -> None:
    assert engine.run(image, "python", "-c", REAPS, **facts()).output.splitlines()[-1] == "False"


def test_segments_are_expandable_where_processes_can_share_them(image: str, engine: Engine) -> None:
    """Docker's seccomp profile denies pidfd_getfd without SYS_PTRACE, and torch needs it then."""
    code = "import os, torch; print(os.environ.get('PYTORCH_ALLOC_CONF'))"
    for more, value in (
        ({}, "None"),
        ({"user": "12345"}, "None"),
        ({"ipc_mode": "host"}, "None"),
        ({"cap_add": ["SYS_PTRACE"]}, "expandable_segments:True"),
    ):
        assert engine.run(image, "python", "-c", code, **{**quiet(), **more}).output == f"{value}\n"


@pytest.mark.parametrize("more", [{"init": True}, {"pid_mode": "host"}], ids=str)
def test_tini_does_not_warn_and_reaps_where_it_is_not_process_1(
    image: str, engine: Engine, more: dict[str, object]
) -> None:
    done = engine.run(image, "python", "-c", REAPS, **{**quiet(), **more})
    assert (done.code, done.output) == (0, "False\n")


@pytest.mark.parametrize("entrypoint", ["python", "/usr/bin/python3"])
def test_replaced_entrypoint_breaks_nothing(image: str, engine: Engine, entrypoint: str) -> None:
    done = engine.run(image, "-c", "print(6 * 7)", entrypoint=[entrypoint], **facts())
    assert (done.code, done.output) == (0, "42\n")


SHELLS = {
    "no shell": ("python", "-c", CODE),
    "bash script": ("bash", "-c", SHOW),
    "bash of sshd": ("env", "-i", "SSH_CLIENT=1", "PATH=/usr/bin:/bin", "bash", "-c", SHOW),
    "bash login": ("bash", "-lc", SHOW),
    "sh login": ("sh", "-lc", SHOW),
    "login without any environment": ("env", "-i", "bash", "-lc", SHOW),
}


@pytest.mark.parametrize("user", ["0", "1000:1000"])
@pytest.mark.parametrize("shell", SHELLS)
def test_shells_get_what_the_command_gets(resting: str, shell: str, user: str) -> None:
    command = ["docker", "exec", "--user", user, resting, *SHELLS[shell]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    environment = json.loads(done.stdout)
    assert environment["tf32"] is True
    assert "PYTORCH_ALLOC_CONF" not in environment  # Docker's containers cannot share such memory
    assert environment["PATH"].split(":")[0] == "/opt/venv/bin"
    assert {environment[name] for name in VARIABLES} == {CONSTRAINTS}
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_login_shell_may_be_the_command(image: str, engine: Engine, shell: str) -> None:
    """/etc/profile has replaced the PATH that the entrypoint had."""
    done = engine.run(image, shell, "-lc", SHOW, **quiet())
    assert done.code == 0, done.output
    environment = json.loads(done.output)
    assert environment["PATH"].split(":")[0] == "/opt/venv/bin"
    assert environment["tf32"] is True


def test_bash_on_a_terminal_too(resting: str) -> None:
    command = ["docker", "exec", "--interactive", resting, "bash", "-i"]
    done = subprocess.run(
        command, input=f"{SHOW}\nexit\n", capture_output=True, text=True, check=True
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    assert json.loads(line)["tf32"] is True


@pytest.fixture(scope="module")
def resting(image: str) -> Iterator[str]:
    """A container that does nothing."""
    with running(image, "sh", "-c", "echo ready; exec sleep infinity") as name:
        yield name
