"""Stand-ins: a runner that starts nothing, verbs in this process, an image on a registry's base."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

from tests.servers import web_server
from torch_images.build.plan import ImagePlan, plan_images
from torch_images.cli import program
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import CommandError, EngineError
from torch_images.host.container import OurContainer
from torch_images.host.engine import Engine
from torch_images.host.image_info import ImageInfo, ListedImage, OurImage
from torch_images.host.network import Network
from torch_images.host.runner import Completed, Runner
from torch_images.host.workspace import Workspace

INV = "/x/torch_images/__main__.py"  # how ./inv starts Python
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


class FakeRunner(Runner):
    """Records commands; answers with what `answers` says for the first words of each."""

    def __init__(self, answers: Mapping[str, tuple[int, str]] | None = None) -> None:
        self.commands: list[list[str]] = []
        self.answers = dict(answers or {})

    def run(self, command: Sequence[str], **options: Any) -> Completed:
        self.commands.append(list(command))
        line = " ".join(command)
        code, output = next((a for k, a in self.answers.items() if line.startswith(k)), (0, ""))
        if code and options.get("check", True):
            raise CommandError(line, code, output)
        return Completed(code, output)


def git(folder: Path, *words: str, **environment: str) -> str:
    """The output of git in a repository."""
    command = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@t", *words]
    env = {**os.environ, **environment}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    return done.stdout.strip()


def plan_of(config: Config, root: Path, **axes: str) -> ImagePlan:
    """The image with these axes, rendered."""
    [planned] = plan_images(config, [choose(config, **axes)], root, root / "locks")
    return planned


def workspace_of(root: Path, cache: Path, **more: Path) -> Workspace:
    """The folders of a build, with the locks of its root, and no network."""
    given = {"locks": root / "locks", **more}
    return Workspace(root=root, cache=cache, network=Network(), **given)


def stored(digit: str, *tags: str, **labels: str) -> ListedImage:
    """An image whose digest is one digit 64 times."""
    return ListedImage(id=f"sha256:{digit * 64}", tags=tags, labels=labels)


class FakeEngine(Engine):
    """An engine with images, all tagged long ago. An image goes with its last name, or by its id.

    `layers` are the diff ids of images by name.
    """

    def __init__(self, *images: ListedImage, in_use: Sequence[str] = (), name: str = "one") -> None:
        self.images, self.name, self.in_use = list(images), name, in_use
        self.containers: list[OurContainer] = []
        self.layers: dict[str, tuple[str, ...]] = {}

    def id(self) -> str:
        return self.name

    def local_root(self) -> Path | None:
        return None

    def listed(self) -> tuple[ListedImage, ...]:
        return tuple(self.images)

    def details(self, images: Iterable[ListedImage]) -> tuple[OurImage, ...]:
        return tuple(
            OurImage(
                id=i.id,
                tags=i.tags,
                size=9,
                tagged=LONG_AGO,
                in_use=i.id in self.in_use,
                labels=i.labels,
            )
            for i in images
        )

    def inspect(self, image: str) -> ImageInfo:
        layers = self.layers.get(image, ())
        return ImageInfo(id=image, size=0, labels={}, config={}, created="", layers=layers)

    def digest(self, image: str) -> str | None:
        return next((i.id for i in self.images if image in (i.id, *i.tags)), None)

    def tag(self, image: str, repository: str, tag: str) -> None:
        name, digest = f"{repository}:{tag}", self.digest(image)
        for at, one in enumerate(self.images):
            tags = [tag for tag in one.tags if tag != name]
            tags += [name] if one.id == digest else []
            self.images[at] = replace(one, tags=tuple(tags))

    def own_containers(self) -> tuple[OurContainer, ...]:
        return tuple(self.containers)

    def remove_container(self, name: str) -> None:
        self.containers = [one for one in self.containers if one.id != name]

    def untag(self, reference: str, *, force: bool = True) -> bool:
        left = []
        for one in self.images:
            tags = tuple(tag for tag in one.tags if tag != reference)
            if one.id != reference and (tags or not one.tags):
                left.append(replace(one, tags=tags))
        if not force and {i.id for i in self.images} - {i.id for i in left} & {*self.in_use}:
            return False
        self.images = left
        return True


@dataclass(frozen=True)
class VerbResult:
    """How a verb ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def invoke(root: Path, *words: str, name: str = "invoke", **environment: str) -> VerbResult:
    """Run a command line as `torch-images` does, but in this process."""
    images = {"TORCH_IMAGES_CONFIG": str(root / "images.yaml")}
    env = {**os.environ, "NO_COLOR": "1", **images, **environment}
    env.pop("TORCH_IMAGES_SETUP", None)
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(root),
        mock.patch.dict(os.environ, env, clear=True),
        mock.patch.object(sys, "argv", [name, *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", ResourceWarning)
        code = program.run(words)
        if code == EngineError.exit_code:
            gc.collect()  # sockets that a process leaves to its end
    return VerbResult(code, out.getvalue(), err.getvalue())


def axes(words: Sequence[str]) -> dict[str, str]:
    """The values of axes that the options of a build name."""
    given, left = {}, list(words)
    if "--compat" in left:
        left.remove("--compat")
        given["compat"] = "with"
    pairs = zip(left[::2], left[1::2], strict=True)
    return given | {name.removeprefix("--"): value for name, value in pairs}


def run_verb(
    root: Path, config: Path, pages: Mapping[str, bytes], *words: str, **more: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a verb in a process, with an images.yaml and an index; also the requests to the index."""
    with web_server(pages) as (url, paths):
        env = {
            **os.environ,
            "NO_COLOR": "1",
            "UV_DEFAULT_INDEX": f"{url}/simple",
            "UV_PYTHON_INSTALL_MIRROR": f"{url}/pythons",
            "TORCH_IMAGES_CONFIG": str(config),
            "TORCH_IMAGES_CACHE": str(config.parent / "cache"),
            **more,
        }
        env.pop("TORCH_IMAGES_LOCKS", None)
        done = subprocess.run(
            [sys.executable, "-m", "invoke", *words],
            cwd=root,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
    return done, paths


# A python3 that ./inv finds: it creates an environment, and in there stands for pip, which installs
# uv, and for uv. Each of these two adds a line to the file `used`: its name, the file with its
# packages, and its settings. The one in FAILS says SAID and fails.
PYTHON = """#!/bin/sh
for last; do :; done
case "$*" in
  -P*) exit ;;
  *ensurepip*) echo pip.whl; exit ;;
  *--without-pip*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; exit ;;
  pip.whl/pip*) tool=pip; cp "$0" .venv/bin/uv ;;
  *) tool=uv ;;
esac
echo $tool $last $PIP_INDEX_URL $UV_DEFAULT_INDEX $UV_INDEX $PIP_CERT $SSL_CERT_FILE >>used
[ "$FAILS" != $tool ] || { printf '%s\\n' "$SAID"; exit 1; }
"""
