"""A started container of a Docker Engine, through docker-py: run commands, put files in, read them.

engine.py starts it. How an answer becomes one line, where it is not as expected, is here, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import docker.errors
import requests

from torch_images.errors import EngineError, shown
from torch_images.host import tars
from torch_images.host.network import cause
from torch_images.host.refusals import platform_refusal
from torch_images.jsondoc import MalformedError, member

if TYPE_CHECKING:
    from docker.models.containers import Container


@dataclass(frozen=True)
class ExecResult:
    """How a command in a container ended: exit code, and both streams as one text."""

    code: int
    output: str


@contextlib.contextmanager
def understood() -> Iterator[None]:
    """Make one line of an answer that is not what the engine's API says."""
    try:
        yield
    except (ValueError, RecursionError, docker.errors.StreamParseError) as error:
        raise EngineError(
            f"the engine's answer cannot be understood: {shown(' '.join(str(error).split()))}",
            "see whether `docker version` names a Docker Engine",
        ) from None


@contextlib.contextmanager
def read_by_docker() -> Iterator[None]:
    """Raise MalformedError for an answer that docker-py itself reads, and trips over."""
    try:
        yield
    except (docker.errors.DockerException, OSError):
        raise
    except Exception as error:  # noqa: BLE001  it raises whatever comes of it
        raise MalformedError(f"{type(error).__name__}: {error}") from None


class RunningContainer:
    """A started container."""

    def __init__(self, container: Container) -> None:
        self._container = container

    @property
    def id(self) -> str:
        """The container's full id."""
        return str(self._container.id)

    @understood()
    def exec(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        said: Callable[[str], None] | None = None,
    ) -> ExecResult:
        """Run a command in the container as root, and wait for its end.

        `said` gets its output as it comes. Raises EngineError for an image of another processor
        that nothing emulates: its container ends at once.
        """
        client, output = self._container.client, []
        assert client is not None
        api = client.api
        try:
            started = api.exec_create(self.id, list(command), environment=dict(env or {}), user="0")
            execution = member(started, "Id", kind=str)
            chunks: Any = api.exec_start(execution, stream=True)
            # docker-py closes the connection of what it reads at once, and leaves this one open.
            with contextlib.closing(chunks._response):  # noqa: SLF001
                for chunk in chunks:
                    output.append(chunk)
                    if said:
                        said(chunk.decode(errors="replace"))
            code = member(api.exec_inspect(execution), "ExitCode", kind=int)
        except docker.errors.APIError as error:
            if error.status_code != HTTPStatus.CONFLICT:
                raise
            with read_by_docker():
                refusal = platform_refusal(self._container.logs().decode(errors="replace"))
            if not refusal:
                raise
            raise refusal from None
        return ExecResult(code, b"".join(output).decode(errors="replace"))

    def put(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Write files, readable by all, into an existing folder. A remote engine will do, too."""
        self._container.put_archive(folder, tars.pack(files))

    def read(self, path: str) -> bytes:
        """The content of a file in the container. Raises EngineError if there is none."""
        try:
            chunks, _ = self._container.get_archive(path)
        except docker.errors.NotFound:
            raise EngineError(f"the container has no file {path}") from None
        return tars.first_file(chunks)


def of_docker(error: OSError) -> EngineError | None:
    """The user's view of an error of docker-py's or requests'; None for any other.

    Both derive theirs from OSError.
    """
    if isinstance(error, docker.errors.APIError):
        reason = " ".join(str(error.explanation or error).split())
        return EngineError(f"the engine refused: {reason}", "try again, or restart the engine")
    if isinstance(error, requests.ConnectionError | requests.Timeout):
        return EngineError(f"the engine broke off: {cause(error)}", "try again once it runs")
    return None
