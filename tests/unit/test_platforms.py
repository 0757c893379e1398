"""linux/arm64 beside linux/amd64: names, choices, locks, bases, contexts, and checks."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.fakes import FakeRunner
from torch_images.build import prepare
from torch_images.build.bake import BuildOptions
from torch_images.build.plan import ImagePlan, lock_image, plan_images, version
from torch_images.build.render import environment
from torch_images.build.standalone import check_standalone
from torch_images.config.choose import choose
from torch_images.config.image import ImageSpec, short
from torch_images.config.lock_requests import TOOLS, image_inputs, tool_input
from torch_images.config.lock_selection import inputs
from torch_images.config.matrix import matrix
from torch_images.config.selection import chosen, find_image, select
from torch_images.config.types import Config
from torch_images.errors import LockError, UsageError
from torch_images.fetch.bootstrap import BaseMaker, ReadyBase, command, repository
from torch_images.fetch.tools import install_tools
from torch_images.host.engine import Engine
from torch_images.host.network import Network
from torch_images.host.runner import Completed, Runner
from torch_images.host.workspace import Workspace
from torch_images.locks.debs import parse_debs, read_debs
from torch_images.locks.image_lock import image_lock, parse_image_lock
from torch_images.locks.wheels import best_wheel, parse_wheels, read_wheels, uv_platform
from torch_images.oci import layout
from torch_images.platforms import AMD64, ARM64, PLATFORMS, native, of_machine
from torch_images.verify.verify import claim


def specs(config: Config, **axes: str) -> tuple[ImageSpec, ImageSpec]:
    """The same image for both platforms; without axes the default one."""
    made = [choose(config, **axes, platform=p.name) for p in PLATFORMS]
    return made[0], made[1]


@pytest.fixture
def images(config: Config, root: Path) -> tuple[ImagePlan, ImagePlan]:
    """The default image for both platforms, with its Dockerfile."""
    amd, arm = plan_images(config, specs(config), root, root / "locks")
    return amd, arm


@pytest.mark.parametrize("same", [True, False])
def test_bytecode_is_made_by_the_python_of_the_image(
    config: Config, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """The engine's own base is faster than an emulator, if it has the same Python."""
    spec = choose(config, platform=ARM64.name)
    lock = read_debs(root / "locks" / "base-trixie-arm64.txt")
    if not same:
        older = tuple(
            dataclasses.replace(deb, version="3.13.0-1")
            if deb.name == "python3.13-minimal"
            else deb
            for deb in lock.debs
        )
        lock = dataclasses.replace(lock, debs=older)
    own, native_base = (
        ReadyBase(lock=lock, layout=Path(), digest=name) for name in ("own", "native")
    )
    workspace = Workspace(root=root, cache=tmp_path, network=Network(), locks=root / "locks")
    engine = cast("Engine", SimpleNamespace(platform=lambda: AMD64))
    preparer = prepare.Preparer(config, workspace, BuildOptions(), FakeRunner(), engine)
    monkeypatch.setattr(preparer, "base", lambda *_: native_base)
    assert preparer._native(spec, own) is (native_base if same else own)


def test_the_platform_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """MacOS and Linux have different words for one processor."""
    assert [of_machine(m) for m in ("x86_64", "aarch64", "arm64")] == [AMD64, ARM64, ARM64]
    assert of_machine("riscv64") == of_machine("") == AMD64
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert native() == ARM64


def test_names_of_images_end_in_their_platform(
    config: Config, images: tuple[ImagePlan, ImagePlan]
) -> None:
    amd, arm = (plan.spec for plan in images)
    assert arm.id == f"{amd.id}-arm64"
    assert short(config, arm) == f"{short(config, amd)}-arm64"
    assert re.fullmatch(r".+-[0-9a-f]{12}", version(config, images[0]))
    assert re.fullmatch(r".+-[0-9a-f]{12}-arm64", version(config, images[1]))
    assert arm.arguments[-2:] == ("--platform", "linux/arm64")
    assert find_image(config, arm.id) == arm
    assert find_image(config, amd.id) == amd
    for plan in images:
        assert claim(config, plan, "")["platform"] == plan.spec.platform.name


def test_the_platform_that_nobody_names_is_this_machines(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert choose(config).platform == ARM64
    assert choose(dataclasses.replace(config, platforms=(AMD64,))).platform == AMD64
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert choose(config).platform == AMD64


def test_images_are_chosen_by_platform(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A glob means this machine's own images, unless it or --platform says otherwise."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")

    def found(pattern: str, platform: str = "") -> set[str]:
        return {s.platform.name for s in chosen(config, pattern, {"platform": platform})}

    assert found("cu130-*") == {"linux/amd64"}
    assert found("cu130-*-arm64") == {"linux/arm64"}
    assert found("cu130-*,cu132-*-arm64") == {"linux/amd64", "linux/arm64"}
    assert found("cu130-*", "linux/arm64") == {"linux/arm64"}
    assert found("cu130-*", "all") == found("", "all") == {"linux/amd64", "linux/arm64"}
    assert found("", "linux/arm64") == {"linux/arm64"}
    assert len(select(config, "*")) == len(matrix(config))
    for pattern in ("*", ""):
        with pytest.raises(UsageError, match=r"^unknown platform 'arm64'; did you mean 'linux/a"):
            chosen(config, pattern, {"platform": "arm64"})
    with pytest.raises(UsageError, match=r"^--select and single axes exclude each other"):
        chosen(config, "*", {"platform": "linux/arm64", "cuda": "13.0"})


def test_no_host_of_a_platform_has_some_gpus(config: Config) -> None:
    """GB10 and Thor are built together with an Arm processor; every card fits either host."""
    amd, arm = specs(config)
    alone = {a.name for a in config.architectures if config.foreign(a, AMD64)}
    assert alone == {"11.0", "12.1"}
    assert not any(config.foreign(a, ARM64) for a in config.architectures)
    assert {a.name for a in arm.architectures} - {a.name for a in amd.architectures} == alone
    with pytest.raises(UsageError, match=r"GB10 and DGX Spark are in hosts with Arm processors"):
        choose(config, cuda="13.0", arch="12.1", platform="linux/amd64")
    with pytest.raises(
        UsageError, match=r"platform linux/arm64 cannot be built: the wheel of torc"
    ):
        choose(config, cuda="12.8", platform="linux/arm64")


def test_locks_of_a_platform_have_names_of_their_own(config: Config) -> None:
    amd, arm = ({i.name for i in image_inputs(config, s)} for s in specs(config))
    assert arm == {f"{name}-arm64" for name in amd}
    [devel] = specs(config, variant="devel")[1:]
    items = image_inputs(config, devel)
    assert {"base-trixie-arm64-devel", "base-trixie-arm64"} <= {item.name for item in items}
    assert {item.platform for item in items} == {ARM64}


def test_tools_of_python_alone_have_one_lock(config: Config, root: Path) -> None:
    """Those of a single platform have one each; all others must be pure."""
    native_ = {name for name in TOOLS if tool_input(name, ARM64) != tool_input(name)}
    assert native_ == {"tools-build", "tools-code"}
    assert {f"{name}-arm64" for name in native_} < {i.name for i in inputs(config, "tools-*")}
    for name in TOOLS.keys() - native_:
        for wheel in read_wheels(root / "locks" / f"{name}.txt").wheels:
            assert wheel.filename.endswith("-none-any.whl")


def test_wheels_of_a_platform() -> None:
    arm = "a-1-cp311-cp311-manylinux_2_28_aarch64.whl"
    legacy = "a-1-cp311-cp311-manylinux2014_aarch64.whl"
    amd, old = arm.replace("aarch64", "x86_64"), "a-1-cp311-cp311-manylinux1_x86_64.whl"
    assert best_wheel((amd, arm, legacy), "3.11", ARM64) == arm
    assert best_wheel((amd, arm, legacy), "3.11") == amd
    assert best_wheel((legacy,), "3.11", ARM64) == legacy
    assert best_wheel((old,), "3.11") == old
    assert best_wheel((old.replace("x86_64", "aarch64"),), "3.11", ARM64) is None
    assert [uv_platform(p) for p in PLATFORMS] == [
        "x86_64-manylinux_2_36",
        "aarch64-manylinux_2_36",
    ]


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("wheel", "# platform: linux/arm64\n", "", "is not a wheel for Python 3.13 on linux/amd64"),
        ("wheel", "linux/arm64", "linux/amd64", "names the platform linux/amd64, which is the def"),
        ("wheel", "linux/arm64", "linux/mips", "unknown platform 'linux/mips'"),
        ("base", "# platform: linux/arm64\n", "", "_arm64.deb is not a package for linux/amd64"),
        ("base", "linux/arm64", "arm64", "unknown platform 'arm64'"),
    ],
)
def test_a_lock_of_another_platform_is_refused(
    root: Path, file: str, old: str, new: str, problem: str
) -> None:
    name = {"wheel": "wheel-cu130-torch2.14.1-py313-arm64", "base": "base-trixie-arm64"}[file]
    text = (root / "locks" / f"{name}.txt").read_text()
    assert old in text
    parse: Callable[[str, str], Any] = parse_wheels if file == "wheel" else parse_debs
    assert parse(text, name).platform == ARM64
    with pytest.raises(LockError, match=problem):
        parse(text.replace(old, new), name)


def test_a_lock_in_the_place_of_another_platforms(
    config: Config, tmp_path: Path, root: Path
) -> None:
    """What a copied file has is valid by itself, and not what was asked for."""
    arm, name, held = specs(config)[1], "base-trixie-arm64.txt", root / "locks" / "base-trixie.txt"
    texts = image_lock(config, arm, root / "locks").texts()
    assert parse_image_lock(texts).platform == ARM64
    mixed = {name: text for name, text in texts.items() if not name.startswith("base-")}
    with pytest.raises(LockError, match=r"arm64 is for linux/arm64, base-trixie for linux/amd64"):
        parse_image_lock({**mixed, held.name: held.read_text()})
    for path in (root / "locks").iterdir():
        (tmp_path / path.name).symlink_to(held if path.name == name else path)
    with pytest.raises(LockError, match=rf"^locks/{name} is for linux/amd64, expected linux/arm64"):
        image_lock(config, arm, tmp_path)


def test_a_base_is_bootstrapped_for_its_platform(config: Config, root: Path) -> None:
    lock = read_debs(root / "locks" / "base-trixie-arm64.txt")
    words = command(specs(config)[1].base, lock, Path("/t"), "http://x", ())
    assert "--architectures=arm64" in words
    files = repository("trixie", {}, ARM64)
    assert set(files) == {"dists/trixie/Release", "dists/trixie/main/binary-arm64/Packages"}
    assert b"Architectures: arm64\n" in files["dists/trixie/Release"]


def test_a_layout_is_of_a_platform_and_hands_it_on(tmp_path: Path) -> None:
    (tmp_path / "tar").write_bytes(b"")
    base = tmp_path / "base"
    layout.write_layout(base, tmp_path / "tar", history="x", platform=ARM64)
    on_it = layout.image(base, [])
    assert json.loads(on_it.documents[0])["architecture"] == "arm64"
    assert json.loads(layout.image(None, []).documents[0])["architecture"] == "amd64"


def test_only_an_image_for_arm64_has_its_bytecode_made_elsewhere(
    images: tuple[ImagePlan, ImagePlan],
) -> None:
    """So that images for amd64 stay what they are."""
    amd, arm = images
    stages = re.findall(r"^FROM (.+)$", arm.context.dockerfile, re.MULTILINE)
    assert stages == [
        "parent AS plain",
        "--platform=$BUILDPLATFORM native AS bytecode",
        "plain AS environment",
        "environment AS runtime",
    ]
    assert "compile-wheels" not in arm.context.dockerfile
    assert {f.path for f in arm.context.files if f.path.startswith("native/")} == {
        "native/compile-elsewhere",
        "native/take-bytecode",
    }
    assert "native" not in amd.context.dockerfile
    assert not [f.path for f in amd.context.files if f.path.startswith("native/")]


@pytest.mark.parametrize(
    ("machine", "builder", "taken"),
    [
        ("x86_64", "", "base-trixie"),
        ("aarch64", "", "base-trixie-arm64"),
        ("x86_64", "far", "base-trixie-arm64"),  # nobody knows that builder's processor
    ],
)
def test_whose_python_makes_bytecode(
    config: Config,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    builder: str,
    taken: str,
) -> None:
    def base(_: object, __: object, lock: Any) -> ReadyBase:
        return ReadyBase(lock=lock, layout=Path("/", lock.name), digest="d")

    monkeypatch.setattr(BaseMaker, "base", base)
    monkeypatch.setattr(Engine, "platform", lambda _: of_machine(machine))
    workspace = Workspace(root=root, cache=Path("/c"), network=Network(), locks=root / "locks")
    made = prepare.Preparer(
        config,
        workspace,
        BuildOptions(builder=builder),
        FakeRunner(),
        Engine(None),  # type: ignore[arg-type]
    )
    amd, arm = (lock_image(config, spec, root / "locks") for spec in specs(config))
    assert made.parts(arm)[1].contexts()["native"] == f"oci-layout:///{taken}@d"
    assert "native" not in made.parts(amd)[1].contexts()


def test_tools_are_installed_for_the_platform_of_their_lock(root: Path, tmp_path: Path) -> None:
    class Recorder(Runner):
        words: tuple[str, ...] = ()

        def run(self, command: Any, **_: Any) -> Completed:
            self.words = tuple(command)
            return Completed(0, "")

    run = Recorder()
    workspace = Workspace(root=root, cache=tmp_path, network=Network(), locks=root / "locks")
    install_tools("tools-build-arm64", workspace, run)
    assert run.words[run.words.index("--python-platform") + 1] == "aarch64-manylinux_2_36"


def test_what_inductor_is_told(config: Config, root: Path) -> None:
    """g++ 12 crashes on torch's headers for SVE then: tests/container/test_compile.py shows it."""
    made = (lock_image(config, spec, root / "locks") for spec in specs(config))
    amd, arm = (
        environment(image.spec, dataclasses.replace(image.lock, compat=None)) for image in made
    )
    no_headers, no_trials = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "TORCHINDUCTOR_VEC_ISA_OK"
    assert arm.pop(no_headers) == "0"
    assert amd.pop(no_trials) == "1"
    assert arm == amd


def test_standalone_folders_are_for_amd64_only(config: Config, root: Path) -> None:
    """One for arm64 would lack the base whose Python makes bytecode."""
    amd, arm = (lock_image(config, spec, root / "locks") for spec in specs(config))
    check_standalone(amd)
    with pytest.raises(
        UsageError, match=r"^a standalone folder is only for linux/amd64, but cu130-torch"
    ):
        check_standalone(arm)
