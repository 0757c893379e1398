"""Folders of inputs: filled bit by bit, each file checked; and a build that asks no other host."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.releases import T130
from tests.servers import web_server
from tests.unit.fakes import FakeRunner
from tests.unit.test_tasks import invoke
from tests.wheels import StandIn, index, make_wheel
from torch_images.build.bake import BuildOptions
from torch_images.build.bundle import MARK, fetch_inputs, offline
from torch_images.build.plan import LockedImage, lock_image
from torch_images.cli import verb
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import LockError, NetworkError, TorchImagesError, UsageError
from torch_images.fetch.apt import Resolver
from torch_images.fetch.packageindex import PackageIndex
from torch_images.host.network import Network
from torch_images.host.workspace import Workspace
from torch_images.locks.debs import DebLock, LockedDeb
from torch_images.locks.wheels import WheelLock, format_wheels, read_wheels

IMAGE = f"cu130-sm120-torch{T130}-trixie-runtime"


@dataclass
class World:
    """An image of small inputs, and the server that has them."""

    config: Config
    image: LockedImage
    workspace: Workspace
    folder: Path
    served: dict[str, bytes]
    asked: list[str]
    wheels: list[StandIn]
    shown: list[int] = field(default_factory=list)

    def fetch(self, **options: str) -> int:
        self.asked.clear()
        wanted = BuildOptions(**options)  # type: ignore[arg-type]
        return fetch_inputs(
            self.config, [self.image], self.folder, self.workspace, wanted, run=FakeRunner()
        )

    def files(self) -> set[str]:
        paths = (p for p in self.folder.rglob("*") if p.is_file())
        return {str(p.relative_to(self.folder)) for p in paths} - {MARK}


def of(lock: WheelLock, wheel: StandIn) -> WheelLock:
    return dataclasses.replace(lock, wheels=(wheel.locked,), request=(wheel.locked.name,))


def deb(name: str, data: bytes) -> LockedDeb:
    sha256 = hashlib.sha256(data).hexdigest()
    path = f"pool/{name}_1_amd64.deb"
    return LockedDeb(
        name=name, version="1", archive="debian", path=path, size=len(data), sha256=sha256
    )


@pytest.fixture
def world(
    config: Config, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    (tmp_path / "made").mkdir()
    names = ("torch", "tool-build", "tool-sbom", "pytest")
    wheels = [make_wheel(tmp_path / "made", name, "1.0") for name in names]
    contents = {"one": b"one", "two": b"two"}
    debs = tuple(deb(name, data) for name, data in contents.items())
    image = lock_image(config, choose(config, arch="12.0"), root / "locks")
    lock = image.lock
    small = dataclasses.replace(
        lock,
        wheels=of(lock.wheels, wheels[0]),
        build=of(lock.build, wheels[1]),
        sbom=of(lock.sbom, wheels[2]),
        base=dataclasses.replace(lock.base, debs=debs),
        compat=None,
    )
    locks = tmp_path / "locks"
    locks.mkdir()
    verify = of(read_wheels(root / "locks" / "tools-verify.txt"), wheels[3])
    (locks / "tools-verify.txt").write_text(format_wheels(verify))
    pages = {f"/debian/{d.path}": contents[d.name] for d in debs} | index(wheels)
    with web_server(pages) as (url, asked):
        monkeypatch.setattr(Resolver, "roots", lambda *_: (f"{url}/debian",))
        network = Network(index=f"{url}/simple")
        workspace = Workspace(root=root, cache=tmp_path / "cache", network=network, locks=locks)
        made = dataclasses.replace(image, lock=small)
        yield World(config, made, workspace, tmp_path / "inputs", pages, asked, wheels)


def test_a_folder_gets_every_input_and_nothing_else(world: World) -> None:
    size = world.fetch()
    wheels = {f"wheels/{wheel.locked.filename}" for wheel in world.wheels}
    debs = {f"debs/{d.sha256}.deb" for d in world.image.lock.base.debs}
    assert world.files() == wheels | debs
    assert size == sum(wheel.locked.size for wheel in world.wheels) + 6
    assert not world.workspace.cache.exists()


def test_a_second_call_asks_for_what_is_missing_or_damaged(world: World) -> None:
    world.fetch()
    world.fetch()
    assert world.asked == []
    torch, tool = (world.folder / "wheels" / world.wheels[n].locked.filename for n in (0, 1))
    torch.unlink()
    tool.write_bytes(b"damaged")
    left = world.folder / "wheels" / ".partial-x"  # of a process that was killed
    left.write_bytes(b"half")
    world.fetch()
    assert {Path(path).name for path in world.asked if path.endswith(".whl")} == {
        torch.name,
        tool.name,
    }
    assert tool.read_bytes() == world.wheels[1].data
    assert not left.exists()


@pytest.mark.parametrize("served", [b"another", None])
def test_what_is_not_the_locked_file_gets_no_name(world: World, served: bytes | None) -> None:
    """Nor does what is gone; all others are kept, and the next call goes on."""
    [path] = [p for p in world.served if p.endswith(world.wheels[0].locked.filename)]
    right = world.served.pop(path)
    if served is not None:
        world.served[path] = served
    with pytest.raises(LockError, match=r"torch"):
        world.fetch()
    assert f"wheels/{world.wheels[0].locked.filename}" not in world.files()
    assert not [name for name in world.files() if "partial" in name]
    world.served[path] = right
    world.fetch()
    assert f"wheels/{world.wheels[0].locked.filename}" in world.files()


def test_a_deb_that_no_mirror_has_is_named(world: World) -> None:
    del world.served["/debian/pool/two_1_amd64.deb"]
    world.image = dataclasses.replace(
        world.image,
        spec=dataclasses.replace(
            world.image.spec, base=dataclasses.replace(world.image.spec.base, snapshot="")
        ),
    )
    with pytest.raises(LockError, match=r"no mirror and no snapshot archive has two 1; run"):
        world.fetch()


def test_a_build_from_it_asks_no_other_host(world: World, tmp_path: Path) -> None:
    world.fetch()
    world.asked.clear()
    options = BuildOptions(mirrors=("http://x.invalid",))
    with offline(world.config, [world.image], world.folder, world.workspace, options) as (
        workspace,
        wanted,
    ):
        network = workspace.network
        assert workspace.cache == world.folder
        assert network.on_loopback
        assert wanted.locked
        named = {network.index, network.compat_mirror, network.source_mirror, *wanted.mirrors}
        assert all(url and url.startswith("http://127.0.0.1:") for url in named)
        assert (network.proxies, network.ca_bundle) == ((), None)
        (tmp_path / "got").mkdir()
        with PackageIndex(network) as asked:
            for wheel in world.wheels:
                path = asked.fetch(wheel.locked, tmp_path / "got")
                assert path.read_bytes() == wheel.data
            other = dataclasses.replace(world.wheels[0].locked, name="other")
            assert asked.find(other) is None
    assert world.asked == []


def test_what_is_missing_is_said_before_a_build(world: World) -> None:
    world.fetch()
    for wheel in world.wheels[:2]:
        (world.folder / "wheels" / wheel.locked.filename).write_bytes(b"damaged")
    one, _ = world.image.lock.base.debs
    (world.folder / "debs" / f"{one.sha256}.deb").unlink()
    names = f"{world.wheels[0].locked.filename} and 2 more"
    way = f"run `invoke lock --fetch {world.folder} --image {IMAGE}` with a network"
    image = dataclasses.replace(world.image, spec=dataclasses.replace(world.image.spec, prune=True))
    with (
        pytest.raises(LockError) as error,
        offline(world.config, [image], world.folder, world.workspace, BuildOptions()),
    ):
        pytest.fail("it began")
    assert str(error.value) == f"{world.folder} lacks {names}; {way}"


@pytest.mark.parametrize(("mode", "lacks"), [("auto", False), ("required", True)])
def test_a_compat_library_is_missing_where_it_must_be_there(
    world: World, root: Path, mode: str, *, lacks: bool
) -> None:
    world.fetch()
    compat = DebLock(
        name="compat-cu130",
        date=world.image.lock.base.date,
        system="x",
        request=("cuda-compat-13-0",),
        debs=(deb("cuda-compat-13-0", b"x"),),
    )
    image = dataclasses.replace(
        world.image, lock=dataclasses.replace(world.image.lock, compat=compat)
    )
    options = BuildOptions(compat=mode)
    held = offline(world.config, [image], world.folder, world.workspace, options)
    if lacks:
        with pytest.raises(LockError, match=r"lacks cuda-compat-13-0_1_amd64.deb; run"), held:
            pytest.fail("it began")
    else:
        with held:
            pass


def test_a_folder_of_somebody_else_stays(world: World) -> None:
    world.folder.mkdir()
    (world.folder / "wheels").mkdir()
    with pytest.raises(UsageError, match="is not a folder of inputs, and not empty; name a new"):
        world.fetch()
    with (
        pytest.raises(UsageError, match="is not a folder of inputs; fill it with `invoke lock"),
        offline(world.config, [world.image], world.folder, world.workspace, BuildOptions()),
    ):
        pytest.fail("it began")
    assert [path.name for path in world.folder.iterdir()] == ["wheels"]
    assert world.asked == []


def test_what_no_folder_can_have(world: World, root: Path) -> None:
    ubuntu = lock_image(world.config, choose(world.config, base="ubuntu24.04"), root / "locks")
    wheel = dataclasses.replace(world.wheels[0].locked, index="https://x.invalid/whl")
    lock = world.image.lock
    elsewhere = dataclasses.replace(lock, wheels=dataclasses.replace(lock.wheels, wheels=(wheel,)))
    other = dataclasses.replace(world.image, lock=elsewhere)
    for image, said in (
        (ubuntu, "base ubuntu24.04 is an image of a registry"),
        (other, "has wheels of https://x.invalid/whl, and a folder of inputs has one index"),
    ):
        world.image = image
        with pytest.raises(UsageError, match=said):
            world.fetch()
        assert not world.folder.exists()


def test_a_builder_elsewhere_cannot_ask_this_machine(world: World) -> None:
    world.fetch()
    options = BuildOptions(builder="far")
    with (
        pytest.raises(UsageError, match="--offline builds with this machine's engine"),
        offline(world.config, [world.image], world.folder, world.workspace, options),
    ):
        pytest.fail("it began")


def test_a_source_that_does_not_answer(world: World) -> None:
    world.workspace = dataclasses.replace(
        world.workspace, network=Network(index="http://127.0.0.1:1/simple")
    )
    with pytest.raises(NetworkError) as error:
        world.fetch()
    assert isinstance(error.value, TorchImagesError)
    assert not [name for name in world.files() if name.startswith("wheels")]


def test_no_proxy_is_asked_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "https_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "http://x.invalid")
    verb.leave_proxies()
    assert not [name for name in os.environ if name.lower().endswith("_proxy")]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("lock --fetch x", "--fetch FOLDER and --image IMAGE go together; give both"),
        (f"lock --image {IMAGE}", "--fetch FOLDER and --image IMAGE go together; give both"),
        (f"lock --check --fetch x --image {IMAGE}", "--fetch takes what is locked; give it alone"),
        ("lock --fetch x --image cu999", "no image matches 'cu999'"),
        (f"build --select {IMAGE} --offline /nowhere", "/nowhere is not a folder of inputs; fill"),
        ("build --stale --offline x", "--stale builds what images.yaml has, and verifies it"),
        ("build --source fork --torch-source . --offline x", "--offline builds what is locked"),
    ],
)
def test_what_a_user_is_told(root: Path, words: str, error: str) -> None:
    done = invoke(root, *words.split())
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert done.stderr.startswith(f"error: {error}")
