"""An image is carried as what the other machine lacks: the same bytes come out, or an error."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from benchmarks.carry import __main__ as carry
from benchmarks.carry.recipe import PATCH, RAW, SAME, cut, installed, join

SITE = "opt/venv/lib/python3.11/site-packages/"
EQUAL = hashlib.shake_128(b"equal").digest(60_000)
OLD = hashlib.shake_128(b"old").digest(80_000)
NEW = OLD[:40_000] + b"another build" + OLD[40_000:]
ONLY_HERE = hashlib.shake_128(b"only here").digest(30_000)
FILES = {
    f"{SITE}nvidia/lib.so": EQUAL,
    f"{SITE}torch/lib.so": NEW,
    f"{SITE}torch/small.py": b"x = 1\n",
    f"{SITE}torch/more.so": ONLY_HERE,
    "usr/lib/elsewhere.so": EQUAL,
}


def tar_of(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return target.getvalue()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The packages of the other machine."""
    folder = tmp_path / "site"
    for path, content in (("nvidia/lib.so", EQUAL), ("torch/lib.so", OLD), ("torch/x", b"y")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def test_what_is_there_does_not_travel(tmp_path: Path, site: Path) -> None:
    tar = tmp_path / "layer.tar"
    tar.write_bytes(tar_of(FILES))
    changes: dict[str, bytes] = {}
    old = {"torch/lib.so": OLD}.get
    found = list(cut(tar, SITE, installed(site), old, changes.__setitem__))
    parts, raw = [part for part, _ in found], b"".join(data for _, data in found)
    assert [(p.kind, p.path) for p in parts if p.kind != RAW] == [
        (SAME, "nvidia/lib.so"),
        (PATCH, "torch/lib.so"),
    ]
    assert ONLY_HERE in raw
    assert sum(map(len, changes.values())) < 1000
    assert b"".join(join(parts, raw, site, changes.__getitem__)) == tar.read_bytes()


def test_another_file_is_refused(tmp_path: Path, site: Path) -> None:
    tar = tmp_path / "layer.tar"
    tar.write_bytes(tar_of(FILES))
    changes: dict[str, bytes] = {}
    found = list(cut(tar, SITE, installed(site), {"torch/lib.so": OLD}.get, changes.__setitem__))
    parts, raw = [part for part, _ in found], b"".join(data for _, data in found)
    for path in ("nvidia/lib.so", "torch/lib.so"):
        good = (site / path).read_bytes()
        (site / path).write_bytes(good[:-1] + b"?")
        with pytest.raises(ValueError, match=r"is not the file|cannot be applied"):
            b"".join(join(parts, raw, site, changes.__getitem__))
        (site / path).write_bytes(good)


def test_a_layer_that_comes_out_otherwise_gets_no_name(tmp_path: Path, site: Path) -> None:
    (tmp_path / "oci" / carry.BLOBS).mkdir(parents=True)
    wrong = "sha256:" + 64 * "0"
    (tmp_path / f"{carry.name(wrong)}.raw").write_bytes(zstandard.compress(b"tar"))
    layer = {"digest": wrong, "thorough": False, "parts": [{"kind": RAW, "size": 3}]}
    with pytest.raises(ValueError, match="a layer came out as sha256:"):
        carry.remade(tmp_path, layer, site, tmp_path / "oci")
    assert not [path for path in (tmp_path / "oci").rglob("*") if path.is_file()]


class Engine:
    """An engine that has one image, of one layer of wheels and one that is not."""

    def __init__(self, layers: list[bytes]) -> None:
        self.layers = layers

    def save(self, image: str, target: Path) -> None:
        assert image == "torch:1"
        blobs: dict[str, bytes] = {}

        def put(data: bytes) -> dict[str, Any]:
            digest = hashlib.sha256(data).hexdigest()
            blobs[digest] = data
            return {"digest": f"sha256:{digest}", "size": len(data)}

        held = [put(layer) for layer in self.layers]
        manifest = {"config": put(b'{"config": {}}'), "layers": held}
        index = {"manifests": [put(json.dumps(manifest).encode())]}
        files = {f"blobs/sha256/{name}": data for name, data in blobs.items()}
        target.write_bytes(tar_of({**files, "index.json": json.dumps(index).encode()}))


@pytest.mark.parametrize("thorough", [False, True])
def test_a_whole_image(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch, thorough: bool
) -> None:
    """Also its manifest; a layer that another packer made travels whole."""
    ours = tmp_path / "ours"
    carry.packed([tar_of(FILES)], ours, thorough=thorough)
    others = zstandard.compress(tar_of(FILES), 5)
    monkeypatch.setattr(carry, "connect", lambda: Engine([ours.read_bytes(), others]))
    there = tmp_path / "there.json"
    there.write_text(json.dumps({path: (f.size, f.sha256) for path, f in installed(site).items()}))
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "torch-1-cp312-cp312-linux_x86_64.whl", "w") as wheel:
        wheel.writestr("torch/lib.so", OLD)
    carry.pack("torch:1", there, wheels, tmp_path / "sent")
    plan = json.loads((tmp_path / "sent" / carry.PLAN).read_text())
    assert [layer["thorough"] for layer in plan["layers"]] == [thorough]
    carry.unpack(tmp_path / "sent", site, tmp_path / "oci")
    blobs = tmp_path / "oci" / carry.BLOBS
    assert {path.name for path in blobs.iterdir()} >= {
        hashlib.sha256(data).hexdigest() for data in (ours.read_bytes(), others)
    }
    assert len(list(blobs.iterdir())) == 4
    for path in blobs.iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    damaged = next((tmp_path / "sent" / carry.BLOBS).iterdir())
    damaged.write_bytes(damaged.read_bytes() + b"!")
    with pytest.raises(ValueError, match="was damaged on its way"):
        carry.unpack(tmp_path / "sent", site, tmp_path / "again")
