"""A started container of a Docker Engine, through docker-py: run commands, write and read files.

engine.py starts it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, Any

import docker.errors

from torch_images.errors import EngineError
from torch_images.host import tars
from torch_images.host.diagnose import FOREIGN, diagnose

if TYPE_CHECKING:
    from docker.models.containers import Container


BLOBS = "/torch-images-blobs"  # where containers have the engine's blobs, see Engine.blobs
# The labels of each container that this program creates: that it did, and which process.
LABEL, PROCESS = "torch-images", "torch-images.process"
_FOREIGN = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class OurContainer:
    """A container that this program created; `process` is its host and process id."""

    id: str
    name: str
    process: str
    created: datetime

    def abandoned(self) -> bool:
        """Whether its process has ended; of other machines', whether it is older than a day."""
        host, _, number = self.process.rpartition(":")
        if host != socket.gethostname():
            return datetime.now(UTC) - self.created > _FOREIGN
        try:
            os.kill(int(number), 0)
        except OSError as error:  # or another user's
            return isinstance(error, ProcessLookupError)
        return False


def this_process() -> str:
    """This process, as in the label PROCESS."""
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True)
class ExecResult:
    """The result of a command in a container: exit code, and both streams as one text."""

    code: int
    output: str


class RunningContainer:
    """A started container."""

    def __init__(self, container: Container) -> None:
        self._container = container

    @property
    def id(self) -> str:
        """The container's full id."""
        return str(self._container.id)

    def exec(
        self, *command: str, env: Mapping[str, str] | None = None, user: str = "0"
    ) -> ExecResult:
        """Run a command in the container, as root or another user, and wait for its end.

        Raises EngineError for an image of another processor without an emulator: its container ends
        at once.
        """
        client = self._container.client
        assert client is not None
        api = client.api
        try:
            started = api.exec_create(
                self.id, list(command), environment=dict(env or {}), user=user
            )
            chunks: Any = api.exec_start(started["Id"], stream=True)
            # docker-py leaves the connection of a stream open.
            with contextlib.closing(chunks._response):  # noqa: SLF001
                output = b"".join(chunks)
            code = api.exec_inspect(started["Id"])["ExitCode"]
        except docker.errors.APIError as error:
            if error.status_code != HTTPStatus.CONFLICT:
                raise
            problem = diagnose(FOREIGN, self._container.logs().decode(errors="replace"))
            raise problem or error from None
        return ExecResult(code, output.decode(errors="replace"))

    def processor_seconds(self) -> float:
        """Seconds of processor that all processes of the container have used so far."""
        client = self._container.client
        assert client is not None
        answer = client.api.stats(self.id, stream=False, one_shot=True)
        return float(answer["cpu_stats"]["cpu_usage"]["total_usage"]) / 1e9

    def put(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Write files, readable by all, into an existing folder. Works with remote engines too."""
        self._container.put_archive(folder, tars.pack(files))

    def read(self, path: str) -> bytes:
        """The content of a file in the container. Raises EngineError if there is none."""
        try:
            chunks, _ = self._container.get_archive(path)
        except docker.errors.NotFound:
            raise EngineError(f"the container has no file {path}") from None
        return tars.first_file(chunks).read()


def read_blob(container: Container, digest: str) -> IO[bytes]:
    """A blob below BLOBS as a forward-only file. Raises EngineError if there is none."""
    try:
        chunks, _ = container.get_archive(f"{BLOBS}/{digest.removeprefix('sha256:')}")
    except docker.errors.NotFound:
        raise EngineError(f"the engine has no blob {digest}") from None
    return tars.first_file(chunks)
