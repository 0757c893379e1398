from __future__ import annotations

import dataclasses
import datetime
import hashlib
import io
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.packages import make_deb
from tests.servers import web_server
from tests.unit.fakes import FakeRunner, workspace_of
from torch_images.build.job import BuildOptions
from torch_images.build.plan import lock_image
from torch_images.build.prepare import must_bootstrap
from torch_images.config.choose import choose
from torch_images.config.lock_requests import BaseRequest
from torch_images.config.types import Base, Config
from torch_images.errors import (
    BuildError,
    CommandError,
    DiskError,
    LockError,
    NetworkError,
    TorchImagesError,
)
from torch_images.fetch import apt
from torch_images.fetch.apt import Resolver, confined, tree_room
from torch_images.fetch.bootstrap import BaseMaker, dpkg_options, kept
from torch_images.host.network import Network
from torch_images.host.runner import Completed, Runner
from torch_images.inside.times import EPOCH
from torch_images.locks.debs import DebLock, LockedDeb
from torch_images.oci.layout import layout_digest, layout_layers, normalise, write_layout
from torch_images.platforms import ARM64, native


def test_must_bootstrap(config: Config, root: Path, tmp_path: Path) -> None:
    """Not where the cache has the base already: a machine without mmdebstrap can build then."""
    space = workspace_of(root, tmp_path)
    image = lock_image(config, choose(config, platform=native().name), space.locks)
    assert must_bootstrap([image], space, BuildOptions())
    maker = BaseMaker(cache=tmp_path, resolver=Resolver(root=root, network=Network(), run=Runner()))
    maker._folder(image.spec.base, image.lock.base, dpkg_options(root)).mkdir(parents=True)
    assert not must_bootstrap([image], space, BuildOptions())
    assert must_bootstrap([image], space, BuildOptions(no_cache=True))
    foreign = dataclasses.replace(image, spec=dataclasses.replace(image.spec, platform=ARM64))
    assert must_bootstrap([foreign], space, BuildOptions()) is (native() != ARM64)


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


def test_links_and_owners_survive_and_setuid_does_not(tmp_path: Path) -> None:
    path = tmp_path / "t.tar"
    with tarfile.open(path, "w:") as archive:
        for name, kind, link in (
            ("./a", tarfile.REGTYPE, ""),
            ("./b", tarfile.LNKTYPE, "./a"),
            ("./c", tarfile.DIRTYPE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.uid, member.mode = kind, link, 42, 0o7755
            archive.addfile(member)
    out = io.BytesIO()
    normalise(path, out, keep=lambda name: name != "none")
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        a, b, c = archive.getmembers()
    assert (a.name, a.uid, a.mode, a.mtime) == ("a", 42, 0o1755, EPOCH)
    assert (b.islnk(), b.linkname, b.mode) == (True, "a", 0o1755)
    assert c.mode == 0o7755  # of a folder they decide the owner of new files


@pytest.mark.parametrize("path", ["etc/hostname", "etc/passwd-", "var/log/apt/term.log", "run/x",
    "var/cache/ldconfig/aux-cache", "usr/lib/python3.11/__pycache__/a.pyc", "tmp/a"])  # fmt: skip
def test_kept_drops_state_of_the_host(path: str) -> None:
    assert not kept(path)


class OneMirror(Resolver):
    """Names a mirror, whatever its scheme."""

    mirror: str

    def roots(self) -> tuple[str, ...]:
        return (self.mirror,)


def resolver(root: Path, mirror: str, run: FakeRunner | None = None) -> OneMirror:
    result = OneMirror(root=root, network=Network(), run=run or FakeRunner())
    object.__setattr__(result, "mirror", mirror)
    return result


def deb(name: str, version: str) -> LockedDeb:
    content = f"{name} {version}".encode()
    return LockedDeb(
        name=name,
        version=version,
        archive="debian",
        path=f"pool/{name}_{version}_all.deb",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def lock(*debs: LockedDeb) -> DebLock:
    return DebLock(
        name="base-x",
        date=datetime.date(2026, 1, 1),
        system="debian bookworm",
        request=("g++", "tini"),
        debs=debs,
    )


def files(*debs: LockedDeb) -> dict[str, bytes]:
    return {f"/{d.path}": f"{d.name} {d.version}".encode() for d in debs}


OLD, NEW, TINI = deb("g++", "1"), deb("g++", "2"), deb("tini", "1")


def test_packages_are_fetched_once_into_a_folder(tmp_path: Path) -> None:
    with web_server(files(OLD, NEW, TINI)) as (url, paths):
        maker = BaseMaker(cache=tmp_path, resolver=resolver(tmp_path, url))
        folder = maker.debs(BASE, lock(OLD, TINI))
        offline = BaseMaker(cache=tmp_path, resolver=resolver(tmp_path, "http://nobody"))
        assert offline.debs(BASE, lock(OLD, TINI)) == folder
    assert {p.name for p in folder.iterdir()} == {"g++_1_all.deb", "tini_1_all.deb"}
    assert len(paths) == 2


def test_vanished_packages_are_refused(tmp_path: Path) -> None:
    with web_server(files(NEW, TINI)) as (url, _):
        maker = BaseMaker(cache=tmp_path, resolver=resolver(tmp_path, url))
        with pytest.raises(LockError, match=r"has g\+\+ 1; run `invoke lock --select base-x`"):
            maker.debs(BASE, lock(OLD, TINI))
    assert not (tmp_path / "bases").exists()


@pytest.mark.parametrize(
    ("output", "kind", "text"),
    [
        ("E: Failed to fetch http://x  Could not connect", NetworkError, "TORCH_IMAGES_MIRROR"),
        (
            "E: Release file for http://x/InRelease is expired (invalid since 21d)",
            *(NetworkError, "too old or from the future; correct this machine's clock"),
        ),
        ("E: Unable to locate package tinii", LockError, "has no package tinii"),
        ("dpkg: error: No space left on device", DiskError, "the disk filled up"),
        ("E: unable to pick chroot mode automatically", BuildError, "install uidmap"),
        ("E: cannot unshare", BuildError, "E: cannot unshare"),
    ],
)
def test_a_failed_resolution_is_explained(
    root: Path, output: str, kind: type[TorchImagesError], text: str
) -> None:
    run = FakeRunner({"setpriv": (1, output)})
    with pytest.raises(kind) as caught:
        Resolver(root=root, network=Network(), run=run).resolve(
            BaseRequest(name="base-x", request=BASE.packages, base=BASE)
        )
    assert text in str(caught.value)


@pytest.mark.parametrize("output", ["E: unable to pick chroot mode", "E: unshare() failed: x"])
@pytest.mark.parametrize(("user", "value"), [(1000, "1"), (1000, "0"), (0, "1")])
def test_ubuntus_restriction_is_named_where_it_applies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, user: int, value: str
) -> None:
    (tmp_path / "restriction").write_text(f"{value}\n")
    monkeypatch.setattr(apt, "_RESTRICTION", tmp_path / "restriction")
    monkeypatch.setattr("os.geteuid", lambda: user)
    found = str(apt.explain("base x", "x", CommandError("mmdebstrap", 1, output)))
    named = "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0" in found
    assert named == (user == 1000 and value == "1")


@pytest.mark.parametrize(
    ("suite", "noun"), [("trixie", "debian-archive-keyring"), ("compat", "key in")]
)
def test_a_missing_key_is_named(suite: str, noun: str) -> None:
    output = "W: GPG error: http://x InRelease: NO_PUBKEY 6ED0E7B82643E131"
    assert noun in str(apt.explain("x", suite, CommandError("mmdebstrap", 1, output)))


APART = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]


@pytest.mark.parametrize(
    ("user", "may_mount", "words"),
    [
        (0, True, ["KILL", *APART, "mmdebstrap"]),
        (0, False, ["TERM", "mmdebstrap", "--skip=chroot/mount"]),
        (1000, True, ["TERM", "mmdebstrap"]),
    ],
)
def test_confined_has_mounts_of_its_own(
    monkeypatch: pytest.MonkeyPatch, user: int, may_mount: bool, words: list[str]
) -> None:
    """Root's would stay after it is killed, and `rm -rf` of the tree would empty /dev/shm."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    run = FakeRunner({"unshare": (0 if may_mount else 1, "")})
    command = confined(["mmdebstrap", "trixie"], run)
    assert command == ["setpriv", "--pdeathsig", *words, "trixie"]


def test_a_tree_that_a_killed_rootless_bootstrap_left_can_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files belong to subordinate users: whoever started it may not remove them."""
    tree = tmp_path / "torch-images-left" / "mmdebstrap.x"
    tree.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("torch_images.fetch.apt.left_behind", lambda _: (tree.parent,))
    for user, commands in ((0, 0), (1000, 1)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        run = FakeRunner()
        with tree_room(run) as room:
            assert room.parent == tmp_path
            assert room.stat().st_mode & 0o777 == 0o755
        assert len(run.commands) == commands
    helper = ["mmdebstrap", "--unshare-helper", "find", str(tree)]
    assert run.commands == [[*helper, "-xdev", "-mindepth", "1", "-delete"]]


class Bootstrap(FakeRunner):
    """A mmdebstrap that makes a tree, or fails afterwards."""

    fails: str = ""
    path: str = ""

    def run(self, command: Sequence[str], **options: Any) -> Completed:
        if "mmdebstrap" in command:
            self.path = options["env"]["PATH"]
            with tarfile.open(command[-2], "w") as tree:
                tree.addfile(tarfile.TarInfo("./etc"))
            if self.fails:
                raise CommandError("mmdebstrap", 1, self.fails)
        if "dpkg-deb" in command:
            return Runner().run(command)
        return super().run(command, **options)


def test_base_gets_its_final_name_when_complete(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A version manager's python3 was started for each package: 5 processor seconds of a base.
    monkeypatch.setenv("PATH", "/home/me/.pyenv/shims:/usr/bin:/bin")
    data = make_deb("tini", "1", {"usr/bin/tini": b"x"})
    deb = dataclasses.replace(
        TINI, size=len(data), sha256=hashlib.sha256(data).hexdigest(), path="pool/tini_1_amd64.deb"
    )
    run = Bootstrap()
    run.fails = "No space left on device"
    with web_server({f"/{deb.path}": data}) as (url, _):
        maker = BaseMaker(cache=tmp_path, resolver=resolver(root, url, run=run))
        with pytest.raises(DiskError):
            maker.base(BASE, lock(deb))
        assert [path.name for path in (tmp_path / "bases").iterdir() if path.is_dir()] == []
        run.fails = ""
        assert maker.layer(BASE, lock(deb)) is None
        layout = maker.base(BASE, lock(deb)).layout
    assert run.path.index("/usr/bin") < run.path.index("/home/me/.pyenv/shims")
    [blob] = layout_layers(layout)
    tar = zstandard.ZstdDecompressor().decompressobj().decompress(blob.read_bytes())
    assert maker.layer(BASE, lock(deb)) == f"sha256:{hashlib.sha256(tar).hexdigest()}"
