"""A Docker Engine through docker-py: inspect, tag, load, run.

Only this module, container.py and connection.py, which finds the engine, import docker-py.

Building goes through `docker buildx` instead, because docker-py cannot drive BuildKit
(https://github.com/docker/docker-py/issues/2230).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import cached_property, partial
from http import HTTPStatus
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import docker.errors
import requests
from docker.types import Mount

import docker
from torch_images.errors import EngineError, UsageError
from torch_images.host import tars
from torch_images.host.container import (
    BLOBS,
    LABEL,
    PROCESS,
    ExecResult,
    OurContainer,
    RunningContainer,
    read_blob,
    this_process,
)
from torch_images.host.diagnose import FOREIGN, GPU, LOAD, diagnose, refusal
from torch_images.host.image_info import (
    ImageInfo,
    ListedImage,
    OurImage,
    image_info,
    listed_image,
)
from torch_images.interrupts import ending
from torch_images.platforms import Platform, of_machine

if TYPE_CHECKING:
    from docker.models.containers import Container

# Attempts to list the images. While two threads built and removed images, 42 of 303 answers were
# 404, never two in a row.
_LISTINGS = 10


class Engine:
    """A Docker Engine: the calls that this project needs."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client

    @property
    def _api(self) -> Any:
        return self._client.api

    @cached_property
    def _info(self) -> dict[str, Any]:
        return dict(self._api.info())

    def id(self) -> str:
        """The unique id of the engine, which lasts as long as its data."""
        return str(self._info["ID"])

    def platform(self) -> Platform:
        """The platform that the engine's machine runs without an emulator."""
        return of_machine(self._info["Architecture"])

    def processors(self) -> int:
        """The number of processors of the engine's machine."""
        return int(self._info["NCPU"])

    def uses_containerd(self) -> bool:
        """Whether containerd's image store is on."""
        driver = ["driver-type", "io.containerd.snapshotter.v1"]
        return driver in (self._info.get("DriverStatus") or ())

    def local_root(self) -> Path | None:
        """The folder of the engine's data; None for an engine on another machine."""
        root = Path(self._info["DockerRootDir"])
        return root if self._api.base_url.startswith("http+docker") and root.is_dir() else None

    def inspect(self, image: str) -> ImageInfo:
        """Look an image up by tag or id. Raises UsageError if the engine lacks any part of it."""
        try:
            answer = self._api.inspect_image(image)
        except (docker.errors.ImageNotFound, docker.errors.NullResource):
            raise UsageError(
                f"the engine has no image '{image}'", "build it first: `invoke build`"
            ) from None
        except docker.errors.APIError as error:
            if error.status_code != HTTPStatus.BAD_REQUEST:
                raise
            hint = "`docker images` lists the names"
            raise UsageError(f"'{image}' is not the name of an image", hint) from None
        return image_info(answer, self._size(image))

    def _size(self, image: str) -> int:
        """The unpacked bytes of an image.

        Unlike the engine's "Size", which counts compressed layers and those that happen to be
        unpacked.
        """
        try:
            return sum(step["Size"] for step in self._api.history(image))
        except docker.errors.NotFound:  # the engine lists an image before its layers are unpacked
            problem = f"'{image}' is incomplete: another command is loading or removing it"
            raise UsageError(problem, "wait for that command, or load the image again") from None

    def digest(self, image: str) -> str | None:
        """The digest of an image by tag or id; None if the engine does not have it."""
        try:
            return str(self._api.inspect_image(image)["Id"])
        except docker.errors.ImageNotFound:
            return None

    def tag(self, image: str, repository: str, tag: str) -> None:
        """Point `repository:tag` at an image."""
        self._api.tag(image, repository, tag)

    def untag(self, reference: str, *, force: bool = True) -> bool:
        """Remove a tag if it exists. Layers stay as long as another tag needs them.

        Without `force`, the last tag of an image that a container uses stays. Returns whether the
        tag is gone.
        """
        with contextlib.suppress(docker.errors.ImageNotFound):
            try:
                self._api.remove_image(reference, force=force)
            except docker.errors.APIError as error:
                if force or error.status_code != HTTPStatus.CONFLICT:
                    raise
                return False
        return True

    def tags(self, prefix: str = "") -> tuple[str, ...]:
        """Every tag in the engine that begins with `prefix`."""
        every = {tag for image in self.listed() for tag in image.tags}
        return tuple(sorted(tag for tag in every if tag.startswith(prefix)))

    def listed(self) -> tuple[ListedImage, ...]:
        """Every image of the engine, of this project or not.

        Asks again if an image is removed meanwhile: moby 26.1 with containerd's image store then
        answers 404 for the whole list.
        """
        for _ in range(_LISTINGS - 1):
            with contextlib.suppress(docker.errors.NotFound):
                return tuple(map(listed_image, self._api.images()))
        return tuple(map(listed_image, self._api.images()))

    def details(self, images: Iterable[ListedImage]) -> tuple[OurImage, ...]:
        """Inspect each image; skip those that vanished or are incomplete."""
        in_use = {container.get("ImageID") for container in self._api.containers(all=True)}
        details = []
        for image in images:
            with contextlib.suppress(UsageError, docker.errors.NotFound):
                tagged = self._api.inspect_image(image.id)["Metadata"]["LastTagTime"]
                details.append(
                    OurImage(
                        **vars(image),
                        size=self._size(image.id),
                        tagged=datetime.fromisoformat(tagged),
                        in_use=image.id in in_use,
                    )
                )
        return tuple(details)

    def own_containers(self) -> tuple[OurContainer, ...]:
        """The containers that this program created, in any process."""
        return tuple(
            OurContainer(
                id=each["Id"],
                name=each["Names"][0].removeprefix("/"),
                process=each["Labels"].get(PROCESS, ""),
                created=datetime.fromtimestamp(each["Created"], UTC),
            )
            for each in self._api.containers(all=True, filters={"label": f"{LABEL}=verify"})
        )

    def remove_container(self, name: str) -> None:
        """Remove a container by name or id, if it exists."""
        with contextlib.suppress(docker.errors.NotFound):
            self._api.remove_container(name, force=True)

    @contextlib.contextmanager
    def blobs(self, image: str) -> Iterator[Callable[[str], IO[bytes]]]:
        """Open blobs by digest as forward-only files: the manifest of an image, its layers.

        The API cannot give a single blob, and the stream of `docker save` has all layers of the
        image: 66 seconds of processor for 2.4 GB. So containerd's folder of blobs is mounted
        read-only into a container that never starts. Raises EngineError if it is not where Docker
        or Debian has it, or lacks a blob.
        """
        docker_root = self._info["DockerRootDir"]
        for root in (f"{docker_root}/containerd/daemon", "/var/lib/containerd"):
            folder = f"{root}/io.containerd.content.v1.content/blobs/sha256"
            mount = Mount(BLOBS, folder, type="bind", read_only=True)
            with contextlib.ExitStack() as stack:
                try:
                    container = stack.enter_context(self._created(image, "true", mounts=[mount]))
                except docker.errors.APIError:  # there is no such folder
                    continue
                yield partial(read_blob, container)
                return
        raise EngineError("the engine's blobs are in an unknown folder")

    def load(self, archive: Iterable[bytes]) -> None:
        """Load images from a tar that is an OCI layout, and unpack them.

        The tar may lack blobs that the engine has. Raises DiskError or EngineError, and whatever
        iterating over `archive` raises. After an error no image is loaded.
        """
        try:
            events = self._api.load_image(iter(archive))
            for event in events:
                if problem := event.get("error"):
                    raise refusal(LOAD, str(problem))
        except docker.errors.APIError as error:
            raise refusal(LOAD, str(error.explanation or error)) from None
        except requests.RequestException as error:
            raise refusal(LOAD, str(error)) from None

    def run(self, image: str, *command: str, **options: Any) -> ExecResult:
        """`docker run --rm`: start a container, wait for its end, remove it.

        The output has all of stderr before stdout: the engine does not keep the order of the two.
        `options` are those of docker-py's `containers.create`. Raises EngineError for an image of
        another processor without an emulator.
        """
        with self._created(image, *command, **options) as container:
            container.start()
            code = container.wait()["StatusCode"]
            streams = (container.logs(stdout=out, stderr=not out) for out in (False, True))
            output = b"".join(streams).decode(errors="replace")
            if code and (problem := diagnose(FOREIGN, output)):
                raise problem
            return ExecResult(code, output)

    def read_files(self, image: str, folder: str) -> dict[str, str]:
        """The text of every file at or below a path in an image, by file name without folders.

        Raises EngineError if there is no such path.
        """
        with self._created(image, "true") as container:
            try:
                chunks, _ = container.get_archive(folder)
                return tars.texts(chunks)
            except docker.errors.NotFound:
                raise EngineError(f"{image} has no {folder}") from None

    def unpack(self, image: str) -> None:
        """Unpack the layers of an image, which a build does not do for a foreign platform.

        Only creating a container does it; the container is not started.
        """
        with self._created(image, "true"):
            pass

    @contextlib.contextmanager
    def container(self, image: str, **options: Any) -> Iterator[RunningContainer]:
        """Start a container that sleeps; remove it at the end, also after an error.

        `options` are those of docker-py's `containers.create`. Raises EngineError if the engine
        cannot provide the requested GPUs.
        """
        with self._created(image, "sleep", "infinity", **options) as created:
            try:
                created.start()
            except docker.errors.APIError as error:
                if not options.get("device_requests"):
                    raise
                raise diagnose(GPU, str(error.explanation or error)) or error from None
            yield RunningContainer(created)

    @contextlib.contextmanager
    def _created(self, image: str, *command: str, **options: Any) -> Iterator[Container]:
        """A container that is removed at the end, also after an error or an interruption.

        Its name is known before it is created, so it cannot be left behind at any moment.
        """
        name = f"torch-images-{secrets.token_hex(8)}"
        options |= {"name": name, "labels": {LABEL: "verify", PROCESS: this_process()}}
        with ending(lambda: self.remove_container(name)):
            try:
                yield self._client.containers.create(image, list(command), **options)
            finally:
                self.remove_container(name)
