from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios

import pytest

from torch_images.errors import CommandError, TorchImagesError
from torch_images.host.runner import Runner


def test_run_raises_a_command_that_can_be_repeated() -> None:
    with pytest.raises(CommandError) as caught:
        Runner().run(["sh", "-c", "echo 'two words' >&2; exit 3"])
    again = subprocess.run(caught.value.command, shell=True, capture_output=True, check=False)
    assert again.returncode == caught.value.code == 3
    assert caught.value.output == "two words\n"


def test_run_and_stream_of_a_missing_program() -> None:
    with pytest.raises(
        TorchImagesError, match="'no-such-program' is not installed; install it; in a"
    ):
        Runner().run(["no-such-program"])
    with pytest.raises(
        TorchImagesError, match="'no-such-program' is not installed; install it; in a"
    ):
        Runner().stream(["no-such-program"])


def test_stream_shows_and_keeps(capfd: pytest.CaptureFixture[str]) -> None:
    done = Runner().stream(["sh", "-c", "echo out; echo err >&2; exit 4"])
    assert (done.code, done.output) == (4, "out\nerr\n")
    assert capfd.readouterr().err == "out\nerr\n"


def test_stream_gives_the_command_a_terminal() -> None:
    code = (
        "from torch_images.host.runner import Runner\n"
        "done = Runner().stream(['sh', '-c', 'test -t 1 && test -t 2 && stty size <&1'])\n"
        "raise SystemExit(done.output.strip() != '40 100')"
    )
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 100))
    child = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, stdin=theirs)
    os.close(theirs)
    assert child.wait() == 0
    os.close(ours)
