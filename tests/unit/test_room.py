"""Room on a full disk: what is removed for the next image, in which order, and what stays."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import T128
from tests.unit.fakes import FakeEngine, FakeRunner, stored, workspace_of
from tests.unit.test_ledger import OLDER, RUNTIME, planned, spec
from torch_images.build.diskspace import disk_needed
from torch_images.build.job import Job, Shown
from torch_images.build.plan import lock_image
from torch_images.config.types import Config
from torch_images.fetch.bootstrap import BaseMaker
from torch_images.host.buildx import Record
from torch_images.host.runner import Runner
from torch_images.layers.parent import PARENT_IMAGES, parent_name
from torch_images.layers.plan import LayerPlan, all_plans
from torch_images.pipeline import room
from torch_images.pipeline.room import loaded_first, make_room

NEWER_BASE = f"cu128-torch{T128}-trixie-runtime"
SIZE = 1000  # bytes of each layer in the cache


class Disk(FakeEngine):
    """An engine on a disk that lacks room while it has more than `enough` parents and layers."""

    def __init__(self, config: Config, root: Path, folder: Path) -> None:
        super().__init__()
        self.config, self.folder = config, folder
        self.enough = 0
        self.log: list[str] = []
        self.runner = FakeRunner()
        self.workspace = workspace_of(folder, folder / "cache", locks=root / "locks")
        self.root = root

    def local_root(self) -> Path:
        return self.folder

    def parents(self) -> str:
        """The digits of the parent images that are left."""
        names = self.tags(f"{PARENT_IMAGES}:")
        return "".join(image.id[-1] for image in self.images if set(image.tags) & set(names))

    def cached(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("cache/layers/[!.]*"))

    def add_parent(self, digit: str, *layers: str) -> None:
        name = parent_name(f"sha256:{digit * 64}")
        self.images.append(stored(digit, name))
        self.layers[name] = layers

    def add_layer(self, key: str, age: int) -> str:
        """A layer in the cache, unused for some seconds. Returns its diff id."""
        folder = self.workspace.cache / "layers" / key
        folder.mkdir(parents=True, exist_ok=True)
        facts = {"digest": f"sha256:{key}", "diff_id": f"diff {key}", "size": SIZE}
        (folder / "layer.json").write_text(json.dumps(facts))
        os.utime(folder, (10**9 - age, 10**9 - age))
        return f"diff {key}"

    def chain(self, name: str, base: str = "") -> list[str]:
        """The diff ids of an image's base and layers, which are then in the cache."""
        layers = [self.add_layer(plan.key, 0) for plan in self.plans(name)]
        return [base or spec(self.config, name).base.name, *layers]

    def job(self) -> Job:
        return Job(
            config=self.config,
            workspace=self.workspace,
            engine=self,
            run=self.runner,
            shown=Shown(say=self.log.append),
        )

    def in_order(self, *names: str) -> list[str]:
        """Images as `loaded_first` has them."""
        specs = [spec(self.config, name) for name in names]
        return [one.id for one in loaded_first(self.job(), specs)]

    def plans(self, name: str) -> list[LayerPlan]:
        one = spec(self.config, name)
        return all_plans(self.config, one, lock_image(self.config, one, self.root / "locks").lock)

    def make_room(self, *later: str, checks: int = 0) -> list[str]:
        """Make room for RUNTIME, before others, with running checks. Returns what was freed."""
        checks_left = [None] * checks

        def wait() -> bool:
            self.log.append("wait")
            return bool(checks_left and checks_left.pop() is None)

        image = planned(self.config, self.root)
        make_room(self.job(), image, [spec(self.config, name) for name in later], wait)
        return [line.partition(";")[0] for line in self.log if line.startswith("freed disk")]


@pytest.fixture
def disk(config: Config, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """With two parent images that no image starts from."""
    engine = Disk(config, root, tmp_path)
    engine.workspace.cache.mkdir()
    for name in ("docker", "scripts"):
        (tmp_path / name).symlink_to(root / name)
    engine.add_parent("b")
    engine.add_parent("c")
    monkeypatch.setattr(BaseMaker, "layer", lambda _, base, __: base.name)
    usage = shutil.disk_usage(tmp_path)

    def free() -> int:
        return 0 if len(engine.parents()) + len(engine.cached()) > engine.enough else 10**15

    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free()))
    return engine


def layers_of(disk: Disk) -> None:
    """Three layers in the cache, of which the next image needs the oldest."""
    disk.add_layer("2" * 64, 0)
    disk.add_layer("1" * 64, 1)
    disk.add_layer(disk.plans(RUNTIME)[0].key, 2)


def test_nothing_goes_while_there_is_room(disk: Disk) -> None:
    disk.enough = 2
    assert disk.make_room() == []
    assert disk.parents() == "bc"


def test_parent_images_go_before_layers(disk: Disk) -> None:
    """No more than the disk needs: here one, of two that no container uses."""
    layers_of(disk)
    derived = stored("9", "torch-images-parent:mine", **{"io.github.torch-images.id": "x"})
    disk.images.append(derived)
    disk.enough = 5
    assert disk.make_room() == [
        "freed disk: 1 parent images, 0 entries of BuildKit's cache, 0 layers"
    ]
    assert len(disk.cached()) == 3
    assert derived in disk.images


def test_a_parent_image_stays_until_no_later_image_starts_from_it(disk: Disk) -> None:
    """The engine takes half a minute to unpack one again. The last one's goes first."""
    own, later = disk.chain(RUNTIME), disk.chain(OLDER)
    disk.images.clear()
    disk.add_parent("1", *own[:3])
    disk.add_parent("2", *later)
    disk.add_parent("3", *later[:2])
    disk.add_parent("4", own[0], *reversed(own[1:]))
    disk.add_parent("5", *disk.chain(RUNTIME, "another base"))
    disk.enough = len(disk.cached()) + 3
    disk.make_room(OLDER)
    assert disk.parents() == "123"
    disk.enough -= 2
    disk.make_room(OLDER)
    assert disk.parents() == "1"
    disk.enough = 0
    disk.make_room(OLDER)
    assert disk.parents() == "1"


def test_images_whose_parents_are_there_come_first(disk: Disk) -> None:
    """With those of the same libraries. The end of one run serves the start of the next.

    The last check is a short one: that of a plain image for one architecture.
    """
    wide, pod = RUNTIME.replace("sm120-", ""), RUNTIME.replace("sm120", "sm90")[:-7] + "pod"
    names = (RUNTIME, wide, pod, NEWER_BASE, OLDER)
    disk.add_parent("1", *disk.chain(RUNTIME)[:1])
    disk.add_parent("2", *disk.chain(RUNTIME), "more")
    assert disk.in_order(*names) == [OLDER, NEWER_BASE, wide, pod, RUNTIME]
    disk.add_parent("3", *disk.chain(NEWER_BASE))
    assert disk.in_order(*names) == [NEWER_BASE, OLDER, wide, pod, RUNTIME]
    disk.add_parent("4", *disk.chain(RUNTIME))
    assert disk.in_order(*names) == [NEWER_BASE, RUNTIME, wide, pod, OLDER]


def test_layers_go_the_longest_unused_first(disk: Disk) -> None:
    """Those of the image itself stay, and everybody's build cache."""
    layers_of(disk)
    disk.enough = 2
    assert disk.make_room() == [
        "freed disk: 2 parent images, 0 entries of BuildKit's cache, 1 layers"
    ]
    assert "1" * 64 not in disk.cached()
    assert len(disk.cached()) == 2
    disk.enough = 0
    disk.make_room()
    assert disk.cached() == [disk.plans(RUNTIME)[0].key]
    assert not [command for command in disk.runner.commands if "prune" in command]


def test_layers_of_later_images_go_last(disk: Disk) -> None:
    """Those of the last image first."""
    layers_of(disk)
    own, soon = disk.plans(RUNTIME)[0].key, disk.plans(OLDER)[0].key
    late = disk.plans(NEWER_BASE)[0].key
    for age, key in enumerate((late, soon)):
        disk.add_layer(key, 3 + age)
    disk.enough = 3
    disk.make_room(OLDER, NEWER_BASE)
    assert set(disk.cached()) == {own, soon, late}
    disk.enough = 2
    disk.make_room(OLDER, NEWER_BASE)
    assert set(disk.cached()) == {own, soon}


def test_buildkits_cache_of_parent_images_goes_before_layers(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records pin their layers: 50 GB stayed after all parent images were removed."""
    disk.add_parent("1", *disk.chain(RUNTIME)[:2])
    disk.add_parent("2", *disk.chain(OLDER))

    def prune(ids: Collection[str], _: Runner) -> None:
        assert disk.parents() == "12"
        disk.log.append(f"pruned {sorted(ids)}")
        disk.enough = 100

    step = Record("b", ("a",), "mount / from exec /bin/sh -c /run/build/create-venv")
    monkeypatch.setattr(room, "cache_records", lambda _: (step,))
    monkeypatch.setattr(room, "forget", prune)
    assert disk.make_room(OLDER) == [
        "freed disk: 2 parent images, 2 entries of BuildKit's cache, 0 layers"
    ]
    assert "pruned ['a', 'b']" in disk.log
    assert disk.parents() == "12"


def test_checks_are_awaited_before_layers_go(disk: Disk) -> None:
    """Until the last has ended."""
    layers_of(disk)
    disk.enough = 2
    disk.make_room(checks=2)
    assert disk.log.count("wait") == 3
    assert len(disk.cached()) == 2


@pytest.mark.parametrize("missing", [0, 1])
def test_a_copy_in_the_cache_needs_no_more_room(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    plans = disk.plans(RUNTIME)
    for plan in plans:
        disk.add_layer(plan.key, 0)
    whole = disk_needed(disk.config, [planned(disk.config, disk.root)])
    free = whole + 2_000_000_000 - len(plans) * SIZE - missing
    usage = shutil.disk_usage(disk.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
    disk.make_room()
    assert disk.parents() == ("" if missing else "bc")


def test_layers_count_as_unpacked_where_a_parent_image_has_them(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in the cache were taken for unpacked, so nothing was removed, and the disk filled up."""
    image = planned(disk.config, disk.root)
    plans = disk.plans(RUNTIME)
    own = disk.chain(RUNTIME)
    asked: list[Collection[str]] = []

    def needed(config: Config, images: Any, there: Collection[str] = ()) -> int:
        asked.append(there)
        return disk_needed(config, images, there)

    monkeypatch.setattr(room, "disk_needed", needed)
    disk.make_room()
    disk.add_parent("1", *own[:2])
    disk.add_parent("2", "another base", *own[1:])
    disk.make_room()
    assert asked == [(), set(), (), {plans[0].key}]
    usage = shutil.disk_usage(disk.folder)
    less = disk_needed(disk.config, [image], {plans[0].key})
    assert less < disk_needed(disk.config, [image])
    for_checks = less + 2_000_000_000
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=for_checks))
    disk.add_parent("b")
    disk.make_room()
    assert disk.parents() == "1b"
