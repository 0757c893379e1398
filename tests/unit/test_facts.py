"""What is found about a release of torch: on stand-in wheels, in an index on loopback, by real uv."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.libraries import Code, library
from tests.servers import web_server
from tests.symbols import symbols_library
from tests.unit.hostile import almost
from tests.wheels import StandIn, make_wheel
from torch_images.arch import Capability
from torch_images.config.choose import choose
from torch_images.config.extras import Extra
from torch_images.config.lock_requests import LockRequest, Probe, facts_input
from torch_images.config.release import Facts, Fit, Release
from torch_images.config.types import Config, Cuda
from torch_images.errors import LockError
from torch_images.fetch.facts import UNREAD, find_facts
from torch_images.fetch.needs import read_needs
from torch_images.fetch.packageindex import PackageIndex
from torch_images.fetch.resolve import Requirements, resolve
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.locks.facts import (
    FactsLock,
    Uses,
    check_facts,
    format_facts,
    read_facts,
    with_facts,
)
from torch_images.locks.wheels import LockedWheel

TENSOR, NEWER = "_ZN2at6Tensor3addEv", "_ZNK3c1010TensorImpl5otherEv"
STABLE = "aoti_torch_empty"
DAY = dt.date(2026, 11, 23)
CUDA = Cuda(
    version="13.0", base="trixie", driver="580.65.06", floor="580", targets=(), torch=("2.14.1",)
)


def extra(name: str, *wheels: str, fit: str = "required", in_step: bool = False) -> Extra:
    return Extra(
        name=name,
        description="",
        wheels=(("13.0", wheels),),
        fit=fit,
        in_step=in_step,
    )


def torch(folder: Path, version: str, *symbols: str) -> StandIn:
    """A wheel of torch with machine code for 9.0 and 12.0 that shows two features."""
    code = [[(90, False, False, 40), (120, False, False, 40)], [(90, False, True, 40)]]
    return make_wheel(
        folder,
        "torch",
        version,
        {
            "torch/lib/libtorch_cpu.so": symbols_library(symbols) + b"-DUSE_KINETO allow_tf32",
            "torch/lib/libtorch_cuda.so": library([code[0], code[0], code[1]]),
            "torch/lib/libtorch_cuda_linalg.so": library([code[0]]),
        },
    )


def compiled(folder: Path, name: str, version: str, library_: bytes, requires: str = "") -> StandIn:
    """A wheel for Linux with a library of its own, which can require a torch."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    text += f"Requires-Dist: {requires}\n" if requires else ""
    made = make_wheel(
        folder, name, version, {f"{name}/_C.so": library_, f"{info}/METADATA": text.encode()}
    )
    filename = made.locked.filename.replace("py3-none-any", "py3-none-manylinux_2_28_x86_64")
    return replace(made, locked=replace(made.locked, filename=filename))


def dated(wheels: list[tuple[StandIn, str]]) -> dict[str, bytes]:
    """The pages of an index (PEP 691) that says when it got each file (PEP 700)."""
    files: dict[str, bytes] = {}
    pages: dict[str, list[dict[str, object]]] = {}
    for wheel, day in wheels:
        name = wheel.locked.filename
        files[f"/simple/{wheel.locked.name}/{name}"] = wheel.data
        pages.setdefault(wheel.locked.name, []).append(
            {
                "filename": name,
                "url": name,
                "hashes": {"sha256": wheel.locked.sha256},
                "size": wheel.locked.size,
                **({"upload-time": f"{day}T12:00:00Z"} if day else {}),
            }
        )
    for project, listed in pages.items():
        page = {"meta": {"api-version": "1.1"}, "name": project, "files": listed}
        files[f"/simple/{project}/"] = json.dumps(page).encode()
    return files


def facts(
    folder: Path,
    wheels: list[tuple[StandIn, str]],
    release: str,
    *extras: Extra,
    held: FactsLock | None = None,
    download: bool = True,
    fetched: list[str] | None = None,
) -> FactsLock:
    """What is found out about a release of torch in an index with these wheels.

    `fetched` gets the names of the projects whose wheels were downloaded to look into them.
    """
    fetch = PackageIndex.fetch

    def watched(self: PackageIndex, wheel: LockedWheel, folder: Path) -> Path:
        if fetched is not None:
            fetched.append(wheel.name)
        return fetch(self, wheel, folder)

    with web_server(dated(wheels)) as (url, _), pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackageIndex, "fetch", watched)
        network = Network(index=f"{url}/simple")
        plain = resolve(
            Requirements(
                name=f"wheel-cu130-torch{release}-py313",
                words=(f"torch=={release}",),
                python="3.11",
                date=DAY,
            ),
            network=network,
            run=Runner(),
        )
        item = LockRequest(
            name=f"release-cu130-torch{release}-py313",
            request=(f"torch=={release}",),
            python="3.11",
            probe=Probe(cuda=CUDA, torch=release, extras=extras),
            within=plain.name,
        )
        return find_facts(
            *(item, plain, held),
            network=network,
            run=Runner(),
            cache=folder / "cache",
            date=DAY,
            download=download,
        )


@pytest.fixture
def releases(tmp_path: Path) -> list[tuple[StandIn, str]]:
    """Two releases of torch, and two of an extension that uses its C++."""
    made = [
        (torch(tmp_path, "2.13.0", TENSOR, STABLE), "2026-07-08"),
        (torch(tmp_path, "2.14.0", TENSOR, STABLE, NEWER), "2026-09-02"),
        (torch(tmp_path, "2.14.1", TENSOR, STABLE, NEWER), "2026-09-30"),
    ]
    for version, day, uses in (
        ("1.7", "2026-05-19", [TENSOR]),
        ("1.8", "2026-07-09", [TENSOR]),
        ("1.9", "2026-09-21", [TENSOR, NEWER]),
    ):
        library_ = symbols_library(uses=uses, loads=("libcudart.so.13", "libtorch.so"))
        made.append((compiled(tmp_path, "cxx", version, library_), day))
    return made


def test_what_a_wheel_of_torch_has(tmp_path: Path, releases: list[tuple[StandIn, str]]) -> None:
    found = facts(tmp_path, releases, "2.14.1")
    assert found.facts == Facts(
        cuda="13.0",
        torch="2.14.1",
        python="3.11",
        arches=(Capability(9, 0), Capability(12, 0)),
        features=("kineto", "tf32"),
        fits=(),
    )
    assert found.sha256 == releases[2][0].locked.sha256
    left = [path.name for path in (tmp_path / "cache").rglob("*")]
    assert left == []  # what was downloaded is gone


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
        (
            [code(75)],
            {"liba.so": [code(80)], "libb.so": [code(90)]},
            ["7.5"],
            {"liba.so": ["7.5"], "libb.so": ["7.5"]},
        ),
    ],
)
def test_the_main_library_says_which_gpus_are_served(
    tmp_path: Path,
    main: list[list[Code]],
    others: dict[str, list[list[Code]]],
    arches: list[str],
    lacks: dict[str, list[str]],
) -> None:
    """What another one lacks is a limit on these GPUs, and does not send them away."""
    libraries = {"libtorch_cuda.so": library(main)}
    libraries |= {name: library(held) for name, held in others.items()}
    wheel = make_wheel(
        tmp_path, "torch", "2.14.1", {f"torch/lib/{name}": data for name, data in libraries.items()}
    )
    found = facts(tmp_path, [(wheel, "2026-09-30")], "2.14.1").facts
    assert [str(arch) for arch in found.arches] == arches
    assert {name: [str(arch) for arch in lacking] for name, lacking in found.lacks} == lacks


def test_single_kernels_are_told_from_code_for_all_of_torch(tmp_path: Path) -> None:
    """They make an image for 8.9 another one than that for 8.6."""
    held = [code(80, 86)] * 4 + [[*code(80, 86, 89), (90, False, True, 40), (100, True, False, 8)]]
    wheel = make_wheel(tmp_path, "torch", "2.14.1", {"torch/lib/libtorch_cuda.so": library(held)})
    found = facts(tmp_path, [(wheel, "2026-09-30")], "2.14.1").facts
    assert [str(arch) for arch in found.arches] == ["8.0", "8.6"]
    assert [str(arch) for arch in found.single] == ["8.9", "9.0"]
    release = Release(version="2.14.1", facts=found)
    assert release.same_code(Capability(8, 7)) == Capability(8, 6)
    assert release.same_code(Capability(8, 9)) is None


@pytest.mark.parametrize("held", [[], [[(90, True, False, 40)]], [[(90, False, True, 40)]]])
def test_a_torch_without_machine_code_is_refused(tmp_path: Path, held: list[list[Code]]) -> None:
    libraries = {
        "torch/lib/libtorch_cuda.so": library(held),
        "torch/lib/libtorch_cuda_linalg.so": library([code(90)]),
    }
    wheel = make_wheel(tmp_path, "torch", "2.14.1", libraries)
    with pytest.raises(LockError, match=r"^torch's libtorch_cuda\.so has no machine code$"):
        facts(tmp_path, [(wheel, "2026-09-30")], "2.14.1")


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
def test_what_is_lacking_on_a_gpu(gpu: str, lacking: tuple[str, ...]) -> None:
    old, middle, new = Capability(7, 5), Capability(8, 0), Capability(8, 6)
    known = replace(
        LOCK.facts,
        arches=(old, middle, new),
        lacks=(("a.so", (old,)), ("b.so", (old, middle))),
    )
    assert known.lacking(Capability.parse(gpu)) == lacking


def test_a_wheel_is_downloaded_once_for_what_it_says(
    tmp_path: Path, releases: list[tuple[StandIn, str]]
) -> None:
    """A release of torch has 0.5 GB, and so have some extras; a check of all locks took 9 GB."""
    fetched: list[str] = []
    cxx = extra("e", "cxx>=1.7")
    first = facts(tmp_path, releases, "2.14.1", cxx, fetched=fetched)
    assert fetched == ["torch", "cxx"]
    [read] = first.read
    assert (read.cxx, read.stable, read.missing, read.cudart, read.pins) == (2, 0, 0, (13,), ())
    path = tmp_path / f"{first.name}.yaml"
    path.write_text(format_facts(first))
    held = read_facts(path)
    for download in (True, False):
        fetched.clear()
        again = facts(
            tmp_path, releases, "2.14.1", cxx, held=held, download=download, fetched=fetched
        )
        assert again == first
        assert fetched == []
    # A newer wheel is looked into, what torch exports is in the cache, and a check says that it is
    # there.
    newer = symbols_library(uses=[TENSOR], loads=("libcudart.so.13",))
    releases.append((compiled(tmp_path, "cxx", "1.10", newer), "2026-10-01"))
    [fit] = facts(tmp_path, releases, "2.14.1", cxx, held=held, download=False).facts.fits
    assert fit == Fit(extra="e", wheels=("cxx==1.10",), reason=UNREAD)
    after = facts(tmp_path, releases, "2.14.1", cxx, held=held, fetched=fetched)
    assert fetched == ["cxx"]
    assert after.facts.fits[0].wheels == ("cxx==1.10",)
    assert [one.wheel.split("-")[1] for one in after.read] == ["1.10"]
    # What is known of another torch says nothing of this one.
    other = replace(held, sha256=almost(held.sha256))
    with pytest.raises(LockError, match=r"^torch-2\.14\.1-.* was not inspected yet; run "):
        facts(tmp_path, releases, "2.14.1", cxx, held=other, download=False)


@pytest.mark.parametrize(
    ("release", "version", "reason"),
    [
        ("2.14.1", "1.9", "torch 2.14 has all 2 C++ symbols that cxx 1.9 uses"),
        ("2.13.0", "1.8", "torch 2.13 has all 1 C++ symbols that cxx 1.8 uses"),
    ],
)
def test_cxx_fits_the_release_that_it_came_out_with(
    tmp_path: Path,
    releases: list[tuple[StandIn, str]],
    release: str,
    version: str,
    reason: str,
) -> None:
    [fit] = facts(tmp_path, releases, release, extra("e", "cxx>=1.7")).facts.fits
    assert fit == Fit(extra="e", wheels=(f"cxx=={version}",), reason=reason)


def test_symbols_that_are_there_do_not_excuse_an_older_wheel(
    tmp_path: Path, releases: list[tuple[StandIn, str]]
) -> None:
    """The objects behind them may be laid out otherwise."""
    left = [(wheel, day) for wheel, day in releases if wheel.locked.version != "1.9"]
    [fit] = facts(tmp_path, left, "2.14.1", extra("e", "cxx")).facts.fits
    assert fit.wheels == ()
    assert fit.reason == "cxx 1.8 uses torch's C++, and is older than torch 2.14"


def test_a_symbol_that_torch_lacks(tmp_path: Path, releases: list[tuple[StandIn, str]]) -> None:
    left = [(wheel, day) for wheel, day in releases if wheel.locked.version not in ("1.7", "1.8")]
    [fit] = facts(tmp_path, left, "2.13.0", extra("e", "cxx")).facts.fits
    assert fit == Fit(
        extra="e", wheels=(), reason="cxx 1.9 needs 1 symbols that torch 2.13.0 lacks"
    )


def test_an_index_without_dates_proves_nothing_about_cxx(
    tmp_path: Path, releases: list[tuple[StandIn, str]]
) -> None:
    undated = [(wheel, "") for wheel, _ in releases]
    [fit] = facts(tmp_path, undated, "2.14.1", extra("e", "cxx")).facts.fits
    assert fit.wheels == ()
    assert "the index does not say when it got cxx 1.9" in fit.reason


@pytest.mark.parametrize(
    ("library_", "requires", "fits", "reason"),
    [
        (symbols_library(uses=[STABLE]), "", True, "uses torch's stable interface only"),
        (symbols_library(uses=["malloc"]), "", True, "uses no symbol of torch's"),
        (symbols_library(weak=[f"_ZTH{TENSOR[2:]}"]), "", True, "uses no symbol of torch's"),
        (symbols_library(uses=[NEWER], defines=[NEWER]), "", True, "uses no symbol of torch's"),
        (symbols_library(uses=[TENSOR]), "torch==2.13.0", True, "requires torch 2.13.0"),
        (symbols_library(uses=["aoti_torch_new"]), "", False, "needs 1 symbols that torch 2.13.0"),
        (
            symbols_library(uses=[STABLE], loads=["libcudart.so.12"]),
            "",
            False,
            "is compiled for CUDA 12",
        ),
        (symbols_library(), "torch==2.99.0", False, "no set of wheels meets the requirements"),
    ],
)
def test_what_shows_that_a_wheel_fits(
    tmp_path: Path,
    releases: list[tuple[StandIn, str]],
    library_: bytes,
    requires: str,
    fits: bool,
    reason: str,
) -> None:
    other = compiled(tmp_path, "other", "3.0", library_, requires)
    wheels = [*releases, (other, "2026-01-01")]
    [fit] = facts(tmp_path, wheels, "2.13.0", extra("e", "other")).facts.fits
    assert fit.wheels == (("other==3.0",) if fits else ())
    assert reason in fit.reason


def test_wheels_in_step_have_the_minor_version_of_the_first(
    tmp_path: Path, releases: list[tuple[StandIn, str]]
) -> None:
    pure = [
        (make_wheel(tmp_path, "pure", version), "2026-11-01")
        for version in ("1.8.0", "1.8.1", "1.9.0")
    ]
    wanted = extra("e", "cxx", "pure", in_step=True)
    for release, versions in (("2.13.0", ("1.8", "1.8.1")), ("2.14.1", ("1.9", "1.9.0"))):
        [fit] = facts(tmp_path, [*releases, *pure], release, wanted).facts.fits
        assert fit.wheels == (f"cxx=={versions[0]}", f"pure=={versions[1]}")
    [apart] = facts(tmp_path, [*releases, *pure], "2.14.1", extra("e", "cxx", "pure")).facts.fits
    assert apart.wheels == ("cxx==1.9", "pure==1.9.0")


def test_a_wheel_that_is_no_library_is_one_line(tmp_path: Path) -> None:
    bad = compiled(tmp_path, "bad", "1.0", b"\x7fELF and no more")
    path = tmp_path / "bad.whl"
    path.write_bytes(bad.data)
    with pytest.raises(LockError, match=r"^_C\.so is not a shared library: "):
        read_needs(path)
    path.write_bytes(b"PK no archive")
    with pytest.raises(LockError, match=r"^bad\.whl cannot be read: "):
        read_needs(path)


LOCK = FactsLock(
    name="release-cu130-torch2.14.1-py313",
    date=DAY,
    request=("torch==2.14.1", "vision=torchaudio+torchvision>=0.25"),
    sha256="a" * 64,
    facts=Facts(
        cuda="13.0",
        torch="2.14.1",
        python="3.11",
        arches=(Capability(9, 0), Capability(10, 0)),
        features=("cudnn", "tf32"),
        fits=(
            Fit(extra="vision", wheels=("torchaudio==2.11.0",), reason='it "is" so: {yes}'),
            Fit(extra="xformers", wheels=(), reason="# nothing fits; \\ nothing", shared=False),
        ),
    ),
)


READ = (
    Uses(
        sha256="1" * 64,  # digits alone
        wheel="a_b-1.0-cp311-cp311-manylinux_2_28_x86_64.manylinux_2_34_x86_64.whl",
        cudart=(12, 13),
        pins=("torch==2.14.1",),
        cxx=3,
        stable=0,
        missing=1,
    ),
    Uses(
        sha256="1e" * 32,
        wheel="c-1.0+cu130-1-cp311-abi3-linux_x86_64.whl",
        cudart=(),
        pins=(),
        cxx=0,
        stable=0,
        missing=0,
    ),
)
LACKS = (("libtorch_cuda_linalg.so", (Capability(9, 0), Capability(10, 0))),)


def test_facts_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / f"{LOCK.name}.yaml"
    for changed in ({}, {"fits": ()}, {"lacks": LACKS}):
        read = READ if changed else ()
        lock = replace(LOCK, facts=replace(LOCK.facts, **changed), read=read)
        path.write_text(format_facts(lock))
        assert ("\nlacks: " in path.read_text()) == ("lacks" in changed)
        assert read_facts(path) == lock


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('date: "2026-11-23"', 'date: "2026-13-01"', "which is not a date"),
        ("sha256: a", "sha256: g", "which is not a SHA-256"),
        ('["9.0", "10.0"]', "[]", "'arches' is empty"),
        ('["9.0", "10.0"]', '["sm_90"]', "is not a compute capability"),
        ('["torchaudio==2.11.0"]', '["torch==1"]', "which is not acceptable here"),
        ("  xformers:", "  ../x:", "is not a name"),
        ("features: ", 'lacks: {"libx.so": []}\nfeatures: ', "'lacks.libx.so' is empty"),
        ("    wheel: c-1.0", "    wheel: ../c-1.0", "is not a wheel"),
        ('pins: ["torch==2.14.1"]', 'pins: ["torch>=2"]', "is not an exact requirement of torch"),
        ("    cxx: 3", "    cxx: -3", "is not a number of symbols"),
        (f"  {'1' * 64}:", f"  {'1' * 63}:", "is not a SHA-256"),
        ("features: ", 'lacks: {"../x": ["9.0"]}\nfeatures: ', "'lacks.../x' is not a library"),
    ],
)
def test_facts_that_nobody_found_are_refused(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    path = tmp_path / f"{LOCK.name}.yaml"
    text = format_facts(replace(LOCK, read=READ))
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(LockError) as caught:
        read_facts(path)
    assert str(caught.value).startswith(f"locks/{LOCK.name}.yaml:")
    assert problem in str(caught.value)
    assert str(caught.value).endswith(f"run `invoke lock --select {LOCK.name}`")


def test_facts_of_other_extras_or_another_wheel_are_out_of_step(
    config: Config, root: Path, tmp_path: Path
) -> None:
    item = facts_input(config, choose(config, cuda="13.0"))
    lock = read_facts(item.path(root / "locks"))
    assert item.request == lock.request
    check_facts(item, root / "locks", lock.sha256)
    fewer = replace(item, request=item.request[1:])  # other images' extras may be there, too
    check_facts(fewer, root / "locks", lock.sha256)
    with pytest.raises(LockError, match="it is of another wheel of torch than the lock's"):
        check_facts(item, root / "locks", almost(lock.sha256))
    path = item.path(tmp_path)
    path.write_text(format_facts(replace(lock, request=("torch==1",))))
    with pytest.raises(LockError, match=r"out of step: it was made for torch==1, expected "):
        check_facts(item, tmp_path, lock.sha256)
    assert with_facts(config, tmp_path).facts == ()  # as if they were not there
    path.write_text("torch: [")
    with pytest.raises(LockError, match="not valid YAML"):
        with_facts(config, tmp_path)
    assert with_facts(config, tmp_path, damaged_ok=True).facts == ()
    with pytest.raises(LockError, match=r"does not exist; run `invoke lock --select release-"):
        read_facts(tmp_path / "release-none.yaml")


def test_the_versions_of_a_lock_go_with_those_beside_it(tmp_path: Path) -> None:
    """As the plain image's with those of CUDA's compiler, which fixes some of them."""
    wheels = [
        (make_wheel(tmp_path, "lib", "1.0"), "2026-01-01"),
        (make_wheel(tmp_path, "lib", "2.0"), "2026-01-02"),
        (compiled(tmp_path, "kit", "1.0", b"", requires="lib<2"), "2026-01-03"),
    ]

    def versions(**options: Any) -> dict[str, str]:
        wanted = Requirements(name="l", words=("lib",), python="3.11", date=DAY, **options)
        return resolve(wanted, network=network, run=Runner()).versions()

    with web_server(dated(wheels)) as (url, _):
        network = Network(index=f"{url}/simple")
        assert versions() == {"lib": "2.0"}
        assert versions(beside=("kit",)) == {"lib": "1.0"}
        assert versions(beside=("kit",), overrides=("lib==2.0",)) == {"lib": "2.0"}
        assert versions(before={"lib": dt.date(2026, 1, 2)}) == {"lib": "1.0"}


def test_extras_for_other_releases_say_for_which(
    tmp_path: Path, releases: list[tuple[StandIn, str]]
) -> None:
    """The message of uv is a proof of many lines."""
    for version, torch_ in (("1.0", "2.13.0"), ("2.0", "2.14.0")):
        other = compiled(tmp_path, "other", version, b"", f"torch=={torch_}")
        releases.append((other, "2026-09-03"))
    [fit] = facts(tmp_path, releases, "2.14.1", extra("e", "other")).facts.fits
    assert fit == Fit(extra="e", wheels=(), reason="they require torch 2.13.0, 2.14.0")
