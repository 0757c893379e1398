"""What goes and what stays, by age and size; images are in tests/integration/test_push.py."""

from __future__ import annotations

import fcntl
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fakes import FakeRunner
from torch_images.errors import UsageError
from torch_images.host.cache import Part, keep, mark, used
from torch_images.host.engine import Engine
from torch_images.host.image_info import OurImage
from torch_images.host.network import Network
from torch_images.host.workspace import Workspace
from torch_images.maintain import gc
from torch_images.maintain.gc import (
    Item,
    Limits,
    build_cache,
    cache,
    parse_age,
    parse_size,
    remove,
    surplus,
)

NOW = datetime(2026, 11, 21, tzinfo=UTC)
NO_ENGINE = cast("Engine", None)
BASE = f"bases/bookworm-{'b' * 16}"
TOOL = f"tools/tools-build-{'c' * 16}"
DEB = f"debs/{'d' * 64}.deb"


def item(name: str, size: int, days: float) -> Item:
    return Item(name=name, size=size, used=NOW - timedelta(days=days))


def names(items: Any) -> list[str]:
    return [one.name for one in items]


def test_what_is_just_within_the_limits_stays() -> None:
    month = Limits(age=timedelta(days=30))
    assert surplus([item("a", 1, 30)], month, NOW) == ()
    late = Item(name="b", size=1, used=NOW - timedelta(days=30, microseconds=1))
    assert names(surplus([late], month, NOW)) == ["b"]
    items = [item("new", 40, 1), item("old", 10, 2)]
    assert surplus(items, Limits(age=month.age, size=50), NOW) == ()
    assert names(surplus(items, Limits(age=month.age, size=49), NOW)) == ["old"]


def test_what_has_to_go_takes_no_room_from_what_may_stay() -> None:
    items = [item("large", 100, 1), item("small", 50, 2), item("old", 1, 40)]
    assert names(surplus(items, Limits(age=timedelta(days=30), size=50), NOW)) == ["old", "large"]


ITEMS = st.lists(st.builds(item, st.text(), st.integers(0, 100), st.floats(0, 100)), max_size=20)


@given(ITEMS, st.integers(0, 100), st.integers(0, 500))
def test_limits_hold(items: list[Item], days: int, size: int) -> None:
    limits = Limits(age=timedelta(days=days), size=size)
    gone = surplus(items, limits, NOW)
    left = list(items)
    for one in gone:
        left.remove(one)
    assert all(NOW - one.used <= limits.age for one in left)
    assert not size or sum(one.size for one in left) <= size
    assert surplus(left, limits, NOW) == ()


@pytest.mark.parametrize(("text", "hours"), [("12h", 12), ("30d", 720), (" 8w ", 1344), ("0d", 0)])
def test_ages(text: str, hours: int) -> None:
    assert parse_age(text) == timedelta(hours=hours)


@pytest.mark.parametrize(
    "text", ["", "30", "d", "-1d", "3 months", "1.5d", "100000d", "1m", "²d", "1d x", "x1d"]
)
def test_no_age(text: str) -> None:
    with pytest.raises(UsageError, match="is not an age; give one like"):
        parse_age(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("", 0), ("50GB", 50 * 10**9), ("500 mb", 5 * 10**8), ("7", 7), ("1kb", 1000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["GB", "-1", "1.5GB", "1GiB", "lots", "9" * 16, "1K", "²", "1 B B"]
)
def test_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size; give one like"):
        parse_size(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache with a base, a tool and a package, all of long ago."""
    for name in (BASE, TOOL):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_bytes(b"x" * 10)
    (tmp_path / f"{BASE}.lock").touch()
    (tmp_path / "debs").mkdir()
    (tmp_path / DEB).write_bytes(b"x" * 5)
    (tmp_path / "unknown").mkdir()
    for path in (*tmp_path.glob("*/*"),):
        os.utime(path, (10**9, 10**9))
    return tmp_path


def test_the_cache_and_what_was_used_of_it(folder: Path) -> None:
    assert [(i.name, i.size) for i in cache(folder)] == [
        (BASE, 10),
        (DEB, 5),
        (TOOL, 10),
    ]
    used(folder / TOOL)
    used(folder / DEB)
    limits = Limits(age=timedelta(days=1))
    gone = surplus(cache(folder), limits, datetime.now(UTC))
    assert names(gone) == [BASE]
    assert (folder / TOOL).stat().st_mtime == 10**9


@pytest.mark.parametrize("part", Part)
def test_every_folder_of_the_cache_is_gone_through(part: Part, tmp_path: Path) -> None:
    (tmp_path / part / f"x-{'a' * 16}").mkdir(parents=True)
    assert names(cache(tmp_path)) == [f"{part}/x-{'a' * 16}"]


def test_removed_without_a_trace(folder: Path) -> None:
    used(folder / TOOL)
    assert len(list(remove(cache(folder), NO_ENGINE))) == 3
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_what_is_being_made_stays(folder: Path) -> None:
    with (folder / f"{BASE}.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        assert names(remove(cache(folder), NO_ENGINE)) == [DEB, TOOL]
    assert (folder / BASE / "file").exists()


def test_the_faster_process_wins(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    there = tmp_path / "there"
    assert keep(tmp_path / "one", there) == keep(tmp_path / "two", there) == there
    assert (there / "one").exists()
    assert mark(there).exists()
    with pytest.raises(FileNotFoundError):
        keep(tmp_path / "nothing", tmp_path / "nowhere" / "x")


def test_a_cache_that_may_only_be_read_serves(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(Path, "touch", refuse)
    for name in (TOOL, DEB):
        assert used(folder / name) == folder / name


def test_what_a_build_left_half_made_counts_too(folder: Path) -> None:
    (folder / "bases" / ".making-x").mkdir()
    (folder / "bases" / ".making-x" / "file").write_bytes(b"x" * 7)
    (folder / "bases" / ".hidden").mkdir()
    assert ("bases/.making-x", 7) in [(i.name, i.size) for i in cache(folder)]
    assert "bases/.hidden" not in names(cache(folder))


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(age=timedelta(hours=36), size=0), ["--filter=until=36h"]),
        (Limits(age=timedelta(minutes=90), size=1), ["--filter=until=1h", "--keep-storage=1"]),
        (Limits(age=timedelta(0), size=0), []),
    ],
)
def test_the_build_cache_within_limits(limits: Limits, words: list[str]) -> None:
    run = FakeRunner()
    build_cache(limits, run, dry_run=False)
    assert run.commands == [["docker", "buildx", "prune", "--force", *words]]
    assert build_cache(limits, run, dry_run=True).endswith("h: 0B")
    assert run.commands[1] == ["docker", "buildx", "du", *words[:1]]


def test_tags_that_a_build_left_go_once_no_build_can_need_them(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    names = ("torch-images-candidate:a", "torch-images-original:b", "torch-cu130:sm120")
    held = [
        OurImage(id="sha256:old", tags=names, size=9, tagged=now - 2 * gc.RUNNING, in_use=False),
        OurImage(id="sha256:new", tags=names[:1], size=9, tagged=now, in_use=False),
    ]

    class Held:
        def ours(self, *_: str) -> list[OurImage]:
            return held

    workspace = Workspace(root=tmp_path, cache=tmp_path, network=Network(), locks=tmp_path)
    engine = cast("Engine", Held())
    quiet = gc.leftovers(workspace, engine, now - gc.RUNNING)
    assert [item.tag for item in quiet] == list(names[:2])
    assert len(gc.leftovers(workspace, engine, now)) == 3
