"""Wheels as layers: what is in them, and that equal wheels give equal bytes."""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import io
import os
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
import zstandard

from tests.libraries import library
from tests.servers import web_server
from tests.wheels import StandIn, index, make_wheel
from torch_images.config.types import Removal
from torch_images.errors import BuildError, LockError
from torch_images.host.network import Network
from torch_images.inside.times import EPOCH
from torch_images.layers import make
from torch_images.layers.make import ReadyLayer, making, write_layer
from torch_images.layers.plan import LayerPlan, plan_layers
from torch_images.oci.layout import Layer

SITE = "opt/venv/lib/python3.11/site-packages"
FILES = {
    "tool/__init__.py": b"",
    "tool/tests/test_it.py": b"assert True\n",
    "tool-1.0.data/scripts/old": b"#!python\nprint(1)\n",
    "tool-1.0.data/data/share/tool.txt": b"text",
    "tool-1.0.data/purelib/other.py": b"OTHER = 1\n",
    "tool-1.0.dist-info/entry_points.txt": b"[console_scripts]\ntool = tool:main\n",
}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with scripts, data and tests."""
    return tmp_path / make_wheel(tmp_path, "tool", "1.0", FILES).locked.filename


def tar_of(blob: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(blob)


def layer(*wheels: Path, **options: object) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    """The members of the layer of wheels, by name."""
    blob = io.BytesIO()
    plan = LayerPlan(title="x", wheels=(), python="3.11", **options)  # type: ignore[arg-type]
    descriptor, paths = write_layer(plan, wheels, blob)
    data = blob.getvalue()
    assert descriptor.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert descriptor.size == len(data)
    plain = tar_of(data)
    assert descriptor.diff_id == f"sha256:{hashlib.sha256(plain).hexdigest()}"
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        assert [*paths] == [m.name for m in archive if not m.isdir()]
        return {
            m.name: (m, (archive.extractfile(m) or io.BytesIO()).read() if m.isreg() else b"")
            for m in archive
        }


def record(members: Mapping[str, tuple[tarfile.TarInfo, bytes]]) -> dict[str, tuple[str, str]]:
    text = members[f"{SITE}/tool-1.0.dist-info/RECORD"][1].decode()
    return {path: (digest, size) for path, digest, size in csv.reader(io.StringIO(text))}


def test_layer_equals_an_installed_wheel(wheel: Path) -> None:
    members = layer(wheel)
    assert members[f"{SITE}/tool.py"][1] == b"ANSWER = 42\n"
    assert members[f"{SITE}/other.py"][1] == b"OTHER = 1\n"
    assert members["opt/venv/share/tool.txt"][1] == b"text"
    assert members["opt/venv/bin/old"][1] == b"#!/opt/venv/bin/python\nprint(1)\n"
    script, text = members["opt/venv/bin/tool"]
    assert text.startswith(b"#!/opt/venv/bin/python\n")
    assert b"from tool import main" in text
    assert (script.mode, members[f"{SITE}/tool.py"][0].mode) == (0o755, 0o644)
    assert {m.mtime for m, _ in members.values()} == {EPOCH}
    assert {(m.uid, m.gid, m.uname) for m, _ in members.values()} == {(0, 0, "")}
    assert {m.mode for m, _ in members.values() if m.isdir()} == {0o755}
    names = list(members)
    for name in names:  # a folder stands before what is in it
        parent = name.rpartition("/")[0]
        assert not parent or names.index(parent) < names.index(name)


def test_layer_record_names_every_file(wheel: Path) -> None:
    members = layer(wheel)
    listed = record(members)
    own = f"{SITE}/tool-1.0.dist-info/RECORD"
    files = {name for name, (m, _) in members.items() if m.isreg()}
    assert {os.path.normpath(f"{SITE}/{path}") for path in listed} == files
    for path, (digest, size) in listed.items():
        data = members[os.path.normpath(f"{SITE}/{path}")][1]
        if os.path.normpath(f"{SITE}/{path}") != own:
            encoded = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
            assert (digest, size) == (f"sha256={encoded.decode()}", str(len(data)))


def test_equal_wheels_give_equal_bytes(wheel: Path, tmp_path: Path) -> None:
    is_remote = tmp_path / "elsewhere"
    is_remote.mkdir()
    copy = is_remote / wheel.name
    copy.write_bytes(wheel.read_bytes())
    os.utime(copy, (1, 1))
    old = os.umask(0o077)
    try:
        blobs = [io.BytesIO(), io.BytesIO()]
        plan = LayerPlan(title="x", wheels=(), python="3.11")
        first = write_layer(plan, [wheel], blobs[0], 1)
        second = write_layer(plan, [copy], blobs[1], 3)
    finally:
        os.umask(old)
    assert first == second
    assert blobs[0].getvalue() == blobs[1].getvalue()


def test_a_record_differs_from_the_wheels_where_removals_name_a_file(tmp_path: Path) -> None:
    """What is left out has no row, what is pruned has its new digest, all else the wheel's own."""
    containers = [[(90, False, False, 8192), (120, False, False, 8192)]]
    listed = library(containers).replace(b"r" * 15, b"\0sm_90 sm_120\0r", 1)
    files = {f"tool/lib/{name}.so": listed for name in ("code", "symbols", "list", "both", "plain")}
    files |= {"tool/tests/test_it.py": b"assert True\n", "tool/tests.py": b""}
    wheel_path = tmp_path / make_wheel(tmp_path, "tool", "1.0", files).locked.filename
    with zipfile.ZipFile(wheel_path) as archive:
        text = archive.read("tool-1.0.dist-info/RECORD").decode()
    before = {path: (digest, size) for path, digest, size in csv.reader(io.StringIO(text))}
    removals = [
        Removal(wheels=("tool",), reason="r", files=("tool/tests/*",)),
        Removal(wheels=("tool",), reason="r", code=("tool/lib/code.so",)),
        Removal(wheels=("tool",), reason="r", symbols=("tool/lib/symbols.so",)),
        Removal(wheels=("tool",), reason="r", lists=("tool/lib/list.so",)),
        Removal(wheels=("tool",), reason="r", code=("*/both.so",), lists=("*/both.so",)),
    ]
    members = layer(wheel_path, removals=removals, arches=(120,))
    after = record(members)
    assert before.keys() - after.keys() == {"tool/tests/test_it.py"}
    assert after.keys() <= before.keys()
    changed = {path for path in after if after[path] != before[path]}
    assert changed == {f"tool/lib/{name}.so" for name in ("code", "symbols", "list", "both")}
    for path in changed:
        data = members[f"{SITE}/{path}"][1]
        assert (len(data) < len(listed)) == (path != "tool/lib/list.so")
        corrected = path in ("tool/lib/list.so", "tool/lib/both.so")
        assert (b"\0sm_120      \0" in data, b"\0sm_90 sm_120\0" in data) == (
            corrected,
            not corrected,
        )
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert after[path] == (f"sha256={digest}", str(len(data)))


@pytest.mark.parametrize("kind", ["files", "code", "symbols", "lists"])
def test_a_removal_that_finds_nothing_stops_the_build(wheel: Path, kind: str) -> None:
    removal = Removal(wheels=("tool",), reason="r", **{kind: ("gone/*",)})  # type: ignore[arg-type]
    with pytest.raises(BuildError, match=r"nothing to remove: tool-1\.0-.* has no gone/\*"):
        layer(wheel, removals=[removal])


@pytest.fixture
def wheels(tmp_path: Path) -> tuple[StandIn, ...]:
    return tuple(make_wheel(tmp_path, name, "1.0") for name in ("one", "two"))


def plans(wheels: tuple[StandIn, ...]) -> tuple[LayerPlan, ...]:
    return tuple(LayerPlan(title=w.locked.name, wheels=(w.locked,), python="3.11") for w in wheels)


def ready_layers(
    wheels: tuple[StandIn, ...], cache: Path, network: Network, **options: Any
) -> dict[LayerPlan, ReadyLayer]:
    """A layer for each wheel, once all are ready."""
    with making([plans(wheels)], cache, network, **options) as layers:
        return {plan: layer.result() for plan, layer in layers.items()}


def test_layers_come_from_the_index_once(wheels: tuple[StandIn, ...], tmp_path: Path) -> None:
    seen: list[str] = []
    with web_server(index(wheels)) as (url, paths):
        network = Network(index=f"{url}/simple")
        first = ready_layers(wheels, tmp_path / "c", network, say=seen.append)
        count = len(paths)
        again = ready_layers(wheels, tmp_path / "c", network)
        assert len(paths) == count == 4
        fresh = ready_layers(wheels, tmp_path / "c", network, fresh=True)
        assert len(paths) == 2 * count
    assert sorted(line.split(",")[0] for line in seen) == ["packed one", "packed two"]
    for ready in first.values():
        data = ready.path.read_bytes()
        assert ready.layer.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert first == again == fresh
    assert [p.name for p in (tmp_path / "c" / "layers").glob(".making-*")] == []


def test_a_small_layer_holds_the_same(wheels: tuple[StandIn, ...], tmp_path: Path) -> None:
    """Its tar is that of the other one, which stays in the cache beside it."""
    small = [dataclasses.replace(plan, small=True) for plan in plans(wheels)]
    empty = LayerPlan(title="empty", wheels=(), python="3.11", small=True)
    with web_server(index(wheels)) as (url, _):
        network = Network(index=f"{url}/simple")
        usual = ready_layers(wheels, tmp_path / "c", network)
        with making([[*small, empty]], tmp_path / "c", network) as layers:
            results = {plan: layer.result() for plan, layer in layers.items()}
        assert ready_layers(wheels, tmp_path / "c", network) == usual
    for plan, ready in usual.items():
        twin = results[dataclasses.replace(plan, small=True)]
        assert twin.layer.diff_id == ready.layer.diff_id
        assert twin.layer.digest != ready.layer.digest
        tars = [tar_of(each.path.read_bytes()) for each in (ready, twin)]
        assert tars[0] == tars[1]
    with tarfile.open(fileobj=io.BytesIO(tar_of(results[empty].path.read_bytes()))) as tar:
        assert tar.getmembers() == []


def test_making_ends_the_others_after_a_failure(
    wheels: tuple[StandIn, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest small layer takes minutes: it is left in the middle."""
    began, ended = threading.Event(), list[str]()

    def write_layer(_: LayerPlan, __: Sequence[Path], target: IO[bytes], ___: int) -> Layer:
        began.set()
        while True:
            time.sleep(0.01)
            try:
                target.write(b"")
            except Exception as error:
                ended.append(type(error).__name__)
                raise

    monkeypatch.setattr(make, "write_layer", write_layer)

    def fail() -> None:
        with making([plans(wheels)], tmp_path / "c", network):
            assert began.wait(60)
            raise BuildError("no")

    with web_server(index(wheels)) as (url, _):
        network = Network(index=f"{url}/simple")
        with pytest.raises(BuildError, match="no"):
            fail()
    assert set(ended) == {"_StoppedError"}
    assert list((tmp_path / "c" / "layers").iterdir()) == []


def _other(files: dict[str, bytes]) -> None:
    files["/simple/two/two-1.0-py3-none-any.whl"] += b"!"


def _no_file(files: dict[str, bytes]) -> None:
    del files["/simple/two/two-1.0-py3-none-any.whl"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_other, r"two 1\.0 is not the locked file: expected sha256:"),
        (_no_file, r"a locked file is not in the package index \(two-1\.0-"),
    ],
)
def test_making_leaves_nothing_of_another_wheel(
    wheels: tuple[StandIn, ...],
    tmp_path: Path,
    change: Callable[[dict[str, bytes]], None],
    problem: str,
) -> None:
    files = index(wheels)
    change(files)
    with web_server(files) as (url, _), pytest.raises(LockError, match=problem):
        ready_layers(wheels, tmp_path / "c", Network(index=f"{url}/simple"))
    left = {p.name for p in (tmp_path / "c" / "layers").iterdir()}
    assert left <= {plans(wheels)[0].key, f".{plans(wheels)[0].key}.used"}


def test_large_wheels_are_layers_of_their_own(wheels: tuple[StandIn, ...]) -> None:
    one, two = (w.locked for w in wheels)
    large = dataclasses.replace(one, size=20_000_000)
    planned = plan_layers("Tools", (two, large), "3.11")
    assert [(p.title, p.wheels) for p in planned] == [
        ("one 1.0", (large,)),
        ("Tools, the small ones", (two,)),
    ]
    assert [p.title for p in plan_layers("Tools", (two, one), "3.11")] == ["Tools"]


def test_a_layer_depends_on_what_concerns_it_only(wheels: tuple[StandIn, ...]) -> None:
    locked = [dataclasses.replace(w.locked, size=20_000_000) for w in wheels]
    plain = plan_layers("t", locked, "3.11")
    for cut in (
        Removal(wheels=("one",), reason="r", code=("*.so",)),
        Removal(wheels=("one",), reason="r", lists=("*.so",)),
    ):
        nine, twelve = (plan_layers("t", locked, "3.11", [cut], [arch]) for arch in (90, 120))
        assert nine[1] == twelve[1] == plain[1]
        assert len({p[0].key for p in (nine, twelve, plain)}) == 3
    files = plan_layers(
        "t", locked, "3.11", [Removal(wheels=("one",), reason="r", files=("x",))], [90]
    )
    assert files[0].arches == ()
