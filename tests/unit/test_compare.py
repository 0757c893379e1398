"""Comparing images that differ in one planted thing each."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from torch_images.errors import EngineError
from torch_images.oci.diff import compare
from torch_images.oci.layout import CONFIG, LAYER, MANIFEST

Change = Callable[[list[tarfile.TarInfo]], object]
Differences = list[tuple[int, str, str]]


def layer(change: Change = lambda _: None, form: int = tarfile.PAX_FORMAT) -> bytes:
    """A folder and two files, whose content is their name; `change` alters the members."""
    members = [tarfile.TarInfo(name) for name in ("d", "d/a", "d/b")]
    members[0].type = tarfile.DIRTYPE
    change(members)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=form) as archive:
        for member in members:
            headers = dict(member.pax_headers)
            data = headers.pop("content", member.name).encode()
            member.pax_headers = headers
            member.size = len(data) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def image(
    path: Path, *layers: bytes, compress: Callable[[bytes], bytes] | None = None, cuda: str = "13.0"
) -> Path:
    """An archive like those of `docker save`: gzip with `compress`, else zstd."""
    suffix = "gzip" if compress else "zstd"
    compress = compress or zstandard.ZstdCompressor().compress
    with tarfile.open(path, "w") as archive:

        def add(name: str, data: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))

        def blob(media_type: str, data: bytes) -> dict[str, Any]:
            digest = hashlib.sha256(data).hexdigest()
            add(f"blobs/sha256/{digest}", data)
            return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

        config = {
            "config": {"Labels": {"cuda": cuda}},
            "rootfs": {"diff_ids": [f"sha256:{hashlib.sha256(d).hexdigest()}" for d in layers]},
        }
        manifest = {
            "config": blob(CONFIG, json.dumps(config).encode()),
            "layers": [blob(f"{LAYER}+{suffix}", compress(data)) for data in layers],
        }
        descriptor = blob(MANIFEST, json.dumps(manifest).encode())
        add("index.json", json.dumps({"manifests": [descriptor]}).encode())
    return path


def differences(one: Path, two: Path) -> Differences:
    return [(each.layer, each.path, each.kind) for each in compare(one, two).differences]


def put(**fields: Any) -> Change:
    """Change fields of d/a."""

    def change(members: list[tarfile.TarInfo]) -> None:
        for name, value in fields.items():
            setattr(members[1], name, value)

    return change


@pytest.mark.parametrize(
    ("change", "path", "kind"),
    [
        (put(pax_headers={"content": "xyz"}), "d/a", "changed"),
        (put(mode=0o600), "d/a", "changed"),
        (put(gid=6), "d/a", "changed"),
        (put(mtime=1.5), "d/a", "changed"),
        (put(pax_headers={"SCHILY.xattr.security.capability": "x"}), "d/a", "changed"),
        (put(type=tarfile.SYMTYPE, linkname="b"), "d/a", "changed"),
        (lambda members: members.pop(1), "d/a", "missing"),
        (lambda members: members.append(tarfile.TarInfo("new")), "new", "added"),
        (put(uname="somebody"), "", "encoding"),
    ],
)
def test_compare_names_a_changed_file(tmp_path: Path, change: Change, path: str, kind: str) -> None:
    one = image(tmp_path / "1", layer(), layer())
    two = image(tmp_path / "2", layer(), layer(change))
    assert differences(one, two) == [(2, path, kind)]


def test_compression_alone_leaves_the_configuration_equal(tmp_path: Path) -> None:
    one = image(tmp_path / "1", layer())
    two = image(tmp_path / "2", layer(), compress=gzip.compress)
    result = compare(one, two)
    assert result.configs[0] == result.configs[1]
    assert result.manifests[0] != result.manifests[1]
    assert differences(one, two) == [(1, "", "compression")]


def test_configuration_and_layers_of_one_side(tmp_path: Path) -> None:
    one, two = image(tmp_path / "1", layer()), image(tmp_path / "2", layer(), layer(), cuda="12.8")
    assert differences(one, two) == [(0, "config.Labels", "changed"), (2, "", "added")]
    assert differences(two, one)[-1] == (2, "", "missing")


def test_compare_refuses_an_index(tmp_path: Path) -> None:
    path = tmp_path / "index"
    text = json.dumps({"manifests": []}).encode()
    digest = hashlib.sha256(text).hexdigest()
    index = json.dumps({"manifests": [{"digest": f"sha256:{digest}"}]}).encode()
    with tarfile.open(path, "w") as archive:
        for name, data in ((f"blobs/sha256/{digest}", text), ("index.json", index)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    with pytest.raises(EngineError, match="index"):
        compare(path, path)
