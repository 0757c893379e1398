"""Comparing images that differ in one planted thing each."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from typing import Any

import pytest
import zstandard

from torch_images.errors import EngineError
from torch_images.oci.diff import Difference, compare
from torch_images.oci.layout import CONFIG, INDEX, LAYER, MANIFEST

Change = Callable[[list[tarfile.TarInfo]], object]


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


class Image:
    """An image with its blobs: gzip with `compress`, else zstd."""

    def __init__(
        self, *layers: bytes, compress: Callable[[bytes], bytes] | None = None, cuda: str = "13.0"
    ) -> None:
        self.blobs: dict[str, bytes] = {}
        suffix = "gzip" if compress else "zstd"
        compress = compress or zstandard.ZstdCompressor().compress
        config = {
            "config": {"Labels": {"cuda": cuda}},
            "rootfs": {"diff_ids": [f"sha256:{hashlib.sha256(d).hexdigest()}" for d in layers]},
        }
        manifest = {
            "config": self.blob(CONFIG, json.dumps(config).encode()),
            "layers": [self.blob(f"{LAYER}+{suffix}", compress(data)) for data in layers],
        }
        self.digest = self.blob(MANIFEST, json.dumps(manifest).encode())["digest"]

    def blob(self, media_type: str, data: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = data
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def open(self, digest: str) -> io.BytesIO:
        return io.BytesIO(self.blobs[digest])


def compared(one: Image, two: Image) -> tuple[bool, tuple[Difference, ...]]:
    return compare((one.digest, two.digest), (one.open, two.open))


def differences(one: Image, two: Image) -> list[tuple[int, str]]:
    return [(each.layer, each.path) for each in compared(one, two)[1]]


def put(**fields: Any) -> Change:
    """Change fields of d/a."""

    def change(members: list[tarfile.TarInfo]) -> None:
        for name, value in fields.items():
            setattr(members[1], name, value)

    return change


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (put(pax_headers={"content": "xyz"}), "d/a"),
        (put(mode=0o600), "d/a"),
        (put(gid=6), "d/a"),
        (put(mtime=1.5), "d/a"),
        (put(pax_headers={"SCHILY.xattr.security.capability": "x"}), "d/a"),
        (put(type=tarfile.SYMTYPE, linkname="b"), "d/a"),
        (lambda members: members.pop(1), "d/a"),
        (lambda members: members.append(tarfile.TarInfo("new")), "new"),
        (put(uname="somebody"), ""),
    ],
)
def test_compare_names_a_changed_file(change: Change, path: str) -> None:
    assert differences(Image(layer(), layer()), Image(layer(), layer(change))) == [(2, path)]


def test_compression_alone_leaves_the_content_equal() -> None:
    one, two = Image(layer()), Image(layer(), compress=gzip.compress)
    assert one.digest != two.digest
    assert compared(one, two) == (True, ())


def test_configuration_and_layers_of_one_side() -> None:
    one, two = Image(layer()), Image(layer(), layer(), cuda="12.8")
    assert not compared(one, two)[0]
    assert differences(one, two) == differences(two, one) == [(0, "config.Labels"), (2, "")]


def test_compare_refuses_an_index() -> None:
    image = Image()
    image.digest = image.blob(INDEX, json.dumps({"manifests": []}).encode())["digest"]
    with pytest.raises(EngineError, match="index"):
        compared(image, image)
