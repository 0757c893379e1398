"""Layers that are packed again: the same tars in an image that is otherwise the same."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

from tests.unit.test_compare import image
from torch_images.errors import EngineError
from torch_images.host.engine import Engine
from torch_images.layers import repack as module
from torch_images.layers.repack import repack
from torch_images.oci import layout
from torch_images.oci.compression import Compression, recorded

NAME = "torch-images-candidate:x"
# Three tars, as far as anybody looks: bytes that repeat, and some that do not.
PLAIN = [
    bytes([n]) * 100_000 + b"".join(hashlib.sha256(b"%d %d" % (n, k)).digest() for k in range(300))
    for n in range(3)
]


class Shop(Engine):
    """An engine with one image, from a file; it keeps what it is given."""

    def __init__(self, held: Path, *, answer: str = "") -> None:
        self.held, self.files, self.saved = held, dict[str, bytes](), list[str]()
        self._answer = answer

    def save(self, image: str, target: Path) -> None:
        self.saved.append(image)
        target.write_bytes(self.held.read_bytes())

    def load(self, archive: Iterable[bytes]) -> None:
        with tarfile.open(fileobj=io.BytesIO(b"".join(archive))) as tar:
            members = [(member.name, tar.extractfile(member)) for member in tar]
        assert len({name for name, _ in members}) == len(members)
        self.files = {name: file.read() for name, file in members if file}

    def digest(self, image: str) -> str | None:
        entry = json.loads(self.files["index.json"])["manifests"][0]
        assert entry["annotations"] == {"io.containerd.image.name": f"docker.io/library/{image}"}
        return self._answer or str(entry["digest"])

    def blob(self, digest: str) -> bytes:
        data = self.files[f"blobs/{digest.replace(':', '/')}"]
        assert f"sha256:{hashlib.sha256(data).hexdigest()}" == digest
        return data

    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.blob(self.digest(NAME) or ""))
        return found


def config_of(path: Path) -> bytes:
    with tarfile.open(path) as tar:
        name = next(
            m.name for m in tar if b'"rootfs"' in (tar.extractfile(m) or io.BytesIO()).read()
        )
        file = tar.extractfile(name)
        assert file
        return file.read()


@pytest.mark.parametrize("packed", ["zstd", "gzip", ""])
def test_all_but_the_compression_stays(tmp_path: Path, packed: str) -> None:
    held = image(tmp_path / "held.tar", *PLAIN, packed=packed)
    engine = Shop(held)
    digest = repack(NAME, "sha256:old", tmp_path / "cache", engine=engine)
    assert engine.saved == ["sha256:old"]
    assert digest == engine.digest(NAME)
    manifest = engine.manifest()
    assert recorded(manifest) is Compression.SMALL
    assert engine.blob(manifest["config"]["digest"]) == config_of(held)
    assert manifest["config"]["mediaType"] == layout.CONFIG
    blobs = [engine.blob(each["digest"]) for each in manifest["layers"]]
    assert [zstandard.ZstdDecompressor().decompressobj().decompress(b) for b in blobs] == PLAIN
    assert [each["size"] for each in manifest["layers"]] == [len(blob) for blob in blobs]
    assert {each["mediaType"] for each in manifest["layers"]} == {f"{layout.LAYER}+zstd"}


def test_equal_tars_give_an_equal_image(tmp_path: Path) -> None:
    """However they were compressed before: who made the layers does not matter."""
    digests = {
        repack(
            NAME,
            "x",
            tmp_path / f"cache{packed}",
            engine=Shop(image(tmp_path / f"{packed}.tar", *PLAIN, packed=packed)),
        )
        for packed in ("zstd", "gzip")
    }
    assert len(digests) == 1


def test_a_layer_that_is_there_twice(tmp_path: Path) -> None:
    engine = Shop(image(tmp_path / "held.tar", PLAIN[0], PLAIN[1], PLAIN[0]))
    repack(NAME, "x", tmp_path / "cache", engine=engine)
    first, second, third = (each["digest"] for each in engine.manifest()["layers"])
    assert first == third != second


def test_layers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next image takes them from the cache; one from nothing does not."""
    made: list[layout.Effort] = []

    class Counted(layout.Compressed):
        def __init__(self, *words: Any, effort: layout.Effort) -> None:
            made.append(effort)
            super().__init__(*words, effort=effort)

    monkeypatch.setattr(layout, "Compressed", Counted)
    cache = tmp_path / "cache"
    first = repack(NAME, "x", cache, engine=Shop(image(tmp_path / "1.tar", *PLAIN[:2])))
    assert made == [layout.Effort.SMALL] * 2
    both = image(tmp_path / "2.tar", *PLAIN)
    repack(NAME, "x", cache, engine=Shop(both))
    assert len(made) == 3
    assert repack(NAME, "x", cache, engine=Shop(image(tmp_path / "3.tar", *PLAIN[:2]))) == first
    assert len(made) == 3
    repack(NAME, "x", cache, engine=Shop(both), fresh=True)
    assert len(made) == 6
    assert not list(cache.glob("layers/.making-*"))


def test_other_settings_make_other_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = image(tmp_path / "1.tar", PLAIN[0])
    repack(NAME, "x", tmp_path / "cache", engine=Shop(held))
    monkeypatch.setattr(layout, "SMALL_COMPRESSOR", "zstd of tomorrow")
    repack(NAME, "x", tmp_path / "cache", engine=Shop(held))
    assert len(list((tmp_path / "cache" / "layers").glob("[!.]*"))) == 2


def test_a_layer_with_another_tar_is_refused(tmp_path: Path) -> None:
    """The configuration names another one: nothing reaches the engine, nothing is kept of it."""
    held = image(tmp_path / "held.tar", *PLAIN, packed="")
    held.write_bytes(held.read_bytes().replace(PLAIN[1], PLAIN[1][::-1]))
    engine, cache = Shop(held), tmp_path / "cache"
    with pytest.raises(EngineError, match=r"a layer of the image is damaged: sha256:.*; build it"):
        repack(NAME, "x", cache, engine=engine)
    assert not engine.files
    kept = {json.loads(p.read_text())["diff_id"] for p in cache.glob("layers/*/layer.json")}
    assert kept <= {f"sha256:{hashlib.sha256(PLAIN[n]).hexdigest()}" for n in (0, 2)}
    assert not list(cache.glob("layers/.making-*"))


def test_a_damaged_configuration_is_refused(tmp_path: Path) -> None:
    held = image(tmp_path / "held.tar", *PLAIN)
    held.write_bytes(held.read_bytes().replace(b'"cuda": "13.0"', b'"cuda": "66.6"'))
    engine = Shop(held)
    with pytest.raises(EngineError, match="is damaged"):
        repack(NAME, "x", tmp_path / "cache", engine=engine)
    assert not engine.files


def test_an_engine_that_has_another_image_then(tmp_path: Path) -> None:
    engine = Shop(image(tmp_path / "held.tar", *PLAIN), answer="sha256:other")
    with pytest.raises(EngineError, match="the engine has another image as torch-images-candidate"):
        repack(NAME, "x", tmp_path / "cache", engine=engine)


def test_one_that_fails_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest would take minutes: it is left in the middle."""
    held = image(tmp_path / "held.tar", PLAIN[0] * 30, PLAIN[1], packed="")
    stop, stopped, ended = threading.Event(), list[bool](), list[int]()

    class Failing(layout.Compressed):
        def write(self, data: bytes) -> int:  # type: ignore[override]
            if data == PLAIN[1]:
                raise EngineError("no")
            stopped.append(stop.wait(60))
            return super().write(data)

        def finish(self) -> layout.Layer:
            ended.append(self.tell())
            return super().finish()

    monkeypatch.setattr(layout, "Compressed", Failing)
    monkeypatch.setattr(module, "threading", SimpleNamespace(Event=lambda: stop))
    with pytest.raises(EngineError, match="no"):
        repack(NAME, "x", tmp_path / "cache", engine=Shop(held))
    assert False not in stopped
    assert ended == []


def test_progress_counts_the_bytes_of_layers(tmp_path: Path) -> None:
    said: list[tuple[str, int, int]] = []

    def progress() -> Any:
        return contextlib.nullcontext(lambda *words: said.append(words))

    held = image(tmp_path / "held.tar", *PLAIN, packed="")
    repack(NAME, "x", tmp_path / "cache", engine=Shop(held), progress=progress)
    total = sum(map(len, PLAIN))
    assert [title for title, _, _ in said] == [f"layer {n} of 3 again" for n in (1, 2, 3)]
    assert [done for _, done, _ in said][-1] == total
    assert {size for _, _, size in said} == {total}


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_makes_the_same_small_layer(threads: int) -> None:
    data = b"".join(PLAIN) * 10
    found = []
    for size in (len(data), 77_777):
        sink = layout.Compressed(io.BytesIO(), threads, effort=layout.Effort.SMALL)
        for start in range(0, len(data), size):
            sink.write(data[start : start + size])
        found.append(sink.finish())
    one = layout.Compressed(io.BytesIO(), 1, effort=layout.Effort.SMALL)
    one.write(data)
    assert found == [one.finish()] * 2
