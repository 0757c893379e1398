"""Ctrl-C and SIGTERM while a verb works: it ends at once, and leaves nothing running or half made.

Each verb here is a process of its own, which says when it is where no signal used to end it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from subprocess import PIPE
from typing import IO

import pytest

from tests.loopback import serving
from torch_images.errors import LockError
from torch_images.fetch.download import discover
from torch_images.host.network import Network
from torch_images.host.workers import workers
from torch_images.layers import make
from torch_images.layers.plan import LayerPlan
from torch_images.oci.layout import Layer

PATIENCE = 20  # seconds; what waits for its threads never ends
LINE = "interrupted\n"

START = """\
import os, sys, threading
from pathlib import Path
from types import SimpleNamespace
from torch_images import interrupts
interrupts.end_at_once()
interrupts._PATIENCE = 1000.0
from torch_images.cli import program, verb
from torch_images.cli.options import Options
from torch_images.host.workers import workers

def say(text):
    os.write(1, f"{text}\\n".encode())
"""
RUN = """
program.VERBS = {"work": verb.verb(Options, example="")(work)}
sys.exit(program.run(["work"]))
"""

PACKING = """\
from torch_images.host.network import Network
from torch_images.layers import make
from torch_images.layers.plan import LayerPlan

def pack(*_, **__):
    say("packing")
    threading.Event().wait()  # as a compressor, which hears of nothing

def work(_):
    make.write_layer = pack
    plan = LayerPlan(title="x", wheels=(), python="3.11")
    with make.making([[plan]], Path.cwd(), Network()) as layers:
        layers[plan].result()
"""

# What waits for something, called in a thread, or in the main one.
IN_A_THREAD = """\
def call(function, *words):
    with workers(2) as pool:
        pool.submit(function, *words).result()
"""
IN_THE_MAIN_THREAD = """\
def call(function, *words):
    function(*words)
"""
BOTH = pytest.mark.parametrize("call", [IN_A_THREAD, IN_THE_MAIN_THREAD], ids=["thread", "main"])

CHILD = """\
from torch_images.host.runner import Runner

def work(_):
    call(Runner().run, ["sh", "-c", "echo $$ >running; exec sleep 1000"])
"""

STARTING = """\
import signal, subprocess
from torch_images.host.runner import Runner

class Popen(subprocess.Popen):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        say(self.pid)
        signal.raise_signal(signal.SIGTERM)

def work(_):
    subprocess.Popen = Popen
    getattr(Runner(), WAY)(["sleep", "1000"])
"""

FAILING = """\
import signal

def work(_):
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        raise OSError("the engine is gone, too")
"""

CONTAINER = """\
import docker.errors
from torch_images.host.engine import Engine

gone = threading.Event()

def create(_image, _command, name, **_):
    say(f"made {name}")
    return SimpleNamespace(id=name, client=SimpleNamespace(api=api), start=lambda: None)

def check(*_, **__):
    say("checking")
    gone.wait()
    raise docker.errors.NotFound("gone")

def remove(name, force):
    say(f"removing {name}")
    if gone.is_set():
        raise docker.errors.NotFound("gone")
    sys.stdin.readline()
    say("removed")
    gone.set()

api = SimpleNamespace(exec_create=check, remove_container=remove)
engine = Engine(SimpleNamespace(api=api, containers=SimpleNamespace(create=create)))

def verify():
    with engine.container("image") as container:
        container.exec("pytest")

def work(_):
    call(verify)
"""


@contextlib.contextmanager
def verb(work: str, root: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in `folder` that does `work` as a verb."""
    env = {**os.environ, "PYTHONPATH": str(root), "PYTHONUNBUFFERED": ""}
    with subprocess.Popen(
        [sys.executable, "-c", START + work + RUN],
        cwd=folder,
        env=env,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and stderr of a process that ends now."""
    _, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, errors


def test_packing_ends(root: Path, tmp_path: Path) -> None:
    """Ctrl-C waited a minute for the largest layer, and SIGTERM left gigabytes of wheels."""
    with verb(PACKING, root, tmp_path) as process:
        assert process.stdout
        assert process.stdout.readline() == "packing\n"
        process.terminate()
        assert ended(process) == (128 + signal.SIGTERM, LINE)
    assert list((tmp_path / "layers").iterdir()) == []


@BOTH
def test_a_program_that_is_waited_for_ends_too(call: str, root: Path, tmp_path: Path) -> None:
    """It went on by itself; a terminal's Ctrl-C reaches it, SIGTERM does not."""
    os.mkfifo(tmp_path / "running")
    with verb(call + CHILD, root, tmp_path) as process:
        pid = int((tmp_path / "running").read_text())
        process.terminate()
        assert ended(process) == (128 + signal.SIGTERM, LINE)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("way", ["run", "stream"])
def test_a_program_that_is_just_starting_ends_too(way: str, root: Path, tmp_path: Path) -> None:
    """A signal between its start and the wait for it left it running."""
    with verb(f"WAY = {way!r}\n{STARTING}", root, tmp_path) as process:
        assert process.stdout
        pid = int(process.stdout.readline())
        try:
            assert ended(process) == (128 + signal.SIGTERM, LINE)
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_failing_cleanup_changes_neither_code_nor_line(root: Path, tmp_path: Path) -> None:
    """`except` clauses met its error instead of the interruption."""
    with verb(FAILING, root, tmp_path) as process:
        assert ended(process) == (128 + signal.SIGINT, LINE)


@pytest.mark.parametrize(
    ("number", "call"),
    [(signal.SIGINT, IN_THE_MAIN_THREAD), (signal.SIGTERM, IN_A_THREAD)],
    ids=["main", "thread"],
)
def test_interrupt_leaves_no_container(number: int, call: str, root: Path, tmp_path: Path) -> None:
    """`sleep infinity` stayed for good. Further signals do not keep it from being removed."""
    with verb(call + CONTAINER, root, tmp_path) as process:
        assert process.stdout
        assert process.stdin
        name = process.stdout.readline().removeprefix("made ")
        assert process.stdout.readline() == "checking\n"
        process.send_signal(number)
        assert process.stdout.readline() == f"removing {name}"
        for again in (signal.SIGTERM, signal.SIGINT):
            process.send_signal(again)
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline() == "removed\n"
        assert ended(process) == (128 + number, LINE)


def test_an_engine_that_hangs_is_not_waited_for(root: Path, tmp_path: Path) -> None:
    with verb("interrupts._PATIENCE = 0.1\n" + IN_A_THREAD + CONTAINER, root, tmp_path) as process:
        assert process.stdout
        while process.stdout.readline() != "checking\n":
            pass
        process.terminate()
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM


def test_an_error_does_not_wait_for_a_download(tmp_path: Path) -> None:
    """It was told once all others were over: after minutes."""
    began, whole = threading.Event(), threading.Event()

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):  # nobody reads on
                for _ in range(PATIENCE * 20):
                    self.wfile.write(bytes(1 << 18))
                    began.set()
                    time.sleep(0.05)
                whole.set()

    def fail(url: str) -> None:
        with workers(2) as pool:
            pool.submit(discover, f"{url}/x", tmp_path, Network())
            assert began.wait(PATIENCE)
            raise LockError("another one failed")

    with serving(Slow) as url, pytest.raises(LockError, match="another one failed"):
        fail(url)
    assert not whole.is_set()
    assert list(tmp_path.iterdir()) == []


def test_a_layer_that_is_ready_too_late_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it lies in is removed meanwhile, so half of it could get the final name."""
    began, go, threads = threading.Event(), threading.Event(), list[threading.Thread]()

    def write_layer(_: object, __: object, target: IO[bytes], ___: int) -> tuple[Layer, object]:
        threads.append(threading.current_thread())
        began.set()
        go.wait(PATIENCE)
        folder = Path(target._file.name).parent  # type: ignore[attr-defined]
        folder.mkdir(parents=True)  # as if its removal were not over yet
        return Layer(digest="sha256:1", diff_id="sha256:2", size=3), ()

    def break_off() -> None:
        plan = LayerPlan(title="x", wheels=(), python="3.11")
        with make.making([[plan]], tmp_path, Network()):
            assert began.wait(PATIENCE)
            raise KeyboardInterrupt

    monkeypatch.setattr(make, "write_layer", write_layer)
    with pytest.raises(KeyboardInterrupt):
        break_off()
    go.set()
    [thread] = threads
    thread.join(PATIENCE)
    assert [path for path in (tmp_path / "layers").iterdir() if path.name[0] != "."] == []
