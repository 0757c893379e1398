"""Lock files: text, damage, and what must not come from an image or an index."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.conftest import LOCKS, T130
from tests.unit.hostile import altered_lines, ends_well
from torch_images.errors import LockError
from torch_images.locks.debs import DebLock
from torch_images.locks.facts import FactsLock
from torch_images.locks.files import dumps, parse, read, update
from torch_images.locks.sources import SourceLock
from torch_images.locks.wheels import WheelLock

KINDS: dict[str, type[Any]] = {
    f"wheel-cu130-torch{T130}-py313-arm64": WheelLock,
    "base-trixie-arm64": DebLock,
    "compat-cu130": DebLock,
    "source-fork": SourceLock,
    "toolkit-cu128": SourceLock,
    f"release-cu130-torch{T130}-py313": FactsLock,
}
BY_NAME = pytest.mark.parametrize("name", KINDS)


@BY_NAME
def test_parse_lock_round_trip(name: str) -> None:
    text = (LOCKS / f"{name}.json").read_text()
    lock = parse(KINDS[name], text, name)
    assert dumps(lock) == text
    for entries in ("debs", "wheels", "archives"):
        if hasattr(lock, entries):
            shuffled = replace(lock, **{entries: getattr(lock, entries)[::-1]})
            assert dumps(shuffled) == text


def test_update_changes_the_date(tmp_path: Path) -> None:
    path, lock = tmp_path / "base.json", read(DebLock, LOCKS / "base-trixie.json")
    update(path, lock)
    new = replace(lock, debs=lock.debs[1:], date=date(2031, 1, 1))
    assert update(path, new)
    assert read(DebLock, path) == replace(new, name="base")


SHORT = [
    (kind, (LOCKS / f"{name}.json").read_text())
    for name, kind in (
        ("tools-build", WheelLock),
        ("compat-cu130", DebLock),
        ("source-fork", SourceLock),
    )
]


@pytest.mark.parametrize(("kind", "text"), SHORT)
@given(st.data())
def test_damaged_text_is_one_line(kind: type[Any], text: str, data: st.DataObject) -> None:
    damaged = data.draw(altered_lines(st.just(text)))
    if lock := ends_well(lambda: parse(kind, damaged, "x")):
        assert parse(kind, dumps(lock), "x") == lock


@pytest.mark.parametrize("text", ["", "[]", "{", "3", '{"date": 1}', "[" * 100_000, "\x1b[31m"])
def test_other_text_is_one_line(text: str) -> None:
    with pytest.raises(LockError) as caught:
        parse(WheelLock, text, "x")
    assert str(caught.value).startswith("locks/x.json: ")
    assert str(caught.value).endswith("run `invoke lock --select x`")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tools-build", {"filename": "../uv-1-py3-none-any.whl"}),
        ("tools-build", {"name": "uv --index-url x"}),
        ("tools-build", {"version": "1 --index-url x"}),
        ("tools-build", {"sha256": "0" * 63}),
        ("tools-build", {"index": "https://me:secret@host/whl"}),
        ("compat-cu130", {"name": "apt-"}),
        ("compat-cu130", {"path": "../x_1.deb"}),
        ("compat-cu130", {"path": "/etc/x.deb"}),
        ("compat-cu130", {"colour": "red"}),
        ("toolkit-cu128", {"url": "file:///etc/passwd"}),
        ("source-fork", {"commit": "main"}),
    ],
)
def test_parse_refuses_other_forms(name: str, change: dict[str, str]) -> None:
    document = json.loads((LOCKS / f"{name}.json").read_text())
    kind, entries = {
        "tools-build": (WheelLock, "wheels"),
        "compat-cu130": (DebLock, "debs"),
        "toolkit-cu128": (SourceLock, "archives"),
        "source-fork": (SourceLock, "trees"),
    }[name]
    document[entries][0] |= change
    with pytest.raises(LockError, match=rf"^locks/{name}\.json: {entries}") as caught:
        parse(kind, json.dumps(document), name)
    assert "secret" not in str(caught.value)


def test_update_writes_only_what_can_be_read_again_and_differs(tmp_path: Path) -> None:
    """Its content comes from indexes and archives."""
    path, lock = tmp_path / "tools-build.json", read(WheelLock, LOCKS / "tools-build.json")
    bad = replace(lock, wheels=(replace(lock.wheels[0], sha256="x"),))
    with pytest.raises(LockError, match="tools-build"):
        update(path, bad)
    assert not list(tmp_path.iterdir())
    assert update(path, lock)
    assert not update(path, replace(lock, date=date(2031, 1, 1)))
