"""Commands that run at the same time in one clone."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.fakes import FakeRunner, workspace_of
from torch_images.build import build as building
from torch_images.build import built
from torch_images.build.bake import Parts
from torch_images.build.job import BuildOptions, Job, Shown
from torch_images.build.plan import LockedImage, lock_images
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.fetch.bootstrap import ReadyBase
from torch_images.host.engine import Engine
from torch_images.host.runner import Completed
from torch_images.host.scratch import LOCK_FILE
from torch_images.host.workspace import Workspace
from torch_images.pipeline import make as pipeline

PATIENCE = 20  # seconds until a test gives up; nothing here takes one


@pytest.fixture
def workspace(root: Path, tmp_path: Path) -> Workspace:
    return workspace_of(root, tmp_path, made=tmp_path)


@pytest.fixture
def images(config: Config, workspace: Workspace) -> tuple[LockedImage, ...]:
    specs = [choose(config, cuda=cuda) for cuda in ("12.8", "13.0")]
    return lock_images(config, specs, workspace.locks)


class Baking(FakeRunner):
    """A bake that reads its files once `both` builds have written theirs."""

    def __init__(self, both: threading.Barrier) -> None:
        super().__init__()
        self.both, self.read = both, list[str]()

    def stream(self, command: Sequence[str], **_: Any) -> Completed:
        self.both.wait(PATIENCE)
        [file] = [word.removeprefix("--file=") for word in command if word.startswith("--file=")]
        assert Path(file).with_name(LOCK_FILE).exists()  # `gc` leaves it while the build lives
        targets = json.loads(Path(file).read_text())["target"]
        for name, target in targets.items():
            first = Path(target["context"], "Dockerfile").read_text().splitlines()[0]
            self.read.append(f"{name}: {first}")
        self.both.wait(PATIENCE)
        digests = {name: {"containerimage.digest": "sha256:1"} for name in targets}
        Path(command[command.index("--metadata-file") + 1]).write_text(json.dumps(digests))
        return Completed(0, "")


def test_each_build_reads_its_own_files(
    config: Config,
    images: tuple[LockedImage, ...],
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bake file with a fixed name was the other build's, or gone, when bake read it."""

    def ready(_: Job, images: Sequence[LockedImage]) -> Any:
        base = ReadyBase(layout=Path("/b"), digest="sha256:2")
        return {i.target: Parts(base=base) for i in images}

    monkeypatch.setattr(building, "prepare_inputs", ready)
    monkeypatch.setattr(building, "install_tools", lambda *_: Path("/tools"))
    monkeypatch.setattr("torch_images.build.job.is_remote", lambda *_: False)
    monkeypatch.setattr(built, "note", lambda *_: None)
    engine = SimpleNamespace(
        platform=lambda: images[0].spec.platform,
        inspect=lambda _: SimpleNamespace(id="sha256:1", size=1, labels={}),
    )
    both = threading.Barrier(2)
    runs = [Baking(both) for _ in images]

    def build(image: LockedImage, run: Baking) -> None:
        job = Job(
            config=config,
            workspace=workspace,
            engine=cast("Engine", engine),
            run=run,
            options=BuildOptions(skip_disk_check=True),
        )
        building.build(job, [image])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(build, images, runs))
    assert [run.read for run in runs] == [
        [f"{i.target}: # torch-images {i.spec.id}"] for i in images
    ]
    assert list(workspace.output.iterdir()) == []


def job_of(config: Config, workspace: Workspace, say: Callable[[str], None] = print) -> Job:
    return Job(
        config=config,
        workspace=workspace,
        engine=cast("Engine", None),
        run=FakeRunner(),
        shown=Shown(say=say),
    )


def test_a_second_build_of_an_image_waits_for_the_first(
    config: Config,
    images: tuple[LockedImage, ...],
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both would move its candidate tag: the one that ends first takes it from the other."""
    begun, waits, events = threading.Event(), threading.Event(), list[str]()

    def build(*_: object, **__: object) -> tuple[()]:
        events.append("begins")
        begun.set()
        waits.wait(PATIENCE)
        events.append("ends")
        return ()

    def say(text: str) -> None:
        events.append(text)
        waits.set()

    monkeypatch.setattr(pipeline, "build", build)

    def make(*locked: LockedImage) -> None:
        pipeline.make(job_of(config, workspace, say), locked)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(make, *images)
        begun.wait(PATIENCE)
        second = pool.submit(make, images[1])
        first.result()
        second.result()
    waiting = f"another build of {images[1].spec.id} is running here: waiting for it"
    assert events == ["begins", waiting, "ends", "begins", "ends"]


def test_two_builds_wait_for_images_in_one_order(
    config: Config, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would wait for what the other has, for good."""
    waits: list[str] = []

    @contextlib.contextmanager
    def alone(path: Path, _: object) -> Iterator[None]:
        waits.append(path.name)
        yield

    monkeypatch.setattr(pipeline, "alone", alone)
    monkeypatch.setattr(pipeline, "build", lambda *_, **__: ())
    locked = [SimpleNamespace(spec=SimpleNamespace(id=f"x{number}")) for number in range(9)]
    pipeline.make(job_of(config, workspace), cast("Sequence[LockedImage]", locked[::-1]))
    assert waits == [f".x{number}.lock" for number in range(9)]
