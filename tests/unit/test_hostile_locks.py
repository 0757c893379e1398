"""Lock files: text, damage, and what must not come from an image or an index."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.releases import T130
from tests.unit.conftest import ROOT
from tests.unit.hostile import altered_lines, ends_well
from torch_images.errors import LockError
from torch_images.locks.debs import DebLock
from torch_images.locks.facts import FactsLock
from torch_images.locks.files import dumps, parse, read, update
from torch_images.locks.sources import SourceLock
from torch_images.locks.wheels import WheelLock

LOCKS = ROOT / "locks"
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
def test_a_lock_is_its_text(name: str) -> None:
    text = (LOCKS / f"{name}.json").read_text()
    lock = parse(KINDS[name], text, name)
    assert dumps(lock) == text
    for entries in ("debs", "wheels", "archives"):
        if hasattr(lock, entries):
            shuffled = replace(lock, **{entries: getattr(lock, entries)[::-1]})
            assert dumps(shuffled) == text


@BY_NAME
def test_only_other_inputs_are_written(tmp_path: Path, name: str) -> None:
    path, lock = tmp_path / f"{name}.json", read(KINDS[name], LOCKS / f"{name}.json")
    assert update(path, lock)
    before = path.read_text()
    assert not update(path, replace(lock, date=date(2031, 1, 1)))
    assert path.read_text() == before
    path.write_text("damaged")
    assert update(path, lock)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_changed_lock_has_the_new_date(tmp_path: Path) -> None:
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
        ("tools-build", {"filename": "-uv-1-py3-none-any.whl"}),
        ("tools-build", {"name": "uv --index-url x"}),
        ("tools-build", {"version": "1 --index-url x"}),
        ("tools-build", {"version": "1\n"}),
        ("tools-build", {"sha256": "0" * 63}),
        ("tools-build", {"index": "https://me:secret@host/whl"}),
        ("compat-cu130", {"name": "apt-"}),
        ("compat-cu130", {"path": "../x_1.deb"}),
        ("compat-cu130", {"path": "pool/./x_1.deb"}),
        ("compat-cu130", {"path": "/etc/x.deb"}),
        ("compat-cu130", {"sha256": ""}),
        ("compat-cu130", {"colour": "red"}),
        ("toolkit-cu128", {"url": "https://host/a/.."}),
        ("toolkit-cu128", {"url": "file:///etc/passwd"}),
        ("source-fork", {"commit": "main"}),
    ],
)
def test_an_input_of_another_form_is_refused(name: str, change: dict[str, str]) -> None:
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


@pytest.mark.parametrize("name", ["tools-build", "compat-cu130"])
def test_a_lock_that_could_not_be_read_again_is_not_written(tmp_path: Path, name: str) -> None:
    """Its content comes from indexes and archives."""
    bad: Any
    if name == "tools-build":
        wheels = read(WheelLock, LOCKS / f"{name}.json")
        bad = replace(wheels, wheels=(replace(wheels.wheels[0], sha256="x"),))
    else:
        debs = read(DebLock, LOCKS / f"{name}.json")
        bad = replace(debs, debs=(replace(debs.debs[0], path="../x.deb"),))
    with pytest.raises(LockError, match=name):
        update(tmp_path / "x.json", bad)
    assert not list(tmp_path.iterdir())


def folder(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path)


def latin(path: Path) -> None:
    path.write_bytes(b'{"date": "\xe4"}')


@pytest.mark.parametrize("make", [folder, loop, latin])
def test_a_file_that_is_no_text_is_named(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "wheel-x.json"
    make(path)
    with pytest.raises(LockError, match=r"^locks/wheel-x\.json: "):
        read(WheelLock, path)
    with pytest.raises(LockError, match=r"none\.json does not exist; run `invoke lock --select n"):
        read(WheelLock, tmp_path / "none.json")
