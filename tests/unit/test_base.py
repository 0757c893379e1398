from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.unit.fakes import FakeRunner
from torch_images.base import bootstrap, command, kept
from torch_images.config import Base
from torch_images.errors import BuildError, DiskError, NetworkError, TorchImagesError
from torch_images.network import Network
from torch_images.oci import EPOCH, layout_digest, normalise, write_layout

BASE = Base(
    name="bookworm",
    description="d",
    python="3.11",
    system="debian bookworm",
    packages=("tini", "g++"),
    suite="bookworm",
)


def make_tar(path: Path, names: list[str], time: int) -> Path:
    with tarfile.open(path, "w:", format=tarfile.PAX_FORMAT) as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.mtime = time
            member.uname = "somebody"
            if name.endswith("/"):
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            else:
                member.size = len(name)
                member.pax_headers = {"comment": str(time)}
                archive.addfile(member, io.BytesIO(name.encode()))
    return path


def test_equal_trees_give_equal_layouts(tmp_path: Path) -> None:
    names = ["./", "./etc/", "./etc/b", "./a"]
    digests = []
    for run, (order, time) in enumerate([(names, 5), (names[::-1], 10**9)]):
        tar = make_tar(tmp_path / f"{run}.tar", order, time)
        layer = tmp_path / f"{run}.layer"
        with layer.open("wb") as stream:
            normalise(tar, stream)
        digests.append(write_layout(tmp_path / f"layout{run}", layer, history="h"))
    assert digests[0] == digests[1] == layout_digest(tmp_path / "layout0")


def test_a_layout_names_what_it_holds(tmp_path: Path) -> None:
    layer = make_tar(tmp_path / "layer", ["./a"], EPOCH)
    digest = write_layout(tmp_path / "layout", layer, history="h", env=("PATH=/bin",))
    blobs = tmp_path / "layout" / "blobs" / "sha256"
    for blob in blobs.iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    manifest = json.loads((blobs / digest.removeprefix("sha256:")).read_text())
    config = json.loads((blobs / manifest["config"]["digest"].removeprefix("sha256:")).read_text())
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
    assert config["config"]["Env"] == ["PATH=/bin"]


def test_links_and_owners_survive(tmp_path: Path) -> None:
    path = tmp_path / "t.tar"
    with tarfile.open(path, "w:") as archive:
        for name, kind, link in (("./a", tarfile.REGTYPE, ""), ("./b", tarfile.LNKTYPE, "./a")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.uid, member.mode = kind, link, 42, 0o4755
            archive.addfile(member)
    out = io.BytesIO()
    normalise(path, out, keep=lambda name: name != "none")
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        a, b = archive.getmembers()
    assert (a.name, a.uid, a.mode, a.mtime) == ("a", 42, 0o4755, EPOCH)
    assert (b.islnk(), b.linkname) == (True, "a")


@pytest.mark.parametrize("path", ["etc/hostname", "etc/passwd-", "var/log/apt/term.log", "run/x",
    "var/cache/ldconfig/aux-cache", "usr/lib/python3.11/__pycache__/a.pyc", "tmp/a"])  # fmt: skip
def test_left_overs_are_dropped(path: str) -> None:
    assert not kept(path)


@pytest.mark.parametrize("path", ["etc/passwd", "run", "tmp", "var/log", "usr/bin/python3", "."])
def test_content_is_kept(path: str) -> None:
    assert kept(path)


def test_the_command_names_packages_and_mirrors() -> None:
    words = command(BASE, Path("/t.tar"), ("http://mirror/debian",))
    assert "--include=g++,tini" in words
    assert words[-3:] == ["bookworm", "/t.tar", "http://mirror/debian"]


@pytest.mark.parametrize(
    ("output", "kind", "text"),
    [
        ("E: Failed to fetch http://x  Could not connect", NetworkError, "TORCH_IMAGES_MIRROR"),
        ("E: Unable to locate package tinii", BuildError, "has no package tinii"),
        ("dpkg: error: No space left on device", DiskError, "the disk filled up"),
        ("E: cannot unshare", BuildError, "E: cannot unshare"),
    ],
)
def test_a_failed_bootstrap_leaves_nothing(
    tmp_path: Path, output: str, kind: type[TorchImagesError], text: str
) -> None:
    with pytest.raises(kind) as caught:
        bootstrap(
            BASE, cache=tmp_path, network=Network(), run=FakeRunner({"mmdebstrap": (1, output)})
        )
    assert text in str(caught.value)
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == []
