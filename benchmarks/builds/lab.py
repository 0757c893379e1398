"""The engine, the project and the plain build, as the rows of the benchmark use them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.releases import T130
from torch_images.build import built
from torch_images.config.load import load_config
from torch_images.fetch.apt import Resolver
from torch_images.fetch.bootstrap import BaseMaker
from torch_images.fetch.packageindex import PackageIndex
from torch_images.fetch.tools import install_tools
from torch_images.host.engine import Engine
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.locks.debs import DebLock
from torch_images.locks.facts import with_facts
from torch_images.locks.files import read
from torch_images.locks.wheels import read_wheels

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "torch-images-plain"
# What plain builds are made of: the base and the wheels of the images beside them.
BASE, WHEELS = "trixie", f"wheel-cu130-torch{T130}-py313"
HERE = Path(__file__).parent
# What is made for all images once, and the same in both ways of building.
_KEPT = ("archive-sets", "bases", "debs", "tools")


@dataclass(frozen=True, kw_only=True)
class Lab:
    """Where it all happens: a copy of the project, and a cache of its own.

    `sides` has the figures of this round's ways to build the same image from nothing, and `order`
    in which order they are measured.
    """

    engine: Engine
    run: Runner
    network: Network
    project: Path
    cache: Path
    sides: dict[str, dict[str, float]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    @property
    def disk(self) -> Path:
        """A folder on the disk that the engine fills."""
        return self.engine.local_root() or Path("/")

    def empty(self) -> None:
        """Forget all that was built, and its verification; bases and programs stay."""
        for name in self.engine.tags("torch-"):  # the plain ones, too
            self.engine.untag(name)
        for image in built.ours(self.cache, self.engine):  # those without a tag
            self.engine.untag(image.id)
        self.run.run(["docker", "buildx", "prune", "--force", "--all"])
        for part in self.cache.iterdir():
            if part.name not in _KEPT:
                shutil.rmtree(part)
        shutil.rmtree(self.project / "build" / "reports", ignore_errors=True)

    def set_up(self) -> None:
        """What ./inv does first: a Python environment, from nothing."""
        shutil.rmtree(self.project / ".venv", ignore_errors=True)
        env = {"PIP_NO_CACHE_DIR": "1", "PYTHONPATH": ""}
        self.run.run([str(self.project / "inv"), "--list"], env=env)

    def new_base(self) -> None:
        """Make the base from nothing, its packages fetched anew."""
        for part in ("bases", "debs"):
            shutil.rmtree(self.cache / part, ignore_errors=True)
        self.base()

    def base(self) -> str:
        """The base as a named context; made where it is not there yet."""
        config = with_facts(load_config(self.project / "images.yaml"), self.project / "locks")
        base = next(b for b in config.bases if b.name == BASE)
        resolver = Resolver(root=self.project, network=self.network, run=self.run)
        lock = read(DebLock, self.project / "locks" / f"base-{BASE}.json")
        return BaseMaker(cache=self.cache, resolver=resolver).base(base, lock).context

    def invoke(self, *words: str) -> str:
        """Run what `./inv` starts in the copy of the project; what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "torch_images", *words],
            cwd=self.project,
            env={
                **os.environ,
                "TORCH_IMAGES_CACHE": str(self.cache),
                "PYTHONPATH": "",
                "PYTHONDONTWRITEBYTECODE": "",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"./inv {' '.join(words)}: {done.stderr[-2000:]}")
        return done.stdout

    def build(self, *words: str, verified: bool = False) -> list[dict[str, Any]]:
        """Build images and start each one; what the build says of them."""
        options = [] if verified else ["--unverified"]
        told = self.invoke("build", *words, *options, "--json")
        found: list[dict[str, Any]] = json.loads(told)["images"]
        for image in found:
            self.start(image["digest"])
        return found

    def build_plain(self) -> str:
        """Build with the plain Dockerfile and start the image; its name."""
        return self._build_with("baseline", [])

    def build_tuned(self) -> str:
        """The same with uv, a cache mount and layers in zstd."""
        workspace = Workspace(
            root=self.project,
            cache=self.cache,
            network=self.network,
            locks=self.project / "locks",
        )
        uv = install_tools("tools-build", workspace, self.run)
        exporter = "--output=type=image,unpack=true,oci-mediatypes=true,compression=zstd"
        return self._build_with("tuned", [f"--build-context=uv={uv}", exporter])

    def _build_with(self, file: str, words: Sequence[str]) -> str:
        """Build with a Dockerfile of this folder, and further words; its name."""
        wheels = read_wheels(self.project / "locks" / f"{WHEELS}.json")
        folder = self.cache.parent / "plain"
        if not folder.exists():
            folder.mkdir(parents=True)
            text = "".join(f"{wheel.line}\n" for wheel in wheels.wheels)
            (folder / "requirements.txt").write_text(text)
            pip = next(w for w in wheels.wheels if w.name == "pip")
            with PackageIndex(self.network) as index:
                index.fetch(pip, folder).rename(folder / "pip.whl")
        name = f"{REPOSITORY}:{file}"
        command = ["docker", "buildx", "build", "--tag", name, f"--file={HERE}/{file}.Dockerfile"]
        command += [
            *words,
            f"--build-context=base={self.base()}",
            f"--build-context=wheels={folder}",
        ]
        if self.network.ca_bundle:
            command.append(f"--secret=id=ca,src={self.network.ca_bundle}")
        if self.network.index:
            command.append("--secret=id=index,env=TORCH_IMAGES_INDEX")
        if self.network.on_loopback:
            command.append("--network=host")
        self.run.run([*command, str(HERE)], env={"TORCH_IMAGES_INDEX": self.network.index or ""})
        self.start(name)
        return name

    def start(self, image: str) -> None:
        """Start a container of an image, to its end."""
        done = self.engine.run(image, "/opt/venv/bin/python", "-c", "pass", entrypoint=[""])
        if done.code:
            raise RuntimeError(f"{image} does not start: {done.output}")

    def packed(self, image: str) -> int:
        """Bytes to pull an image from nothing."""
        command = ["docker", "image", "inspect", image, "--format", "{{.Size}}"]
        return int(self.run.run(command).output)

    def layers(self, digest: str) -> dict[str, int]:
        """Bytes to pull each layer of an image of ours, by digest."""
        with self.engine.blobs(digest) as blob:
            manifest = json.loads(blob(digest).read())
        return {layer["digest"]: layer["size"] for layer in manifest["layers"]}
