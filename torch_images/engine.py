"""The only module that imports docker (docker-py): inspect, run, tag.

Building goes through `docker buildx` instead, because docker-py cannot drive BuildKit
(https://github.com/docker/docker-py/issues/2230).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker.errors
import requests

import docker
from torch_images.errors import EngineError, NetworkError, UsageError

if TYPE_CHECKING:
    from docker.models.containers import Container

MINIMUM = (25, 0)  # the first release in which the containerd image store is not experimental


@dataclass(frozen=True, kw_only=True)
class ImageInfo:
    """What the engine knows of an image; `size` is the unpacked size in bytes.

    `layers` are the digests of the unpacked layers, the lowest first.
    """

    id: str
    size: int
    labels: Mapping[str, str]
    config: Mapping[str, Any]
    created: str
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExecResult:
    """How a command in a container ended; both streams together."""

    code: int
    output: str


class Engine:
    """A Docker Engine that can do what torch-images needs."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client

    def info(self) -> dict[str, Any]:
        """The engine's answer to `docker info`."""
        found: dict[str, Any] = self._client.info()
        return found

    def local_root(self) -> Path | None:
        """Where the engine keeps its data, if that is on this machine."""
        root = Path(self.info()["DockerRootDir"])
        return (
            root if self._client.api.base_url.startswith("http+docker") and root.is_dir() else None
        )

    def inspect(self, image: str) -> ImageInfo:
        """Look an image up by tag or id. Raises UsageError when the engine does not have it."""
        try:
            found = self._client.images.get(image)
        except (docker.errors.ImageNotFound, docker.errors.NullResource):
            raise UsageError(
                f"the engine has no image '{image}'", "build it first: invoke build"
            ) from None
        attrs = found.attrs
        return ImageInfo(
            id=attrs["Id"],
            # Not attrs["Size"], which counts compressed layers and whatever happens to be unpacked.
            size=sum(step["Size"] for step in found.history()),
            labels=attrs["Config"].get("Labels") or {},
            config=attrs["Config"],
            created=attrs["Created"],
            layers=tuple(attrs["RootFS"].get("Layers") or ()),
        )

    def tag(self, image: str, repository: str, tag: str) -> None:
        """Point `repository:tag` at an image."""
        self._client.images.get(image).tag(repository, tag)

    def untag(self, reference: str) -> None:
        """Remove a tag if it exists; layers stay while another tag needs them."""
        with contextlib.suppress(docker.errors.ImageNotFound):
            self._client.images.remove(reference, force=True)

    def tags(self, prefix: str = "") -> tuple[str, ...]:
        """Every tag in the engine that begins with `prefix`."""
        found = {tag for image in self._client.images.list() for tag in image.tags}
        return tuple(sorted(tag for tag in found if tag.startswith(prefix)))

    def untagged(self, label: str) -> tuple[str, ...]:
        """The ids of images with a label that have lost all their tags to newer builds."""
        found = self._client.images.list(filters={"dangling": True, "label": label})
        return tuple(sorted(str(image.id) for image in found))

    def version(self) -> str:
        """The engine's version, such as "26.1.5"."""
        return str(self._client.version()["Version"])

    def obtain(self, image: str) -> None:
        """Make sure that the engine has an image: pull what names a registry and is not there.

        Raises NetworkError or UsageError.
        """
        try:
            self.inspect(image)
        except UsageError:
            if "/" not in image:
                raise
            self.pull(image)

    def pull(self, image: str) -> None:
        """Get an image from its registry. Raises NetworkError or UsageError."""
        try:
            self._client.images.pull(image)
        except docker.errors.APIError as error:
            raise _registry_error(image, error) from None

    def registry_digest(self, image: str, *, missing_ok: bool = False) -> str:
        """The digest that a registry has for an image; "" for none, where that is allowed.

        Raises NetworkError or UsageError.
        """
        try:
            return str(self._client.images.get_registry_data(image).id)
        except docker.errors.APIError as error:
            found = _registry_error(image, error)
            if missing_ok and isinstance(found, UsageError):
                return ""
            raise found from None

    def save(self, image: str, target: Path) -> None:
        """Write an image as a tar that is also an OCI layout, its blobs as they are stored."""
        with target.open("wb") as stream:
            for chunk in self._client.api.get_image(image):
                stream.write(chunk)

    def label_values(self, label: str) -> frozenset[str]:
        """The values that a label has on the images of the engine."""
        images = self._client.images.list(filters={"label": label})
        return frozenset(image.labels[label] for image in images)

    def run(self, image: str, *command: str, **options: Any) -> ExecResult:
        """`docker run --rm`: start, wait, and return exit code and output."""
        container = self._client.containers.create(image, list(command), **options)
        try:
            container.start()
            code = container.wait()["StatusCode"]
            return ExecResult(code, container.logs().decode(errors="replace"))
        finally:
            container.remove(force=True)

    def read_files(self, image: str, folder: str) -> dict[str, str]:
        """The text of every file at or below a path of an image, by the file's own name.

        Raises EngineError if there is no such path.
        """
        container = self._client.containers.create(image, ["true"])
        try:
            chunks, _ = container.get_archive(folder)
            with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
                files = [(member, archive.extractfile(member)) for member in archive]
                return {
                    member.name.rpartition("/")[2]: file.read().decode()
                    for member, file in files
                    if file
                }
        except docker.errors.NotFound:
            raise EngineError(f"{image} has no {folder}") from None
        finally:
            container.remove(force=True)

    @contextlib.contextmanager
    def container(self, image: str, **options: Any) -> Iterator[RunningContainer]:
        """A container that idles, to look into; removed at the end, whatever happens."""
        created = self._client.containers.create(
            image, ["sleep", "infinity"], labels={"torch-images": "verify"}, **options
        )
        try:
            created.start()
            yield RunningContainer(created)
        finally:
            created.remove(force=True)


class RunningContainer:
    """A started container."""

    def __init__(self, container: Container) -> None:
        self._container = container

    @property
    def id(self) -> str:
        """The container's full id."""
        return str(self._container.id)

    def exec(self, *command: str, env: Mapping[str, str] | None = None) -> ExecResult:
        """Run a command in it, as root, to its end."""
        done = self._container.exec_run(list(command), environment=dict(env or {}), user="0")
        output = done.output
        assert isinstance(output, bytes)
        assert done.exit_code is not None
        return ExecResult(done.exit_code, output.decode(errors="replace"))

    def put(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Write files below an existing folder, readable by all; also works on a remote engine."""
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                member.mode = 0o644
                archive.addfile(member, io.BytesIO(data))
        self._container.put_archive(folder, stream.getvalue())

    def read(self, path: str) -> bytes:
        """The content of a file in it. Raises EngineError if there is none."""
        try:
            chunks, _ = self._container.get_archive(path)
        except docker.errors.NotFound:
            raise EngineError(f"the container has no file {path}") from None
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            found = archive.extractfile(archive.next())  # type: ignore[arg-type]
            assert found is not None
            return found.read()


def connect() -> Engine:
    """The engine that the docker CLI would use.

    Raises EngineError when none answers, when it is too old, and when it lacks the containerd
    image store, without which neither zstd layers nor image digests exist before a push.
    """
    host = os.environ.get("DOCKER_HOST") or _context_host()
    try:
        client = docker.DockerClient(base_url=host, timeout=600) if host else docker.from_env()
        version = client.version()
    except (docker.errors.DockerException, requests.RequestException) as error:
        reason = "permission denied" if "Permission denied" in str(error) else "no answer"
        raise EngineError(
            f"no Docker Engine at {host or 'the default socket'}: {reason}",
            "start it, or run this through ./inv, which sets one up",
        ) from None
    number = str(version["Version"])
    if tuple(int(part) for part in number.split(".")[:2] if part.isdigit()) < MINIMUM:
        raise EngineError(
            f"Docker Engine {number} is too old", f"{MINIMUM[0]}.{MINIMUM[1]} or newer is needed"
        )
    engine = Engine(client)
    if ["driver-type", "io.containerd.snapshotter.v1"] not in engine.info()["DriverStatus"]:
        raise EngineError(
            "the engine's containerd image store is off",
            'add "features": {"containerd-snapshotter": true} to /etc/docker/daemon.json and '
            "restart it",
        )
    return engine


def _registry_error(image: str, error: docker.errors.APIError) -> NetworkError | UsageError:
    """The user's view of a registry that gives no image."""
    text = " ".join(str(error.explanation or error).split())
    if isinstance(error, docker.errors.NotFound) or re.search(
        r"not found|manifest unknown|denied|no such (?!host)", text
    ):
        return UsageError(f"no registry gives {image}: {text}", "check its name, or `docker login`")
    return NetworkError(
        f"the registry of {image} could not be asked: {text}", "check network, proxy and login"
    )


def _context_host() -> str | None:
    """The address of the CLI's current context (`docker context use`)."""
    context = docker.ContextAPI.get_current_context()
    host = context.Host if context else None
    return str(host) if host else None
