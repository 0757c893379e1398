"""Comparing images that differ in one planted thing each."""

from __future__ import annotations

import copy
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

from torch_images.oci.diff import Comparison, compare
from torch_images.oci.layout import CONFIG, LAYER, MANIFEST

Change = Callable[[list[tarfile.TarInfo]], object]


def members() -> list[tarfile.TarInfo]:
    """A directory, two files and a link, the content of a file being its name."""
    made = []
    for name, kind in (("d", tarfile.DIRTYPE), ("d/a", tarfile.REGTYPE), ("d/b", tarfile.REGTYPE)):
        member = tarfile.TarInfo(name)
        member.type, member.mtime, member.mode = kind, 315532800, 0o644
        made.append(member)
    link = tarfile.TarInfo("d/link")
    link.type, link.linkname, link.mtime = tarfile.SYMTYPE, "a", 315532800
    return [*made, link]


def layer(change: Change = lambda _: None, form: int = tarfile.PAX_FORMAT) -> bytes:
    """A layer; `change` may alter its members. A pax header "content" replaces what is in a file."""
    found = members()
    change(found)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=form) as archive:
        for member in found:
            headers = dict(member.pax_headers)
            data = headers.pop("content", member.name).encode()
            member.pax_headers = headers
            member.size = len(data) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def image(
    path: Path, *layers: bytes, packed: str = "zstd", created: str = "x", cuda: str = "13.0"
) -> Path:
    """An archive like those of `docker save`."""
    pack: dict[str, Callable[[bytes], bytes]] = {
        "": bytes,
        "+gzip": lambda data: gzip.compress(data, mtime=0),
        "+zstd": zstandard.ZstdCompressor().compress,
    }
    suffix = f"+{packed}" if packed else ""
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
            "created": created,
            "config": {"Labels": {"cuda": cuda}},
            "rootfs": {"diff_ids": [f"sha256:{hashlib.sha256(d).hexdigest()}" for d in layers]},
        }
        manifest = {
            "config": blob(CONFIG, json.dumps(config).encode()),
            "layers": [blob(f"{LAYER}{suffix}", pack[suffix](data)) for data in layers],
        }
        descriptor = blob(MANIFEST, json.dumps(manifest).encode())
        add("index.json", json.dumps({"manifests": [descriptor]}).encode())
    return path


@pytest.fixture
def against(tmp_path: Path) -> Callable[..., Comparison]:
    """Compare a plain image of two layers with one whose second layer is another."""

    def run(second: bytes, **options: str) -> Comparison:
        first = image(tmp_path / "first.tar", layer(), layer())
        return compare(first, image(tmp_path / "second.tar", layer(), second, **options))

    return run


Against = Callable[..., Comparison]


@pytest.mark.parametrize("packed", ["", "gzip", "zstd"])
def test_equal_content_in_any_compression(against: Against, packed: str) -> None:
    found = against(layer(), packed=packed)
    assert found.configs[0] == found.configs[1]
    kinds = [difference.kind for difference in found.differences]
    assert kinds == ([] if packed == "zstd" else ["compression", "compression"])
    assert (found.manifests[0] == found.manifests[1]) == (packed == "zstd")


def put(**fields: Any) -> Change:
    """Change the fields of d/a."""

    def change(found: list[tarfile.TarInfo]) -> None:
        for name, value in fields.items():
            setattr(found[1], name, copy.copy(value))

    return change


def to_link(found: list[tarfile.TarInfo]) -> None:
    found[1].type, found[1].linkname = tarfile.SYMTYPE, "b"


@pytest.mark.parametrize("packed", ["", "gzip", "zstd"])
@pytest.mark.parametrize(
    ("change", "kind", "path", "first", "second"),
    [
        (put(pax_headers={"content": "xyz"}), "content", "d/a", "3 bytes ", "3 bytes "),
        (put(mode=0o600), "mode", "d/a", "0644", "0600"),
        (put(uid=5, gid=6), "owner", "d/a", "0:0", "5:6"),
        (put(mtime=1.5), "time", "d/a", "315532800", "1.500000000"),
        (
            put(pax_headers={"SCHILY.xattr.security.capability": "x"}),
            "attributes",
            "d/a",
            "{}",
            "{'SCHILY.xattr.security.capability': 'x'}",
        ),
        (to_link, "type", "d/a", "file", "symbolic link"),
        (lambda found: found.pop(1), "missing", "d/a", "file", ""),
        (lambda found: found[3].__setattr__("linkname", "b"), "link", "d/link", "a", "b"),
        (lambda found: found.insert(2, tarfile.TarInfo("new")), "added", "new", "", "file"),
        (lambda found: found.insert(1, found.pop(2)), "order", "d/a", "d/a", "d/b"),
    ],
)
def test_names_file_and_kind(
    against: Against, change: Change, kind: str, path: str, first: str, second: str, packed: str
) -> None:
    differences = against(layer(change), packed=packed).differences
    found = next(d for d in differences if d.kind == kind)
    assert (found.layer, found.path) == (2, path)
    assert found.first.startswith(first)
    assert found.second.startswith(second)
    also = {"content", "link"} if kind == "type" else set()
    also |= {"compression"} if packed != "zstd" else set()
    assert {d.kind for d in differences} - also == {kind}


def test_the_configuration_is_compared_by_its_leaves(against: Against) -> None:
    found = against(layer(), created="y", cuda="12.8").differences
    assert [(d.layer, d.path, d.kind, d.first, d.second) for d in found] == [
        (0, "config.Labels.cuda", "configuration", "13.0", "12.8"),
        (0, "created", "configuration", "x", "y"),
    ]


def test_layers_of_one_side_only(tmp_path: Path) -> None:
    one, two = image(tmp_path / "1", layer()), image(tmp_path / "2", layer(), layer())
    assert [(d.layer, d.kind) for d in compare(one, two).differences] == [(2, "added")]
    assert [(d.layer, d.kind) for d in compare(two, one).differences] == [(2, "missing")]
