"""linux/arm64 beside linux/amd64: names, choices, locks, bases, contexts, and checks."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.fakes import FakeRunner, workspace_of
from torch_images.build import prepare
from torch_images.build.job import BuildOptions, Job
from torch_images.build.plan import ImagePlan, lock_image, plan_images, version
from torch_images.config.choose import choose, choose_glob, choose_id, choose_images
from torch_images.config.image import ImageSpec, short
from torch_images.config.lock_requests import image_inputs
from torch_images.config.matrix import matrix
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.fetch.bootstrap import BaseMaker, ReadyBase
from torch_images.host.engine import Engine
from torch_images.locks.debs import DebLock
from torch_images.locks.files import read
from torch_images.platforms import AMD64, ARM64, PLATFORMS, native, of_machine
from torch_images.verify.verify import claim


def specs(config: Config, **axes: str) -> tuple[ImageSpec, ImageSpec]:
    """The same image for both platforms; without axes the default one."""
    chosen = [choose(config, **axes, platform=p.name) for p in PLATFORMS]
    return chosen[0], chosen[1]


@pytest.fixture
def images(config: Config, root: Path) -> tuple[ImagePlan, ImagePlan]:
    """The default image for both platforms, with its Dockerfile."""
    amd, arm = plan_images(config, specs(config), root, root / "locks")
    return amd, arm


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
    assert choose_id(config, arm.id) == arm
    assert choose_id(config, amd.id) == amd
    for plan in images:
        assert claim(config, plan)["platform"] == plan.spec.platform.name


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

    def select(pattern: str, platform: str = "") -> set[str]:
        return {s.platform.name for s in choose_images(config, pattern, {"platform": platform})}

    assert select("cu130-*") == {"linux/amd64"}
    assert select("cu130-*-arm64") == {"linux/arm64"}
    assert select("cu128-*,cu130-*-arm64") == {"linux/amd64", "linux/arm64"}
    assert select("cu130-*", "linux/arm64") == {"linux/arm64"}
    assert select("cu130-*", "all") == select("", "all") == {"linux/amd64", "linux/arm64"}
    assert select("", "linux/arm64") == {"linux/arm64"}
    assert len(choose_glob(config, "*")) == len(matrix(config))
    for pattern in ("*", ""):
        with pytest.raises(UsageError, match=r"^unknown platform 'arm64'; did you mean 'linux/a"):
            choose_images(config, pattern, {"platform": "arm64"})


def test_no_host_of_a_platform_has_some_gpus(config: Config) -> None:
    """GB10 and Thor are built together with an Arm processor; every card fits either host."""
    amd, arm = specs(config)
    alone = {a.name for a in config.architectures if config.foreign(a, AMD64)}
    assert alone == {"12.1"}
    assert not any(config.foreign(a, ARM64) for a in config.architectures)
    assert {a.name for a in arm.architectures} - {a.name for a in amd.architectures} == alone
    with pytest.raises(UsageError, match=r"GB10 and DGX Spark are in hosts with Arm processors"):
        choose(config, cuda="13.0", arch="12.1", platform="linux/amd64")
    with pytest.raises(UsageError, match=r"arm64 cannot be built: the wheel of torc"):
        choose(config, cuda="12.8", platform="linux/arm64")


def test_locks_of_a_platform_have_names_of_their_own(config: Config) -> None:
    amd, arm = ({i.name for i in image_inputs(config, s)} for s in specs(config))
    assert arm == {f"{name}-arm64" for name in amd}
    [devel] = specs(config, variant="devel")[1:]
    items = image_inputs(config, devel)
    assert {"base-trixie-arm64-devel", "base-trixie-arm64"} <= {item.name for item in items}
    assert {item.platform for item in items} == {ARM64}


def test_dockerfile_compiles_bytecode_apart_only_for_arm64(
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
def test_parts_choose_the_python_for_bytecode(
    config: Config,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    builder: str,
    taken: str,
) -> None:
    def base(_: object, __: object, lock: Any) -> ReadyBase:
        return ReadyBase(layout=Path("/", lock.name), digest="d")

    monkeypatch.setattr(BaseMaker, "base", base)
    monkeypatch.setattr(Engine, "platform", lambda _: of_machine(machine))
    workspace = workspace_of(root, Path("/c"))
    job = Job(
        config=config,
        workspace=workspace,
        engine=Engine(None),  # type: ignore[arg-type]
        run=FakeRunner(),
        options=BuildOptions(builder=builder),
    )
    preparer = prepare.Preparer(job)
    amd, arm = (lock_image(config, spec, root / "locks") for spec in specs(config))
    assert preparer.parts(arm).contexts["native"] == f"oci-layout:///{taken}@d"
    assert "native" not in preparer.parts(amd).contexts


def test_another_python_makes_no_bytecode(config: Config, root: Path, tmp_path: Path) -> None:
    """The engine's own base is faster than an emulator, but may make other bytecode."""
    spec = choose(config, platform=ARM64.name)
    lock = read(DebLock, root / "locks" / "base-trixie-arm64.json")
    python = next(deb for deb in lock.debs if deb.name == "python3.13-minimal")
    older = dataclasses.replace(python, version="3.13.0-1")
    debs = tuple(older if deb == python else deb for deb in lock.debs)
    own, ours = ReadyBase(layout=Path(), digest="own"), dataclasses.replace(lock, debs=debs)
    workspace = workspace_of(root, tmp_path)
    engine = cast("Engine", SimpleNamespace(platform=lambda: AMD64))
    job = Job(config=config, workspace=workspace, engine=engine, run=FakeRunner())
    assert prepare.Preparer(job)._native(spec, ours, own) is own
