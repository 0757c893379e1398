"""A Docker Engine through docker-py: inspect, tag, pull, push, load, run.

Only this module and connection.py, which finds the engine, import docker-py.

Building goes through `docker buildx` instead, because docker-py cannot drive BuildKit
(https://github.com/docker/docker-py/issues/2230).
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker.errors
import requests
from docker.utils import parse_repository_tag

import docker
from torch_images.errors import EngineError, NetworkError, PushError, UsageError
from torch_images.host import tars
from torch_images.host.image_info import ImageInfo, OurImage
from torch_images.host.network import cause
from torch_images.host.refusals import (
    gpu_refusal,
    load_refusal,
    platform_refusal,
    registry_refusal,
)
from torch_images.interrupts import ending
from torch_images.platforms import Platform, of_machine

if TYPE_CHECKING:
    from docker.models.containers import Container
    from docker.models.images import Image

# How often the list of images is asked for. While two threads made and removed images, 42 of 303
# answers were 404, never two in a row.
_LISTINGS = 10


@dataclass(frozen=True)
class ExecResult:
    """How a command in a container ended: exit code, and both streams as one text."""

    code: int
    output: str


class Engine:
    """A Docker Engine: the calls that torch-images needs."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client

    def info(self) -> dict[str, Any]:
        """The engine's answer to `docker info`, asked once."""
        return self._info

    @cached_property
    def _info(self) -> dict[str, Any]:
        answer: dict[str, Any] = self._client.info()
        return answer

    def platform(self) -> Platform:
        """What the engine's machine runs without an emulator."""
        return of_machine(str(self.info().get("Architecture", "")))

    def local_root(self) -> Path | None:
        """The folder of the engine's data; None where it is on another machine."""
        root = Path(self.info()["DockerRootDir"])
        return (
            root if self._client.api.base_url.startswith("http+docker") and root.is_dir() else None
        )

    def inspect(self, image: str) -> ImageInfo:
        """Look an image up by tag or id. Raises UsageError if the engine has not all of it."""
        try:
            model = self._client.images.get(image)
        except (docker.errors.ImageNotFound, docker.errors.NullResource):
            raise UsageError(
                f"the engine has no image '{image}'", "build it first: `invoke build`"
            ) from None
        except docker.errors.APIError as error:
            if error.status_code != HTTPStatus.BAD_REQUEST:
                raise
            hint = "`docker images` lists those that are there"
            raise UsageError(f"'{image}' is not the name of an image", hint) from None
        attrs = model.attrs
        try:
            # Not attrs["Size"], which counts compressed layers and whatever happens to be unpacked.
            size = sum(step["Size"] for step in model.history())
        except docker.errors.NotFound:  # the engine lists an image before its layers are unpacked
            problem = f"'{image}' is not whole: another command loads or removes it"
            raise UsageError(problem, "wait for that command, or load the image again") from None
        return ImageInfo(
            id=attrs["Id"],
            size=size,
            labels=attrs["Config"].get("Labels") or {},
            config=attrs["Config"],
            created=attrs.get("Created", ""),
            layers=tuple(attrs["RootFS"].get("Layers") or ()),
            platform=f"{attrs.get('Os', '')}/{attrs.get('Architecture', '')}",
        )

    def digest(self, image: str) -> str | None:
        """The digest of an image by tag or id; None where the engine does not have it."""
        try:
            return str(self._client.images.get(image).id)
        except docker.errors.ImageNotFound:
            return None

    def tag(self, image: str, repository: str, tag: str) -> None:
        """Point `repository:tag` at an image."""
        self._client.images.get(image).tag(repository, tag)

    def untag(self, reference: str) -> None:
        """Remove a tag if it exists. Layers stay while another tag needs them."""
        with contextlib.suppress(docker.errors.ImageNotFound):
            self._client.images.remove(reference, force=True)

    def tags(self, prefix: str = "") -> tuple[str, ...]:
        """Every tag in the engine that begins with `prefix`."""
        every = {tag for image in self._list() for tag in image.tags}
        return tuple(sorted(tag for tag in every if tag.startswith(prefix)))

    def ours(self, label: str, repository: str) -> tuple[OurImage, ...]:
        """Every image that has `label` or a tag in `repository`."""
        containers = self._client.containers.list(all=True, sparse=True)
        held = {container.attrs["ImageID"] for container in containers}
        images = []
        for image in [*self._list(filters={"label": label}), *self._list(name=repository)]:
            time = str(image.attrs["Metadata"]["LastTagTime"])
            with contextlib.suppress(UsageError, docker.errors.NotFound):  # it goes meanwhile
                images.append(
                    OurImage(
                        id=str(image.id),
                        tags=tuple(image.tags),
                        size=self.inspect(str(image.id)).size,
                        tagged=datetime.fromisoformat(re.sub(r"\.\d+", "", time)),
                        in_use=image.id in held,
                    )
                )
        return tuple(images)

    def _list(self, **options: Any) -> list[Image]:
        """The engine's images, less those that another command removes meanwhile.

        docker-py's own `list` fails on these.
        """
        images = []
        for listed in self._listed(**options):
            with contextlib.suppress(docker.errors.NotFound):  # the image, or a part of its content
                images.append(self._client.images.get(listed["Id"]))
        return images

    def _listed(self, **options: Any) -> list[dict[str, Any]]:
        """The engine's answer to `docker images`, asked again while images go during the answer.

        moby 26.1 with containerd's image store then answers 404 for the whole list.
        """
        for _ in range(_LISTINGS - 1):
            with contextlib.suppress(docker.errors.NotFound):
                return list(self._client.api.images(**options))
        return list(self._client.api.images(**options))

    def version(self) -> str:
        """The engine's version, such as "26.1.5"."""
        return str(self._client.version()["Version"])

    def obtain(self, image: str) -> None:
        """Pull an image that the engine does not have, if its name has a "/".

        Raises UsageError for any other that is missing, or that no registry gives, and
        NetworkError.
        """
        try:
            self.inspect(image)
        except UsageError:
            if "/" not in image:
                raise
            self.pull(image)

    def pull(self, image: str) -> None:
        """Get an image from its registry. Raises NetworkError or UsageError."""
        repository, tag = parse_repository_tag(image)
        try:
            events = self._client.api.pull(
                repository, tag=tag or "latest", stream=True, decode=True
            )
            with contextlib.closing(events):
                for event in events:
                    # What a digest names is right, if the engine has it, whatever went wrong now.
                    if "error" in event and not ("@" in image and self.digest(image)):
                        raise registry_refusal(image, " ".join(str(event["error"]).split()))
        except docker.errors.APIError as error:
            raise _registry_error(image, error) from None
        except requests.RequestException as error:
            raise NetworkError(f"the engine broke off: {cause(error)}", "pull again") from None

    def push(self, reference: str, report: Callable[[Mapping[str, Any]], None]) -> None:
        """Push a tagged image; layers that the registry has are not sent again.

        `report` gets each event of the engine. The credentials are those of Docker's config.json.
        Raises PushError with the words of the registry or of a proxy, UsageError where a credential
        helper fails, and EngineError where the connection to the engine breaks.
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
        """The digest that a registry has for an image.

        Raises NetworkError, and UsageError for an image that no registry gives; with `missing_ok`
        the answer is "" instead.
        """
        try:
            return str(self._client.images.get_registry_data(image).id)
        except docker.errors.APIError as error:
            refusal = _registry_error(image, error)
            if missing_ok and isinstance(refusal, UsageError):
                return ""
            raise refusal from None

    def contents(self, image: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The manifest of an image, and the history in its configuration.

        `image` is the digest of the manifest. The engine's API gives neither, so both are read from
        the stream of `docker save`. This reads the whole image: some GB. Raises EngineError for one
        that was pulled without its layers.
        """
        documents = tars.json_blobs(self._client.api.get_image(image))
        try:
            manifest = documents[image]
            return manifest, documents[manifest["config"]["digest"]]["history"]
        except KeyError:  # where a blob is missing the stream just ends
            raise EngineError(
                f"the engine has not all layers of {image}",
                "build it here; an engine that has its content already pulls it without them "
                "(moby/moby#49784)",
            ) from None

    def layer_sizes(self, image: str) -> tuple[int, ...]:
        """Unpacked bytes of each step of an image's history, the first one first."""
        return tuple(step["Size"] for step in reversed(self._client.images.get(image).history()))

    def save(self, image: str, target: Path) -> None:
        """Write an image to a tar that is also an OCI layout. Blobs stay as they are stored."""
        with target.open("wb") as stream:
            for chunk in self._client.api.get_image(image):
                stream.write(chunk)

    def load(self, archive: Iterable[bytes]) -> None:
        """Load images from a tar that is an OCI layout, and unpack them.

        Blobs that the engine has may be missing from the tar. Raises DiskError or EngineError, and
        whatever iterating over `archive` raises. After an error no image was loaded.
        """
        try:
            events = self._client.api.load_image(iter(archive))  # type: ignore[no-untyped-call]
            for event in events:
                if "error" in event:
                    raise load_refusal(str(event["error"]))
        except docker.errors.APIError as error:
            raise load_refusal(str(error.explanation or error)) from None
        except requests.RequestException as error:
            raise load_refusal(str(error)) from None

    def label_values(self, label: str) -> frozenset[str]:
        """The values of a label on all images of the engine."""
        images = self._listed(filters={"label": label})
        return frozenset(image["Labels"][label] for image in images)

    def run(self, image: str, *command: str, **options: Any) -> ExecResult:
        """`docker run --rm`: start a container, wait for its end, remove it.

        `options` are those of docker-py's `containers.create`. Raises EngineError for an image of
        another processor that nothing emulates.
        """
        with self._created(image, list(command), **options) as container:
            container.start()
            code = container.wait()["StatusCode"]
            output = container.logs().decode(errors="replace")
            if code and (refusal := platform_refusal(output)):
                raise refusal
            return ExecResult(code, output)

    def read_files(self, image: str, folder: str) -> dict[str, str]:
        """The text of every file at or below a path in an image, by file name without folders.

        Raises EngineError if there is no such path.
        """
        with self._created(image, ["true"]) as container:
            try:
                chunks, _ = container.get_archive(folder)
                return tars.texts(chunks)
            except docker.errors.NotFound:
                raise EngineError(f"{image} has no {folder}") from None

    def unpack(self, image: str) -> None:
        """Unpack the layers of an image; a build leaves that out for a foreign platform.

        Only a container does it: it is made, and not started.
        """
        with self._created(image, ["true"]):
            pass

    @contextlib.contextmanager
    def container(self, image: str, **options: Any) -> Iterator[RunningContainer]:
        """Start a container that sleeps; remove it at the end, also after an error.

        `options` are those of docker-py's `containers.create`. Raises EngineError where the engine
        does not give the GPUs that they ask for.
        """
        labels = {"torch-images": "verify"}
        with self._created(image, ["sleep", "infinity"], labels=labels, **options) as created:
            try:
                created.start()
            except docker.errors.APIError as error:
                asked = options.get("device_requests")
                if not asked or not (refusal := gpu_refusal(str(error.explanation or error))):
                    raise
                raise refusal from None
            yield RunningContainer(created)

    @contextlib.contextmanager
    def _created(self, image: str, command: list[str], **options: Any) -> Iterator[Container]:
        """A container that is removed at the end, also after an error and an interruption.

        Its name is known before it is made, so there is no moment in which it could be left.
        """
        name = f"torch-images-{secrets.token_hex(8)}"

        def remove() -> None:
            with contextlib.suppress(docker.errors.NotFound):
                self._client.api.remove_container(name, force=True)

        with ending(remove):
            try:
                yield self._client.containers.create(image, command, name=name, **options)
            finally:
                remove()


class RunningContainer:
    """A started container."""

    def __init__(self, container: Container) -> None:
        self._container = container

    @property
    def id(self) -> str:
        """The container's full id."""
        return str(self._container.id)

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
            chunks: Any = api.exec_start(started["Id"], stream=True)
            # docker-py closes the connection of what it reads at once, and leaves this one open.
            with contextlib.closing(chunks._response):  # noqa: SLF001
                for chunk in chunks:
                    output.append(chunk)
                    if said:
                        said(chunk.decode(errors="replace"))
            code = api.exec_inspect(started["Id"])["ExitCode"]
        except docker.errors.APIError as error:
            if error.status_code != HTTPStatus.CONFLICT:
                raise
            refusal = platform_refusal(self._container.logs().decode(errors="replace"))
            if not refusal:
                raise
            raise refusal from None
        return ExecResult(int(code), b"".join(output).decode(errors="replace"))

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


def _registry_error(image: str, error: docker.errors.APIError) -> NetworkError | UsageError:
    """The error for a registry that gives no image."""
    text = " ".join(str(error.explanation or error).split())
    return registry_refusal(image, text, missing=isinstance(error, docker.errors.NotFound))


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
