"""Runs the commands of testinfra in a container by one `docker exec` that stays."""

from __future__ import annotations

import base64
import json
import subprocess
from types import TracebackType
from typing import Any, Self

from testinfra.backend.base import CommandResult
from testinfra.backend.docker import DockerBackend

# Runs in the container, by its system's Python. Each line is a command, as JSON. Each gets a shell
# of its own as `docker exec` would start one, with the variables that Docker gave, before Python
# added its own. It is answered on a line: exit code and output.
_SERVER = """
import base64, json, subprocess, sys
with open("/proc/self/environ", "rb") as file:
    given = dict(pair.split(b"=", 1) for pair in file.read().split(b"\\0") if b"=" in pair)
for line in sys.stdin:
    done = subprocess.run(
        ["/bin/sh", "-c", json.loads(line)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=given,
    )
    both = (base64.b64encode(text).decode() for text in (done.stdout, done.stderr))
    print(json.dumps([done.returncode, *both]), flush=True)
"""


class OneExec(DockerBackend):  # type: ignore[misc]  # mypy has no types of it
    """A running container, by its id.

    Docker takes a tenth of a second to start a process in a container, on two busy processors. The
    suite starts more than a hundred. So Docker starts one only, which starts the others.
    """

    def __init__(self, container: str) -> None:
        super().__init__(container)
        self._process = subprocess.Popen(
            ["docker", "exec", "-i", container, "/usr/bin/python3", "-I", "-B", "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, command: str, *args: str, **_: Any) -> CommandResult:
        """Run a command of a shell. Raises RuntimeError where the container gives no answer."""
        words = self.get_command(command, *args)
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(f"{json.dumps(words)}\n")
            stdin.flush()
            answer = stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError("/usr/bin/python3 does not run in the container, or ended early")
        code, out, err = json.loads(answer)
        return self.result(code, words, base64.b64decode(out), base64.b64decode(err))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()
