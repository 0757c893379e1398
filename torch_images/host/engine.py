"""What an engine is asked, through docker-py: inspect, run, tag.

Only this module and connection.py, which says which engine it is, import docker-py.

Building goes through `docker buildx` instead, because docker-py cannot drive BuildKit
(https://github.com/docker/docker-py/issues/2230).
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker.errors
import requests
from docker.types import DeviceRequest

import docker
from torch_images.errors import DiskError, EngineError, NetworkError, PushError, UsageError
from torch_images.host.network import cause

if TYPE_CHECKING:
    from docker.models.containers import Container
    from docker.models.images import Image

_LARGEST_DOCUMENT = 4_000_000  # bytes; a manifest or configuration is some kilobytes


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


@dataclass(frozen=True, kw_only=True)
class OurImage:
    """An image of ours: unpacked bytes, when it last got a tag, whether a container has it."""

    id: str
    tags: tuple[str, ...]
    size: int
    tagged: datetime
    in_use: bool


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
        except docker.errors.APIError as error:
            if error.status_code != HTTPStatus.BAD_REQUEST:
                raise
            known = "`docker images` lists those that are there"
            raise UsageError(f"'{image}' is not the name of an image", known) from None
        attrs = found.attrs
        return ImageInfo(
            id=attrs["Id"],
            # Not attrs["Size"], which counts compressed layers and whatever happens to be unpacked.
            size=sum(step["Size"] for step in found.history()),
            labels=attrs["Config"].get("Labels") or {},
            config=attrs["Config"],
            created=attrs.get("Created", ""),
            layers=tuple(attrs["RootFS"].get("Layers") or ()),
        )

    def digest(self, image: str) -> str | None:
        """The digest of an image; None where the engine does not have it."""
        try:
            return str(self._client.images.get(image).id)
        except docker.errors.ImageNotFound:
            return None

    def tag(self, image: str, repository: str, tag: str) -> None:
        """Point `repository:tag` at an image."""
        self._client.images.get(image).tag(repository, tag)

    def untag(self, reference: str) -> None:
        """Remove a tag if it exists; layers stay while another tag needs them."""
        with contextlib.suppress(docker.errors.ImageNotFound):
            self._client.images.remove(reference, force=True)

    def tags(self, prefix: str = "") -> tuple[str, ...]:
        """Every tag in the engine that begins with `prefix`."""
        found = {tag for image in self._list() for tag in image.tags}
        return tuple(sorted(tag for tag in found if tag.startswith(prefix)))

    def ours(self, label: str, repository: str) -> tuple[OurImage, ...]:
        """Every image with a label, and every one of a repository."""
        containers = self._client.containers.list(all=True, sparse=True)
        held = {container.attrs["ImageID"] for container in containers}
        found = []
        for image in [*self._list(filters={"label": label}), *self._list(name=repository)]:
            time = str(image.attrs["Metadata"]["LastTagTime"])
            with contextlib.suppress(UsageError, docker.errors.NotFound):  # it goes meanwhile
                found.append(
                    OurImage(
                        id=str(image.id),
                        tags=tuple(image.tags),
                        size=self.inspect(str(image.id)).size,
                        tagged=datetime.fromisoformat(re.sub(r"\.\d+", "", time)),
                        in_use=image.id in held,
                    )
                )
        return tuple(found)

    def _list(self, **options: Any) -> list[Image]:
        """The images of the engine, but for those that go while it lists them.

        docker-py's own list asks for each one, and fails where another command removes one.
        """
        found = []
        for listed in self._client.api.images(**options):
            with contextlib.suppress(docker.errors.ImageNotFound):
                found.append(self._client.images.get(listed["Id"]))
        return found

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

    def push(self, reference: str, report: Callable[[Mapping[str, Any]], None]) -> None:
        """Push a tagged image, all its layers at once; each event of the engine goes to `report`.

        Layers that the registry has are not sent again. Raises PushError with the words of the
        registry, or of what is between; credentials are Docker's own, and in none of them.
        """
        repository, _, tag = reference.rpartition(":")
        try:
            events = self._client.api.push(repository, tag=tag, stream=True, decode=True)
            for event in events:
                if "error" in event:
                    raise PushError(str(event["error"]))
                report(event)
        except docker.errors.APIError as error:
            raise PushError(str(error.explanation or error)) from None
        except docker.errors.DockerException as error:  # a credential helper that fails
            raise UsageError(
                f"no credentials for {repository.partition('/')[0]}: {error}",
                "see credsStore and credHelpers in Docker's config.json",
            ) from None
        except requests.RequestException as error:
            raise EngineError(f"the engine broke off: {error}", "push again") from None

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

    def contents(self, image: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The manifest of an image, by its digest, and the history in its configuration.

        The engine has no word for this: they are picked from the stream of `docker save`, which
        takes as long as it takes to read the image.
        """
        documents: dict[str, Any] = {}
        stream = _Stream(self._client.api.get_image(image))
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                name = member.name.removeprefix("blobs/sha256/")
                if name != member.name and member.size < _LARGEST_DOCUMENT:
                    file = archive.extractfile(member)
                    with contextlib.suppress(ValueError):  # a small layer
                        documents[f"sha256:{name}"] = json.loads(file.read() if file else b"")
        found = documents[image]
        return found, documents[found["config"]["digest"]]["history"]

    def layer_sizes(self, image: str) -> tuple[int, ...]:
        """Unpacked bytes of each step of an image's history, the first one first."""
        return tuple(step["Size"] for step in reversed(self._client.images.get(image).history()))

    def save(self, image: str, target: Path) -> None:
        """Write an image as a tar that is also an OCI layout, its blobs as they are stored."""
        with target.open("wb") as stream:
            for chunk in self._client.api.get_image(image):
                stream.write(chunk)

    def load(self, archive: Iterable[bytes]) -> None:
        """Load images from a tar that is an OCI layout, and unpack them.

        Blobs that the engine has already may be missing from it. Raises DiskError or EngineError,
        and what `archive` itself raises: no image is there then.
        """
        try:
            events = self._client.api.load_image(iter(archive))  # type: ignore[no-untyped-call]
            for event in events:
                if "error" in event:
                    raise _broken_load(str(event["error"]))
        except docker.errors.APIError as error:
            raise _broken_load(str(error.explanation or error)) from None
        except requests.RequestException as error:
            raise _broken_load(str(error)) from None

    def label_values(self, label: str) -> frozenset[str]:
        """The values that a label has on the images of the engine."""
        images = self._list(filters={"label": label})
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
            try:
                created.start()
            except docker.errors.APIError as error:
                if "could not select device driver" not in str(error):
                    raise
                raise EngineError(
                    "the engine cannot give GPUs to containers",
                    "install the NVIDIA Container Toolkit and configure the engine for it: "
                    "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/",
                ) from None
            yield RunningContainer(created)
        finally:
            created.remove(force=True)


class _Stream(io.RawIOBase):
    """Chunks as a file that can only be read on."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._left = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes, as many as asked for unless the stream ends."""
        parts, count = [self._left], len(self._left)
        while count < size and (chunk := next(self._chunks, b"")):
            parts.append(chunk)
            count += len(chunk)
        data = b"".join(parts)
        self._left = data[size:]
        return data[:size]


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


def gpus(words: str) -> dict[str, Any]:
    """Options of a container with GPUs, in the words of `docker run --gpus`; {} for none.

    Raises UsageError for other words than "all", a number, or "device=0,1".
    """
    if not words:
        return {}
    wanted: dict[str, Any] = {"count": -1}
    if re.fullmatch(r"[1-9][0-9]{0,3}", words):
        wanted = {"count": int(words)}
    elif devices := re.fullmatch(r"device=([\w-]+(?:,[\w-]+)*)", words):
        wanted = {"device_ids": devices[1].split(",")}
    elif words != "all":
        raise UsageError(f"--gpus {words} is not a choice of GPUs", "give all, 2, or device=0,1")
    return {"device_requests": [DeviceRequest(**wanted, capabilities=[["gpu"]])]}


def _broken_load(reason: str) -> EngineError | DiskError:
    """The user's view of an engine that does not take an image."""
    if "no space left" in reason:
        return DiskError("the engine's disk is full", "free some with `docker system prune`")
    return EngineError(f"the engine did not take the layers: {reason}", "build again")


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


def of_docker(error: OSError) -> EngineError | None:
    """The user's view of an error of docker-py's, which derive from OSError; None for any other."""
    if isinstance(error, docker.errors.APIError):
        reason = " ".join(str(error.explanation or error).split())
        return EngineError(f"the engine refused: {reason}", "try again, or restart the engine")
    if isinstance(error, requests.ConnectionError | requests.Timeout):
        return EngineError(f"the engine broke off: {cause(error)}", "try again once it runs")
    return None
