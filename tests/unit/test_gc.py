"""What goes and what stays, by age and size; images are in tests/integration/test_push.py."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.fakes import LONG_AGO, FakeEngine, FakeRunner, invoke, stored, workspace_of
from torch_images.build import built
from torch_images.cli import verb
from torch_images.host.buildx import cache_records
from torch_images.host.cache import Part, keep, mark, used
from torch_images.host.container import OurContainer, this_process
from torch_images.host.engine import Engine
from torch_images.host.image_info import ListedImage, OurImage
from torch_images.host.scratch import scratch
from torch_images.host.workspace import Workspace
from torch_images.layers.parent import parent_name
from torch_images.maintain.gc import (
    Item,
    abandoned,
    cache,
    containers,
    images,
    leftovers,
    own_steps,
    remove,
    staying,
    surplus,
)
from torch_images.verify.reproduce import original

NOW = datetime(2026, 11, 21, tzinfo=UTC)
NO_ENGINE = cast("Engine", None)
BASE = f"bases/bookworm-{'b' * 16}"
TOOL = f"tools/tools-build-{'c' * 16}"
DEB = f"debs/{'d' * 64}.deb"


def item(name: str, size: int, days: float) -> Item:
    return Item(name=name, size=size, used=NOW - timedelta(days=days))


def names(items: Any) -> list[str]:
    return [one.name for one in items]


DU = """\
ID:		top
Parent:		mid
Created at:	2026-11-28 12:05:30.489876225 +0000 UTC
Mutable:	false
Size:		1.926GB
Description:	mount / from exec /bin/sh -c /run/build/compile-wheels
Type:		regular

ID:		mid
Parents:	low,other
Type:		regular

ID:		low
Type:		regular

ID:		last
Parent:		top
Description:	[runtime 4/4] WORKDIR /workspace

ID:		compiled
Parent:		low
Description:	mount / from exec /bin/sh -c /run/source/build-wheel torch /run/tree

ID:		headers
Parent:		low
Description:	mount / from exec /bin/sh -c cp --recursive --symbolic-link /opt/venv/include/. /usr/local/cuda/include/

ID:		objects
Description:	cached mount /run/compile-cache from exec /bin/sh -c /run/source/build-wheel torch /run/tree with id "/torch-images-compile"
Type:		exec.cachemount

ID:		bytecode
Description:	cached mount /run/bytecode from exec /bin/sh -c /run/build/create-venv /usr/bin/python3.13 with id "/torch-images-bytecode"
Type:		exec.cachemount

ID:		wheels
Description:	cached mount /run/wheels-cache from exec /bin/sh -c /run/build/install-wheels /run/wheels.txt with id "/torch-images-wheels"
Type:		exec.cachemount

ID:		theirs
Parent:		other
Description:	mount / from exec /bin/sh -c make

ID:		image
Type:		regular

Reclaimable:	31.61GB
Total:		35.16GB
"""
# buildx 0.29 gives each parent a line.
NEWER_DU = re.sub(
    r"^Parents?:\s+(.+)$",
    lambda line: "Parents:\n" + "\n".join(f" - {name}" for name in line[1].split(",")),
    DU,
    flags=re.MULTILINE,
)


@pytest.mark.parametrize("listed", [DU, NEWER_DU])
def test_own_steps_leave_what_takes_hours_and_other_projects(listed: str) -> None:
    """They go with what they alone build on, and gigabytes of fetched wheels.

    All images share the bytecode, and it was compiled again after each time. A step that compiles
    goes, but not what its compilers left.
    """
    records = cache_records(FakeRunner({"docker buildx du": (0, listed)}))
    gone = {"last", "top", "mid", "wheels", "compiled", "headers", "low"}
    assert own_steps(records) == gone


def test_surplus_at_its_limits() -> None:
    month = NOW - timedelta(days=30)
    assert surplus([item("a", 1, 30)], month) == ()
    late = Item(name="b", size=1, used=month - timedelta(microseconds=1))
    assert names(surplus([late], month)) == ["b"]
    items = [item("new", 40, 1), item("old", 10, 2)]
    assert surplus(items, month, 50) == ()
    assert names(surplus(items, month, 49)) == ["old"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache with a base, a tool and a package, all of long ago."""
    for name in (BASE, TOOL):
        (tmp_path / name).mkdir(parents=True)
        mark(tmp_path / name).touch()
        (tmp_path / name / "file").write_bytes(b"x" * 10)
    (tmp_path / f"{BASE}.lock").touch()
    (tmp_path / "debs").mkdir()
    (tmp_path / DEB).write_bytes(b"x" * 5)
    (tmp_path / "unknown").mkdir()
    for path in (*tmp_path.glob("*/*"),):
        os.utime(path, (10**9, 10**9))
    return tmp_path


def test_cache_items_by_last_use(folder: Path) -> None:
    assert [(i.name, i.size) for i in cache(folder)] == [
        (BASE, 10),
        (DEB, 5),
        (TOOL, 10),
    ]
    used(folder / TOOL)
    used(folder / DEB)
    gone = surplus(cache(folder), datetime.now(UTC) - timedelta(days=1))
    assert names(gone) == [BASE]
    assert (folder / TOOL).stat().st_mtime == 10**9


def test_other_files_in_the_cache_stay(folder: Path) -> None:
    """TORCH_IMAGES_CACHE may name a home with such folders, and links to a larger disk."""
    for name in ("pytorch", "mine.deb", ".hidden", f".{'e' * 16}", "db-2026010112000000"):
        (folder / "bases" / name).mkdir()
    (folder / "bases" / f"x-{'1' * 16}").symlink_to(folder / "debs")
    assert names(cache(folder)) == [BASE, DEB, TOOL]


def test_cache_item_in_creation_stays(folder: Path) -> None:
    with (folder / f"{BASE}.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        assert names(remove(cache(folder), NO_ENGINE)) == [DEB, TOOL]
    assert (folder / BASE / "file").exists()


def test_remove_by_two_processes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    target = tmp_path / "there"
    assert keep(tmp_path / "one", target) == keep(tmp_path / "two", target) == target
    assert (target / "one").exists()
    assert mark(target).exists()
    with pytest.raises(FileNotFoundError):
        keep(tmp_path / "nothing", tmp_path / "nowhere" / "x")


@pytest.mark.parametrize("part", Part)
def test_partial_download_goes_after_an_hour(tmp_path: Path, part: str) -> None:
    """It stayed for --older, a month: some GB of a wheel."""
    workspace = workspace_of(tmp_path, tmp_path)
    (tmp_path / part).mkdir()
    for name, minutes in ((".partial-abcd_123", 61), (".partial-new45678", 59), (".partial", 61)):
        (tmp_path / part / name).write_bytes(b"x" * 7)
        then = datetime.now(UTC).timestamp() - minutes * 60
        os.utime(tmp_path / part / name, (then, then))
    items = abandoned(workspace)
    assert [(i.name, i.size) for i in items] == [(f"{tmp_path}/{part}/.partial-abcd_123", 7)]
    assert cache(tmp_path) == ()
    assert list(remove(items, NO_ENGINE)) == list(items)
    assert sorted(path.name for path in (tmp_path / part).iterdir()) == [
        ".partial",
        ".partial-new45678",
    ]


HALF = ".bookworm-abcd_123"


def test_scratch_of_a_killed_process_goes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it was made; what a living one makes stays, however old it looks."""
    room = tmp_path / "room"
    monkeypatch.setenv("TMPDIR", str(room))
    workspace = workspace_of(tmp_path, tmp_path / "c")
    places = [room, workspace.cache, *(workspace.cache / part for part in Part)]
    for place in places:
        place.mkdir(parents=True)
        with scratch(place, ".bookworm-") as path:
            shutil.copytree(path, place / HALF)  # with the file that nobody holds any more
            os.utime(path, (10**9, 10**9))
            assert [Path(i.name) for i in abandoned(workspace)] == [place / HALF]
            assert cache(workspace.cache) == ()
            assert list(remove(abandoned(workspace), NO_ENGINE))
            assert not (place / HALF).exists()
            item = Item(name="x", size=0, used=LONG_AGO, path=path)  # dead when it was listed
            assert list(remove([item], NO_ENGINE)) == []
            assert path.exists()


LABELS = {
    "io.github.torch-images.id": "cu130-sm120-torch2.14.1-trixie-devel",
    "io.github.torch-images.torch": "2.14.1",
    "org.opencontainers.image.version": "2.14.1-sm120-devel-0123456789ab",
}
BUILT = stored("1", "torch-cu130:sm120", **LABELS)
NEW = ("torch-images-candidate:new", "torch-cu130:sm120")
OTHER = stored("2", "torch-cu130:latest", **LABELS)
PARENT = stored("3", parent_name("sha256:" + "3" * 64))


def noted(folder: Path, engine: FakeEngine) -> Workspace:
    """A workspace that has built the first image of an engine."""
    built.note(folder, engine, BUILT.id)
    return workspace_of(folder, folder)


@pytest.mark.parametrize("tags", [(), ("torch-images-candidate:cu130", "mine:1")])
def test_images_omit_derived_images(tmp_path: Path, tags: tuple[str, ...]) -> None:
    """FROM and `docker commit` hand on all labels; `gc --images` would remove it at once."""
    labels = {"io.github.torch-images.id": "cu130", "io.github.torch-images.lock": "sha256:0"}
    derived = stored("4", *tags, **labels)
    engine = FakeEngine(BUILT, PARENT, derived)
    workspace = noted(tmp_path, engine)
    assert {image.id for image in built.ours(tmp_path, engine)} == {BUILT.id, PARENT.id}
    items = [*images(tmp_path, engine), *leftovers(workspace, engine, datetime.now(UTC))]
    assert [item.image for item in remove(items, engine)] == [BUILT.id, PARENT.id]
    assert engine.images == [derived]


@pytest.mark.parametrize(
    "name", ["mine:3", "torch-cu130:sm120-before-upgrade", "torch-images-keep:prod"]
)
def test_images_keep_user_tags(tmp_path: Path, name: str) -> None:
    """`gc` takes all names of an image that goes, so a name of the user's would go with it."""
    tags = (LABELS["org.opencontainers.image.version"], "sm120-devel", "2.14-sm120-devel", "latest")
    given = [f"{where}torch-cu130:{tag}" for where in ("", "ghcr.io/me/") for tag in tags]
    own = replace(BUILT, tags=(*BUILT.tags, "torch-images-candidate:x", *given))
    engine = FakeEngine(own)
    noted(tmp_path, engine)
    assert [item.image for item in images(tmp_path, engine, "ghcr.io/me")] == [BUILT.id]
    engine.tag(BUILT.id, *name.rsplit(":", 1))
    assert images(tmp_path, engine, "ghcr.io/me") == ()
    [line] = staying(tmp_path, engine, "ghcr.io/me")
    assert line.endswith(f"{name}: it has a name that this project did not give it")


def test_images_keep_those_in_use(tmp_path: Path) -> None:
    engine = FakeEngine(BUILT, in_use=[BUILT.id])
    noted(tmp_path, engine)
    assert images(tmp_path, engine) == ()
    assert staying(tmp_path, engine) == ("torch-cu130:sm120: a container uses it",)


@pytest.mark.parametrize("name", ["mine:3", "torch-images-keep:prod"])
def test_an_image_that_is_named_after_the_listing_stays(tmp_path: Path, name: str) -> None:
    """It went by its id, with the new name; its candidate's name may go."""
    engine = FakeEngine(replace(BUILT, tags=NEW))
    workspace = noted(tmp_path, engine)
    [image], [candidate] = images(tmp_path, engine), leftovers(workspace, engine, LONG_AGO)
    engine.tag(BUILT.id, *name.rsplit(":", 1))
    assert list(remove([image, candidate], engine)) == [candidate]
    assert engine.images[0].tags == (NEW[1], name)


def test_an_image_that_a_container_uses_after_the_listing_stays(tmp_path: Path) -> None:
    """Also one that is created in the moment after the second look."""
    engine = FakeEngine(BUILT)
    noted(tmp_path, engine)
    items = images(tmp_path, engine)
    engine.in_use = [BUILT.id]
    assert list(remove(items, engine)) == []
    [own] = [replace(item, goes=lambda _: True) for item in items]
    assert list(remove([own], engine)) == []
    assert engine.images == [BUILT]


def test_a_leftover_name_that_moved_to_another_image_stays(tmp_path: Path) -> None:
    engine = FakeEngine(replace(BUILT, tags=NEW), OTHER)
    items = leftovers(noted(tmp_path, engine), engine, LONG_AGO)
    engine.tag(OTHER.id, *NEW[0].split(":"))
    assert list(remove(items, engine)) == []
    assert engine.digest(NEW[0]) == OTHER.id


def test_containers_of_killed_processes_go() -> None:
    """That of a verification sleeps for good, and holds its GPUs."""
    now, here = datetime.now(UTC), socket.gethostname()
    ended = subprocess.Popen(["true"])
    ended.wait()
    made = {
        "ended": (f"{here}:{ended.pid}", now),
        "runs": (this_process(), LONG_AGO),
        "elsewhere": ("far:1", now),
        "long ago": ("far:1", now - timedelta(days=2)),
        "without": ("", LONG_AGO),
    }
    engine = FakeEngine()
    for name, (process, created) in made.items():
        one = OurContainer(id=name, name=name, process=process, created=created)
        engine.containers.append(one)
    assert len(list(remove(containers(engine), engine))) == 3
    assert [one.id for one in engine.containers] == ["runs", "elsewhere"]


def test_notes_of_images_that_are_gone_go(tmp_path: Path) -> None:
    """But not those on another engine's images, which this one cannot know of."""
    engine, far = FakeEngine(BUILT, OTHER), FakeEngine(BUILT, name="two")
    noted(tmp_path, engine)
    noted(tmp_path, far)
    built.note(tmp_path, engine, OTHER.id)
    engine.untag(BUILT.id)
    built.forget(tmp_path, engine)
    engine.images.append(BUILT)  # pulled again, by a user
    assert [image.id for image in built.ours(tmp_path, engine)] == [OTHER.id]
    assert [image.id for image in built.ours(tmp_path, far)] == [BUILT.id]


def test_forget_keeps_the_note_of_a_new_image(tmp_path: Path) -> None:
    """A build notes an image once the engine has it: the notes are read before the engine."""

    class Building(FakeEngine):
        def listed(self) -> tuple[ListedImage, ...]:
            answer = super().listed()
            if OTHER not in self.images:
                self.images.append(OTHER)
                built.note(tmp_path, self, OTHER.id)
            return answer

    engine = Building(BUILT)
    noted(tmp_path, engine)
    built.forget(tmp_path, engine)
    assert {image.id for image in built.ours(tmp_path, engine)} == {BUILT.id, OTHER.id}


def test_names_that_a_build_left_go_once_no_build_can_need_them(tmp_path: Path) -> None:
    name = original(BUILT.id)
    engine = FakeEngine(replace(BUILT, tags=("torch-images-candidate:a", name, "torch-cu130:x")))
    workspace = noted(tmp_path, engine)
    assert leftovers(workspace, engine, LONG_AGO - timedelta(seconds=1)) == ()
    left = leftovers(workspace, engine, LONG_AGO)
    assert sorted(item.name.removeprefix("tag ") for item in left) == [
        "torch-images-candidate:a",
        name,
    ]


def test_a_name_that_a_rebuild_left_does_not_take_the_users_image_along(tmp_path: Path) -> None:
    """`reproduce` names the user's image while it runs, also one without a name."""
    name = original(OTHER.id)
    engine = FakeEngine(replace(OTHER, tags=(name,)))
    workspace = noted(tmp_path, engine)
    assert leftovers(workspace, engine, LONG_AGO) == ()
    engine.tag(OTHER.id, "mine", "1")
    assert names(leftovers(workspace, engine, LONG_AGO)) == [f"tag {name}"]


class Fresh(FakeEngine):
    """Its images got their tags a minute ago, by a build that may still run."""

    def details(self, images: Iterable[ListedImage]) -> tuple[OurImage, ...]:
        tagged = datetime.now(UTC) - timedelta(minutes=1)
        return tuple(replace(i, tagged=tagged) for i in super().details(images))


Machine = tuple[Callable[..., str], FakeEngine, FakeRunner]


@pytest.fixture
def machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    engine = Fresh(replace(BUILT, tags=NEW))
    run = FakeRunner({"docker buildx du": (0, "Reclaimable:\t1.5GB\nTotal: 2GB\n")})
    workspace = noted(folder, engine)
    monkeypatch.setenv("TMPDIR", str(folder))
    for name, value in (("engine", engine), ("workspace", workspace)):
        monkeypatch.setattr(verb, name, lambda value=value: value)
    monkeypatch.setattr("torch_images.cli.maintenance_tasks.Runner", lambda: run)

    def gc(*words: str) -> str:
        done = invoke(verb.ROOT, "gc", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return gc, engine, run


def test_gc_dry_run_removes_nothing(machine: Machine, folder: Path) -> None:
    gc, engine, _ = machine
    assert f"would remove {BASE}" in gc("--images", "--dry-run")
    assert engine.images[0].tags == NEW
    assert (folder / BASE / "file").exists()
    assert f"removed {BASE}" in gc("--images")
    assert engine.images == []
    assert not (folder / BASE).exists()


def test_only_cache_without_dry_run_prunes_the_build_cache(machine: Machine) -> None:
    gc, _, run = machine
    for words in ((), ("--cache", "--dry-run")):
        assert "1.5GB, of all projects" in gc(*words)
    assert not [command for command in run.commands if "prune" in command]
    gc("--cache")
    assert run.commands[-1] == ["docker", "buildx", "prune", "--force", "--all"]


def test_plain_gc_leaves_the_candidate_of_a_running_build(machine: Machine) -> None:
    gc, engine, _ = machine
    gc()
    assert engine.images[0].tags == NEW
