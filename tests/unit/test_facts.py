"""Facts of releases of torch: stand-in wheels, an index on loopback, real uv."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.libraries import Code, library
from tests.servers import web_server
from tests.unit.hostile import almost
from tests.wheels import StandIn, index, make_wheel
from torch_images.arch import Capability
from torch_images.config.choose import choose
from torch_images.config.lock_requests import FactsRequest, WheelRequest, facts_input
from torch_images.config.release import Facts, Release
from torch_images.config.types import Config, Cuda
from torch_images.errors import LockError
from torch_images.fetch.facts import find_facts
from torch_images.fetch.resolve import resolve
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.locks.facts import FactsLock, check_facts, with_facts
from torch_images.locks.files import read

DAY = dt.date(2026, 11, 23)
CUDA = Cuda(
    version="13.0", base="trixie", driver="580.65.06", floor="580", targets=(), torch=("2.14.1",)
)


def torch(folder: Path, version: str, *requires: str) -> StandIn:
    """A wheel of torch with machine code for 9.0 and 12.0 that shows two features."""
    code = [[(90, False, False, 40), (120, False, False, 40)], [(90, False, True, 40)]]
    return make_wheel(
        folder,
        "torch",
        version,
        {
            "torch/lib/libtorch_cpu.so": library([]) + b"-DUSE_KINETO allow_tf32",
            "torch/lib/libtorch_cuda.so": library([code[0], code[0], code[1]]),
            "torch/lib/libtorch_cuda_linalg.so": library([code[0]]),
        },
        requires=requires,
    )


def facts(folder: Path, wheel: StandIn, current: FactsLock | None = None) -> FactsLock:
    """The facts of a release of torch in an index that has its wheel."""
    release = wheel.locked.version
    with web_server(index([wheel])) as (url, _):
        network = Network(index=f"{url}/simple")
        request = (f"torch=={release}",)
        wheels = WheelRequest(
            name=f"wheel-cu130-torch{release}-py313", request=request, python="3.11"
        )
        plain = resolve(wheels, network=network, run=Runner())
        item = FactsRequest(
            name=f"release-cu130-torch{release}-py313",
            request=request,
            python="3.11",
            cuda=CUDA,
            within=plain.name,
        )
        return find_facts(item, plain, current, network=network, cache=folder / "cache")


def test_facts_of_a_wheel(tmp_path: Path) -> None:
    wheel = torch(tmp_path, "2.14.1")
    wheel_facts = facts(tmp_path, wheel)
    assert wheel_facts.facts == Facts(
        cuda="13.0",
        torch="2.14.1",
        python="3.11",
        arches=(Capability(9, 0), Capability(12, 0)),
        features=("kineto", "tf32"),
    )
    assert wheel_facts.sha256 == wheel.locked.sha256
    assert list((tmp_path / "cache").rglob("*")) == []  # the downloaded wheel is gone
    known = replace(wheel_facts, facts=replace(wheel_facts.facts, features=("known",)))
    assert facts(tmp_path, wheel, known) == known
    assert facts(tmp_path, wheel, replace(known, sha256=almost(known.sha256))) == wheel_facts


def code(*targets: int) -> list[Code]:
    return [(target, False, False, 40) for target in targets]


@pytest.mark.parametrize(
    ("main", "others", "arches", "lacks"),
    [
        # CUDA 13: MAGMA is not compiled for 7.5, and a single kernel of another part is.
        (
            [code(75, 80, 90)],
            {"libtorch_cuda_linalg.so": [code(75, 80, 90), code(80, 90), code(80, 90)]},
            ["7.5", "8.0", "9.0"],
            {"libtorch_cuda_linalg.so": ["7.5"]},
        ),
        # CUDA 12.8: 7.5 runs what is there for 7.0, and 8.6 what is there for 8.0.
        ([code(70, 75, 80, 86)], {"libmore.so": [code(70, 80)]}, ["7.0", "7.5", "8.0", "8.6"], {}),
        ([code(80, 86)], {"libmore.so": [code(86)]}, ["8.0", "8.6"], {"libmore.so": ["8.0"]}),
        # Code for exactly one GPU, or for one that is compiled later, is no code for it in general.
        (
            [code(90, 100)],
            {
                "libmore.so": [
                    [(100, False, True, 40), (90, False, False, 40), (90, True, False, 8)]
                ]
            },
            ["9.0", "10.0"],
            {"libmore.so": ["10.0"]},
        ),
        ([code(75, 80)], {"libnothing.so": []}, ["7.5", "8.0"], {}),  # as on Arm, without MAGMA
    ],
)
def test_facts_of_the_main_library(
    tmp_path: Path,
    main: list[list[Code]],
    others: dict[str, list[list[Code]]],
    arches: list[str],
    lacks: dict[str, list[str]],
) -> None:
    """What another one lacks is a limit on these GPUs, and does not send them away."""
    libraries = {"libtorch_cuda.so": library(main)}
    libraries |= {name: library(codes) for name, codes in others.items()}
    wheel = make_wheel(
        tmp_path, "torch", "2.14.1", {f"torch/lib/{name}": data for name, data in libraries.items()}
    )
    wheel_facts = facts(tmp_path, wheel).facts
    assert [str(arch) for arch in wheel_facts.arches] == arches
    assert {name: [str(arch) for arch in lacking] for name, lacking in wheel_facts.lacks} == lacks


def test_facts_of_single_kernels(tmp_path: Path) -> None:
    """They make an image for 8.9 another one than that for 8.6."""
    codes = [code(80, 86)] * 4 + [[*code(80, 86, 89), (90, False, True, 40), (100, True, False, 8)]]
    wheel = make_wheel(tmp_path, "torch", "2.14.1", {"torch/lib/libtorch_cuda.so": library(codes)})
    wheel_facts = facts(tmp_path, wheel).facts
    assert [str(arch) for arch in wheel_facts.arches] == ["8.0", "8.6"]
    assert [str(arch) for arch in wheel_facts.single] == ["8.9", "9.0"]
    release = Release(version="2.14.1", facts=wheel_facts)
    assert release.same_code(Capability(8, 7)) == Capability(8, 6)
    assert release.same_code(Capability(8, 9)) is None


FACTS = Facts(cuda="13.0", torch="2.14.1", python="3.11", arches=(), features=())


@pytest.mark.parametrize(
    ("gpu", "lacking"),
    [
        ("7.5", ("a.so", "b.so")),
        ("8.0", ("b.so",)),
        ("8.6", ()),  # the code for it is there
        ("8.9", ()),  # as is what it runs, that for 8.6
        ("7.0", ()),  # torch itself does not run there
    ],
)
def test_lacking_on_a_gpu(gpu: str, lacking: tuple[str, ...]) -> None:
    old, middle, new = Capability(7, 5), Capability(8, 0), Capability(8, 6)
    known = replace(
        FACTS,
        arches=(old, middle, new),
        lacks=(("a.so", (old,)), ("b.so", (old, middle))),
    )
    assert known.lacking(Capability.parse(gpu)) == lacking


def test_facts_of_another_wheel_are_out_of_step(config: Config, root: Path, tmp_path: Path) -> None:
    item = facts_input(config, choose(config, cuda="13.0"))
    lock = read(FactsLock, item.path(root / "locks"))
    check_facts(item, root / "locks", lock.sha256)
    with pytest.raises(LockError, match="it is of another wheel of torch than the lock's"):
        check_facts(item, root / "locks", almost(lock.sha256))
    item.path(tmp_path).write_text("{")
    assert with_facts(config, tmp_path).facts == ()
    with pytest.raises(LockError, match="it is not a lock"):
        check_facts(item, tmp_path, lock.sha256)


def test_the_versions_of_a_lock_go_with_those_beside_it(tmp_path: Path) -> None:
    """As the plain image's with those of CUDA's compiler, which fixes some of them."""
    wheels = [
        make_wheel(tmp_path, "lib", "1.0"),
        make_wheel(tmp_path, "lib", "2.0"),
        make_wheel(tmp_path, "kit", "1.0", requires=["lib<2"]),
    ]

    def versions(**options: Any) -> dict[str, str]:
        item = WheelRequest(name="l", request=("lib",), python="3.11", **options)
        return resolve(item, network=network, run=Runner()).versions()

    with web_server(index(wheels)) as (url, _):
        network = Network(index=f"{url}/simple")
        assert versions() == {"lib": "2.0"}
        assert versions(beside=("kit",)) == {"lib": "1.0"}
        assert versions(beside=("kit",), overrides=("lib==2.0",)) == {"lib": "2.0"}
