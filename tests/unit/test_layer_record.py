"""The record of layers: its grammar, how it is filled, and packing again."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers import web_server
from tests.unit.conftest import ROOT
from tests.unit.hostile import altered_lines, ends_well
from tests.wheels import index, make_wheel
from torch_images.build import record as module
from torch_images.build.plan import lock_image, plan_image
from torch_images.build.record import (
    DIFFERS,
    FAILED,
    SAME,
    UNKNOWN,
    Wanted,
    compared,
    found,
    merged,
    pack_again,
    recorded,
    wanted,
)
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import BuildError, LockError
from torch_images.host.cache import Part
from torch_images.host.network import Network
from torch_images.host.workspace import Workspace
from torch_images.layers.make import making
from torch_images.layers.plan import LayerPlan
from torch_images.locks.layers import (
    RecordedLayer,
    format_record,
    parse_record,
    path,
    read_record,
)
from torch_images.oci.layout import Layer

DIGESTS = st.binary(max_size=4).map(lambda data: f"sha256:{hashlib.sha256(data).hexdigest()}")
WORD = st.text("abcxyz,.+-_0189", min_size=1, max_size=8).filter(lambda w: not w.startswith("--"))
LAYERS = st.builds(
    RecordedLayer,
    title=st.lists(WORD, min_size=1, max_size=4).map(" ".join),
    key=DIGESTS.map(lambda digest: digest[7:]),
    digest=DIGESTS,
    diff_id=DIGESTS,
    size=st.integers(1, 10**11),
)
RECORDS = st.lists(LAYERS, max_size=6, unique_by=lambda layer: layer.key)
ONE = RecordedLayer(
    title="torch 2.14.1",
    key="1" * 64,
    digest="sha256:" + "2" * 64,
    diff_id="sha256:" + "3" * 64,
    size=4,
)


@given(RECORDS)
def test_a_record_is_read_as_it_was_written_whatever_the_order(layers: list[RecordedLayer]) -> None:
    text = format_record(layers)
    assert parse_record(text) == {layer.key: layer for layer in layers}
    assert format_record(reversed(layers)) == text


@given(altered_lines(RECORDS.map(format_record)))
def test_a_damaged_record_is_one_line(text: str) -> None:
    read = ends_well(lambda: parse_record(text))
    if read is not None:
        assert parse_record(format_record(read.values())) == read


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# 4 bytes", "# ? bytes"),
        ("# 4 bytes", "# 0 bytes"),
        ("# 4 bytes", f"# {10**11 + 1} bytes"),
        ("sha256:2", "sha256:x"),
        ("sha256:3", "sha257:3"),
        ("--key=1", "--key=g"),
        ("--key=1", "--key=11"),
        ("torch ", ""),
        ("torch 2.14.1", "torch --key=1"),
        ("bytes, ", "bytes, x/"),
        ("# Written", "# date: 2026-11-21\n# Written"),
    ],
)
def test_a_line_that_is_no_layer_is_refused(old: str, new: str) -> None:
    text = format_record([ONE])
    assert old in text
    changed = text.replace(old, new)
    if old == "torch ":  # a title of one word is one
        assert parse_record(changed)["1" * 64].title == "2.14.1"
        return
    with pytest.raises(LockError, match=r"^locks/layers\.txt.*restore it from git"):
        parse_record(changed)


def test_a_key_has_one_layer() -> None:
    other = dataclasses.replace(ONE, title="another", size=5)
    with pytest.raises(LockError, match="is there twice"):
        parse_record(format_record([ONE, other]))


def test_there_need_be_no_record(tmp_path: Path) -> None:
    assert read_record(tmp_path) == {}


def test_the_committed_record_is_as_it_is_written() -> None:
    text = path(ROOT / "locks").read_text()
    assert format_record(parse_record(text).values()) == text


def test_it_is_no_input_of_an_image(config: Config, root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "locks", tmp_path / "locks")
    spec = choose(config)
    before = plan_image(config, lock_image(config, spec, tmp_path / "locks"), root)
    path(tmp_path / "locks").write_text(format_record([ONE]))
    after = plan_image(config, lock_image(config, spec, tmp_path / "locks"), root)
    assert (after.identity, after.lock.digest) == (before.identity, before.lock.digest)


@pytest.fixture
def world(tmp_path: Path) -> Any:
    """Two small layers that were packed, the workspace, and the index that has their wheels."""
    scratch = tmp_path / "wheels"
    scratch.mkdir()
    wheels = [make_wheel(scratch, name, "1.0") for name in ("one", "two")]
    plans = [LayerPlan(title=w.locked.name, wheels=(w.locked,), python="3.11") for w in wheels]
    pages = index(wheels)
    with web_server(pages) as (url, _):
        network = Network(index=f"{url}/simple")
        with making([plans], tmp_path / "cache", network) as made:
            assert [made[plan].result().title for plan in plans] == ["one", "two"]
        place = Workspace(root=ROOT, cache=tmp_path / "cache", network=network, locks=tmp_path)
        yield Wanted(plans={plan.key: plan for plan in plans}, bases={}), place, pages


def test_what_the_cache_has_is_recorded(world: Any, tmp_path: Path) -> None:
    parts, place, _ = world
    layers = found(parts, place)
    assert {layer.title for layer in layers.values()} == {"one", "two"}
    for key, layer in layers.items():
        blob = (place.cache / Part.LAYERS / key / "blob").read_bytes()
        assert layer.digest == f"sha256:{hashlib.sha256(blob).hexdigest()}"
        assert layer.size == len(blob)
    empty = dataclasses.replace(place, cache=tmp_path / "empty")
    assert found(parts, empty) == {}


def test_half_a_layer_is_not_recorded(world: Any) -> None:
    parts, place, _ = world
    blob = place.cache / Part.LAYERS / next(iter(parts.plans)) / "blob"
    blob.write_bytes(blob.read_bytes()[:-1])
    with pytest.raises(BuildError, match="is not whole; remove its folder"):
        found(parts, place)


def test_records_are_merged() -> None:
    """What others packed stays, what was packed here counts, what no image has is dropped."""
    theirs, ours, gone = (dataclasses.replace(ONE, key=c * 64) for c in "abc")
    again = dataclasses.replace(theirs, size=9)
    old = {layer.key: layer for layer in (theirs, gone)}
    keys = {theirs.key, ours.key}
    assert merged(old, keys, {ours.key: ours}) == {theirs.key: theirs, ours.key: ours}
    assert merged(old, keys, {theirs.key: again}) == {theirs.key: again}


@pytest.mark.parametrize(
    "change", [{"digest": "sha256:other"}, {"diff_id": "sha256:other"}, {"size": 5}]
)
def test_a_layer_that_was_packed_otherwise_differs(change: dict[str, Any]) -> None:
    layer = Layer(digest=ONE.digest, diff_id=ONE.diff_id, size=ONE.size)
    assert compared(ONE, layer).state == SAME
    packed = compared(ONE, dataclasses.replace(layer, **change))
    assert packed.state == DIFFERS
    assert str(*change.values()) in packed.detail


def test_packing_again(world: Any, tmp_path: Path) -> None:
    """The same, another one, one that is not recorded, one that cannot be fetched."""
    parts, place, pages = world
    record = found(parts, place)
    _, two = record
    inside = dataclasses.replace(place, cache=tmp_path / "scratch")

    def states(known: dict[str, RecordedLayer]) -> list[str]:
        return [x.state for x in pack_again(parts, known, inside, None)]  # type: ignore[arg-type]

    assert states(record) == [SAME, SAME]
    assert not (tmp_path / "scratch" / Part.LAYERS).exists()
    lie = dataclasses.replace(record[two], digest="sha256:" + "0" * 64)
    assert states({**record, two: lie}) == [SAME, DIFFERS]
    assert states({two: record[two]}) == [UNKNOWN, SAME]
    for name in [name for name in pages if "/two" in name]:
        del pages[name]
    assert states(record) == [SAME, FAILED]


def test_bases_are_packed_again_too(
    config: Config, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = lock_image(config, choose(config), root / "locks")
    parts = dataclasses.replace(wanted(config, [image], root), plans={})
    [key] = parts.bases
    layer = Layer(digest=ONE.digest, diff_id=ONE.diff_id, size=ONE.size)
    monkeypatch.setattr(module, "first_layer", lambda _: layer)
    place = Workspace(root=root, cache=tmp_path, network=Network(), locks=root / "locks")

    class Preparer:
        def layout(self, *_: object) -> Path:
            return tmp_path

    def states(record: dict[str, RecordedLayer]) -> list[str]:
        return [x.state for x in pack_again(parts, record, place, Preparer())]  # type: ignore[arg-type]

    assert states({key: recorded("x", key, layer)}) == [SAME]
    assert states({key: dataclasses.replace(recorded("x", key, layer), size=7)}) == [DIFFERS]
    assert states({}) == [UNKNOWN]
