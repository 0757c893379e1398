"""Releases of torch from an index beside the main one.

Both indexes are stand-ins on loopback, asked by real uv. PyTorch's own was never asked.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import http.server
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.servers import web_server
from tests.unit.hostile import almost
from tests.unit.test_facts import torch as torch_wheel
from tests.wheels import StandIn, make_wheel
from torch_images.build.plan import locked
from torch_images.build.render import render
from torch_images.config.choose import choose
from torch_images.config.indexes import Index
from torch_images.config.load import load_config
from torch_images.config.lock_requests import (
    FactsRequest,
    WheelRequest,
    facts_input,
    image_inputs,
    tool_input,
    tools_inputs,
    unpacked_inputs,
    variant_inputs,
    wheel_input,
)
from torch_images.config.matrix import matrix
from torch_images.config.selection import find_image
from torch_images.config.types import Config, Cuda
from torch_images.errors import ConfigError, LockError, NetworkError, UsageError
from torch_images.fetch import resolve as resolving
from torch_images.fetch.apt import Resolver
from torch_images.fetch.facts import find_facts
from torch_images.fetch.packageindex import PackageIndex
from torch_images.fetch.resolve import Requirements, check_origin, resolve, write_pages
from torch_images.fetch.update import check, resolve_input
from torch_images.host.loopback import serving
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.layers.constraints import constraints
from torch_images.layers.make import making
from torch_images.layers.plan import LayerPlan
from torch_images.locks.facts import FactsLock, with_facts
from torch_images.locks.files import dumps, parse, update
from torch_images.locks.image_lock import image_lock
from torch_images.locks.wheels import LockedWheel, WheelLock, read_wheels, requirements_text
from torch_images.publish.tag_rules import floating

Write = Callable[..., Path]

DAY = dt.date(2026, 11, 23)
URL = "https://index.example/whl/cu130"
NIGHT = "2.16.0.dev20261120"
RELEASES = "    torch: [2.11.0, 2.12.1, 2.13.0, 2.14.1]\n"


def entry(
    url: str = URL, packages: str = "[torch, triton]", torch: str = f"[2.15.1, {NIGHT}]"
) -> str:
    """An index as images.yaml has it."""
    return f"      - url: {url}\n        packages: {packages}\n        torch: {torch}\n"


def beside(*entries: str, main: str = RELEASES) -> tuple[str, str]:
    """Replace the releases of CUDA 13.0."""
    return RELEASES, main + ("    indexes:\n" + "".join(entries) if entries else "")


@pytest.fixture
def nightly(yaml_file: Write) -> Config:
    """images.yaml with a release and a night's build from another index for CUDA 13.0."""
    return load_config(yaml_file(beside(entry())))


# images.yaml.


def test_releases_of_all_indexes_are_one_list(nightly: Config) -> None:
    [cuda] = [cuda for cuda in nightly.cudas if cuda.version == "13.0"]
    assert cuda.torch == ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.1", NIGHT)
    index = Index(url=URL, packages=("torch", "triton"), torch=("2.15.1", NIGHT))
    assert [cuda.index(torch) for torch in cuda.torch] == [None] * 4 + [index] * 2


def test_releases_in_between_are_put_in_order(yaml_file: Write) -> None:
    config = load_config(yaml_file(beside(entry(torch="[2.9.1, 2.13.1, 2.14.0rc1]"))))
    [cuda] = [cuda for cuda in config.cudas if cuda.version == "13.0"]
    assert cuda.torch == ("2.9.1", "2.11.0", "2.12.1", "2.13.0", "2.13.1", "2.14.0rc1", "2.14.1")


@pytest.mark.parametrize("main", ["", "    torch: []\n"])
def test_all_releases_may_be_in_another_index(yaml_file: Write, main: str) -> None:
    fork = ('"13.0": 2.11.0}', '"13.0": 2.15.1}')
    config = load_config(yaml_file(beside(entry(), main=main), fork))
    assert choose(config, cuda="13.0").torch == "2.15.1"
    [index] = next(cuda for cuda in config.cudas if cuda.version == "13.0").indexes
    compiled = choose(config, cuda="13.0", source="fork")
    [wheels, _] = tools_inputs(config, compiled)
    assert wheels
    assert wheels.index == index  # it has the CUDA libraries of that release


@pytest.mark.parametrize(
    ("entries", "main", "expected"),
    [
        ((entry("http://index.example/x"),), RELEASES, "is not the https URL of an index"),
        ((entry("ftp://index.example/x"),), RELEASES, "is not the https URL of an index"),
        ((entry("index.example/x"),), RELEASES, "is not the https URL of an index"),
        ((entry("https://index.example/../x"),), RELEASES, "is not the https URL of an index"),
        ((entry("https://index.example/x?y=z"),), RELEASES, "is not the https URL of an index"),
        ((entry("'https://index.example/x#y'"),), RELEASES, "is not the https URL of an index"),
        ((entry("'https://index.example/a b'"),), RELEASES, "is not the https URL of an index"),
        ((entry("https://index.example:0/x"),), RELEASES, "is not the https URL of an index"),
        ((entry("https://index.example:65536"),), RELEASES, "is not the https URL of an index"),
        ((entry(f"https://index.example/{'x' * 200}"),), RELEASES, "is not the https URL of an i"),
        ((entry("http://localhost.example/x"),), RELEASES, "is not the https URL of an index"),
        ((entry("https://me:secret@index.example"),), RELEASES, "[0].url' names a user; give a"),
        ((entry("https://secret@index.example"),), RELEASES, "names a user; give a URL that needs"),
        ((entry(packages="[triton]"),), RELEASES, "does not name torch, whose releases come from"),
        ((entry(packages="[]"),), RELEASES, "'cuda.13.0.indexes[0].packages' is empty"),
        ((entry(packages="[torch, torch]"),), RELEASES, "'torch' is listed twice"),
        ((entry(packages="[torch, Triton]"),), RELEASES, "is not the name of a wheel"),
        ((entry(packages="[torch, a_b]"),), RELEASES, "is not the name of a wheel"),
        ((entry(packages="[torch, ../x]"),), RELEASES, "is not the name of a wheel"),
        ((entry(packages="[torch, 'triton>=3']"),), RELEASES, "is not the name of a wheel"),
        ((entry(torch="[]"),), RELEASES, "'cuda.13.0.indexes[0].torch' is empty"),
        ((entry(torch="[2.15.1, 2.15.0]"),), RELEASES, "does not come after 2.15.1"),
        ((entry(torch="[2.15.1+cu130]"),), RELEASES, "names a local version; write 2.15.1"),
        ((entry(torch="[2.14.1]"),), RELEASES, "'2.14.1', which is listed twice for one CUDA version"),
        ((entry(torch="[2.14.1.0]"),), RELEASES, "'2.14.1.0', which is listed twice for one CUDA"),
        ((entry(torch="[2.16.0.dev1]"),), RELEASES, "lacks the date of a nightly build"),
        ((entry(torch="[2.16.0.dev20261320]"),), RELEASES, "lacks the date of a nightly build"),
        ((entry(torch="[2.16.0.dev20260230]"),), RELEASES, "lacks the date of a nightly build"),
        ((entry(torch="[2.16.0.dev120261120]"),), RELEASES, "lacks the date of a nightly build"),
        ((entry(), entry(torch="[2.17.0]")), RELEASES, f"lists the index {URL} twice"),
        ((entry(), entry("https://other.example")), RELEASES, "'2.15.1', which is listed twice"),
        (("      - url: https://index.example\n",), RELEASES, "lacks the key 'packages'"),
        ((entry() + "        name: x\n",), RELEASES, "'cuda.13.0.indexes[0].name' is an unknown key"),
        ((), "    indexes: []\n", "'cuda.13.0.indexes' is empty"),
        ((), "    indexes: {a: b}\n", "must be a list, not a mapping"),
        ((), "", "'cuda.13.0' names no release of torch; list releases under `torch`, or under"),
        ((), "    torch: []\n", "'cuda.13.0' names no release of torch"),
        ((), f"    torch: [2.14.1, {NIGHT}]\n", "is a pre-release, and the main index may not provide th"),
        ((), "    torch: [2.14.1, 2.15.0rc1]\n", "list it under `indexes`, below the index that ha"),
    ],
)  # fmt: skip
def test_refused_in_one_line(
    yaml_file: Write, entries: tuple[str, ...], main: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(yaml_file(beside(*entries, main=main)))
    text = str(caught.value)
    assert text.isprintable()
    assert re.match(r"images.yaml:[0-9]+:[0-9]+: ", text)
    assert expected in text
    assert "secret" not in text


@pytest.mark.parametrize("url", ["http://127.0.0.1:5000/simple", "http://localhost", URL])
def test_an_index_on_loopback_needs_no_certificate(yaml_file: Write, url: str) -> None:
    config = load_config(yaml_file(beside(entry(f"{url}/"))))
    assert [i.url for c in config.cudas for i in c.indexes] == [url]


# The axis.


def test_nobody_gets_a_pre_release_unasked(nightly: Config) -> None:
    assert choose(nightly, cuda="13.0").torch == "2.15.1"
    assert choose(nightly, cuda="13.0", torch="2.15").torch == "2.15.1"
    with pytest.raises(UsageError, match=r"^CUDA 13\.0 has no torch '2\.16'; .*dev20261120"):
        choose(nightly, cuda="13.0", torch="2.16")
    with pytest.raises(UsageError, match=r"^CUDA 13\.0 has no torch '2\.16\.0'"):
        choose(nightly, cuda="13.0", torch="2.16.0")
    assert choose(nightly, cuda="13.0", torch=NIGHT).torch == NIGHT


def test_where_there_are_pre_releases_only(yaml_file: Write) -> None:
    fork = ('"13.0": 2.11.0}', f'"13.0": {NIGHT}}}')
    config = load_config(yaml_file(beside(entry(torch=f"[{NIGHT}]"), main=""), fork))
    with pytest.raises(UsageError) as caught:
        choose(config, cuda="13.0")
    assert str(caught.value) == (
        f"CUDA 13.0 only has pre-releases of torch; ask for one with --torch {NIGHT}"
    )
    assert choose(config, cuda="13.0", torch=NIGHT).torch == NIGHT
    assert choose(config, cuda="13.0", source="fork").release.version == NIGHT


def test_a_night_has_a_name_of_its_own_everywhere(nightly: Config) -> None:
    spec = choose(nightly, cuda="13.0", arch="12.0", torch=NIGHT)
    assert spec.id == f"cu130-sm120-torch{NIGHT}-trixie-runtime"
    assert find_image(nightly, spec.id) == spec
    assert wheel_input(nightly, spec).name == f"wheel-cu130-torch{NIGHT}-py313"
    assert wheel_input(nightly, spec).request[-1] == f"torch=={NIGHT}"
    ids = [each.id for each in matrix(nightly)]
    assert len(ids) == len(set(ids))
    for name in (spec.id, *floating(nightly, spec)):
        assert re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,127}", name)


def test_floating_tags_never_name_a_night(nightly: Config) -> None:
    night, stable = (choose(nightly, cuda="13.0", torch=t) for t in (NIGHT, "2.15.1"))
    assert floating(nightly, night) == (NIGHT,)
    assert floating(nightly, stable) == ("2.15.1", "2.15")


def test_a_night_does_not_take_the_tag_of_its_minor_version(yaml_file: Write) -> None:
    """2.15.2.dev... comes after 2.15.1, and begins as it does."""
    later = "2.15.2.dev20261120"
    config = load_config(yaml_file(beside(entry(torch=f"[2.15.1, {later}]"))))
    night, stable = (choose(config, cuda="13.0", torch=t) for t in (later, "2.15.1"))
    assert floating(config, night) == (later,)
    assert floating(config, stable) == ("2.15.1", "2.15")


def test_the_tags_of_a_compiled_pre_release_stay(config: Config) -> None:
    """The fork calls itself 2.12.0a0."""
    spec = choose(config, cuda="13.0", source="fork")
    assert floating(config, spec) == ("2.12.0a0-fork", "2.12-fork", "fork")


def test_which_locks_may_have_wheels_of_the_index(nightly: Config) -> None:
    """Those that belong to its releases, and no others."""
    spec = choose(nightly, cuda="13.0", torch="2.15.1", variant="devel")
    index = spec.cuda.index("2.15.1")
    assert index
    more, _ = variant_inputs(nightly, spec)
    assert more
    assert {
        item.index for item in (wheel_input(nightly, spec), facts_input(nightly, spec), more)
    } == {index}
    assert {item.index for item in unpacked_inputs(spec)} <= {None}
    assert tool_input("tools-build").index is None
    for other in matrix(nightly):
        if other.release.version not in index.torch:
            assert not any(getattr(i, "index", None) for i in image_inputs(nightly, other))


# Locks.


def wheel(name: str, version: str = "1", index: str = "", sha256: str = "0" * 64) -> LockedWheel:
    filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return LockedWheel(
        name=name, version=version, filename=filename, size=1, sha256=sha256, index=index
    )


def lock(*wheels: LockedWheel, name: str = "w") -> WheelLock:
    return WheelLock(name=name, date=DAY, python="3.11", request=(), wheels=tuple(sorted(wheels)))


OTHER = Index(url=URL, packages=("torch", "triton"), torch=("2.15.1",))


def test_a_lock_says_where_a_wheel_comes_from(tmp_path: Path) -> None:
    held = lock(wheel("numpy"), wheel("torch", "2.15.1+cu130", URL))
    assert parse(WheelLock, dumps(held), "w") == held
    assert held.digest != lock(wheel("numpy"), wheel("torch", "2.15.1+cu130")).digest
    path = tmp_path / "w.json"
    assert update(path, held)
    assert not update(path, replace(held, date=dt.date(2026, 12, 1)))  # nothing but its date
    assert read_wheels(path, OTHER).date == DAY
    assert read_wheels(path, OTHER) == held


@pytest.mark.parametrize(
    ("held", "index", "problem"),
    [
        (wheel("torch", index=URL), None, f"torch is from {URL}, but images.yaml has the main ind"),
        (wheel("torch"), OTHER, f"torch is from the main index, but images.yaml has {URL}"),
        (wheel("numpy", index=URL), OTHER, f"numpy is from {URL}, but images.yaml has the main"),
        (wheel("torch", index=f"{URL}x"), OTHER, f"is from {URL}x, but images.yaml has {URL}"),
        (wheel("numpy", index=f"{URL}x"), OTHER, f"numpy is from {URL}x, but images.yaml has the"),
    ],
)
def test_a_wheel_from_where_it_may_not_come(
    tmp_path: Path, held: LockedWheel, index: Index | None, problem: str
) -> None:
    path = tmp_path / "w.json"
    path.write_text(dumps(lock(held)))
    with pytest.raises(LockError) as caught:
        read_wheels(path, index)
    assert problem in str(caught.value)
    assert str(caught.value).endswith("; run `invoke lock --select w`")


def facts_request(index: Index) -> FactsRequest:
    """The facts of torch 2.15.1 from an index."""
    cuda = Cuda(
        version="13.0", driver="", floor="", targets=(), torch=("2.15.1",), base="trixie",
        indexes=(index,),
    )  # fmt: skip
    return FactsRequest(
        name="release-x",
        request=("torch==2.15.1",),
        python="3.11",
        cuda=cuda,
        within="wheel-x",
        index=index,
    )


# Two stand-in indexes.


@dataclass(frozen=True)
class Indexes:
    """A main index and another one. `asked` are the paths that each was asked for."""

    main: str
    other: str
    asked: dict[str, list[str]]

    @property
    def network(self) -> Network:
        return Network(index=f"{self.main}/simple")

    def index(self, *packages: str) -> Index:
        """The other index, named for some packages."""
        return Index(url=f"{self.other}/simple", packages=packages, torch=("2.15.1", NIGHT))

    def resolve(self, index: Index, *requirements: str) -> WheelLock:
        return resolve(
            Requirements(name="w", words=requirements, python="3.11", date=DAY),
            network=self.network,
            run=Runner(),
            index=index,
        )


def pages(wheels: Sequence[StandIn]) -> dict[str, bytes]:
    """The pages and files of an index, as PyTorch's writes them: "+" as %2B, and no dates."""
    files: dict[str, bytes] = {}
    lines: dict[str, list[str]] = {}
    for made in wheels:
        name, url = made.locked.filename, quote(made.locked.filename)
        files[f"/simple/{made.locked.name}/{url}"] = made.data
        link = f'<a href="{url}#sha256={made.locked.sha256}">{name}</a>'
        lines.setdefault(made.locked.name, []).append(link)
    files |= {f"/simple/{name}/": "<br>".join(links).encode() for name, links in lines.items()}
    return files


@contextlib.contextmanager
def indexes(main: Sequence[StandIn], other: Sequence[StandIn]) -> Iterator[Indexes]:
    with web_server(pages(main)) as (one, asked), web_server(pages(other)) as (two, also):
        yield Indexes(one, two, {"main": asked, "other": also})


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., StandIn]:
    """Make a wheel that requires others."""
    count = iter(range(1000))

    def made(name: str, version: str, *requires: str) -> StandIn:
        folder = tmp_path / f"made-{next(count)}"
        folder.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        text += "".join(f"Requires-Dist: {word}\n" for word in requires)
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        return make_wheel(
            folder,
            name,
            version,
            {f"{info}/METADATA": text.encode(), f"{name}/at": str(folder).encode()},
        )

    return made


@pytest.fixture
def both(make: Callable[..., StandIn]) -> Iterator[Indexes]:
    """Two indexes that have packages in common."""
    main = [
        make("torch", "2.15.1", "triton==3.6", "lib"),
        make("triton", "3.6"),
        make("lib", "1.0"),
        make("lib", "3.0.dev1"),
        make("torchvision", "0.30.0", "torch==2.15.1"),
        make("needy", "1.0", "lib>=2,<3"),
        make("hungry", "1.0", "only"),
    ]
    other = [
        make("torch", "2.15.1+cu130", "triton==3.7", "lib"),
        make("torch", f"{NIGHT}+cu130", "triton==3.8.0.dev20261119", "lib"),
        make("triton", "3.7"),
        make("triton", "3.8.0.dev20261119"),
        make("lib", "2.0"),
        make("only", "1.0"),
        make("idle", "1.0"),
        make("torchvision", "0.30.0+cu130", "torch==2.15.1"),
    ]
    with indexes(main, other) as made:
        yield made


def test_named_packages_come_from_the_index_and_all_others_from_the_main_one(
    both: Indexes,
) -> None:
    index = both.index("torch", "triton", "torchvision", "idle")
    held = both.resolve(index, "torch==2.15.1", "torchvision")
    assert {w.name: (w.version, w.index) for w in held.wheels} == {
        "lib": ("1.0", ""),  # although the index has a newer one
        "torch": ("2.15.1+cu130", index.url),
        "torchvision": ("0.30.0+cu130", index.url),
        "triton": ("3.7", index.url),  # which only torch requires, in another version
    }  # and no idle, which nothing requires
    assert parse(WheelLock, dumps(held), "w") == held
    assert not [path for path in both.asked["other"] if "/lib/" in path]
    assert not [path for path in both.asked["main"] if "/torch" in path or "/triton/" in path]


def test_a_package_that_only_the_index_has(both: Indexes) -> None:
    index = both.index("torch", "triton", "only")
    held = both.resolve(index, "torch==2.15.1", "hungry")
    assert {w.name: w.index for w in held.wheels}["only"] == index.url
    with pytest.raises(LockError) as caught:
        both.resolve(both.index("torch", "triton"), "torch==2.15.1", "hungry")
    text = str(caught.value)
    assert "only was not found" in text
    assert text.endswith(
        f"; list packages that only {index.url} has under `packages` of this index"
    )


def test_a_version_that_only_the_index_has_is_refused(both: Indexes) -> None:
    index = both.index("torch", "triton")
    with pytest.raises(LockError, match=r"^no set of wheels .*lib>=2.* list packages that only"):
        both.resolve(index, "torch==2.15.1", "needy")
    held = both.resolve(both.index("torch", "triton", "lib"), "torch==2.15.1", "needy")
    assert {w.name: w.version for w in held.wheels}["lib"] == "2.0"


def test_what_other_locks_add_is_resolved_in_the_same_way(both: Indexes, tmp_path: Path) -> None:
    """The plain image's versions go with CUDA's compiler, and a variant's with the plain image's."""
    index = both.index("torch", "triton", "torchvision", "idle")
    resolver = Resolver(root=tmp_path, network=both.network, run=Runner())
    plain = WheelRequest(
        name="plain",
        request=("torch==2.15.1",),
        python="3.11",
        beside=("idle",),  # which only the index has
        index=index,
    )
    held = resolve_input(plain, tmp_path, resolver, tmp_path)
    assert isinstance(held, WheelLock)
    assert held.versions() == {"lib": "1.0", "torch": "2.15.1+cu130", "triton": "3.7"}
    update(tmp_path / "plain.json", held)
    more = WheelRequest(
        name="more",
        request=("torch==2.15.1", "torchvision"),
        python="3.11",
        within="plain",
        index=index,
    )
    wider = resolve_input(more, tmp_path, resolver, tmp_path)
    assert isinstance(wider, WheelLock)
    assert set(wider.wheels) - set(held.wheels) == {
        w for w in wider.wheels if (w.name, w.index) == ("torchvision", index.url)
    }
    facts = replace(facts_request(index), within="plain")
    with pytest.raises(LockError, match=r"^torch's libtorch_cuda\.so cannot be read"):  # it was had
        resolve_input(facts, tmp_path, resolver, tmp_path)
    for item in (more, facts):
        both.asked["other"].clear()
        with pytest.raises(LockError, match=r"^locks/plain\.json: torch is from http://"):
            resolve_input(replace(item, index=None), tmp_path, resolver, tmp_path)
        assert not both.asked["other"]


def test_what_no_index_has_is_said_as_ever(both: Indexes) -> None:
    with pytest.raises(LockError, match=r"^no set of wheels meets the requirements: .*torch==9"):
        both.resolve(both.index("torch", "triton"), "torch==9")


def test_a_night(both: Indexes) -> None:
    """It gets the pre-releases that it requires; nothing else does."""
    index = both.index("torch", "triton")
    held = both.resolve(index, f"torch=={NIGHT}")
    assert held.versions() == {
        "lib": "1.0",
        "torch": f"{NIGHT}+cu130",
        "triton": "3.8.0.dev20261119",
    }
    assert both.resolve(index, "torch").versions()["torch"] == "2.15.1+cu130"


def test_a_package_that_the_index_is_named_for_and_lacks(both: Indexes) -> None:
    """It is not taken from the main index instead."""
    index = both.index("torch", "triton", "hungry", "only")
    with pytest.raises(LockError) as caught:
        both.resolve(index, "torch==2.15.1", "hungry")
    assert str(caught.value) == (
        f"hungry 1.0 is not in {index.url}, its index in images.yaml; "
        f"correct `packages` of the index {index.url}"
    )


def test_an_index_that_does_not_answer(both: Indexes) -> None:
    index = replace(both.index("torch"), url="http://127.0.0.1:9")
    with pytest.raises(
        NetworkError, match=r"^the index http://127\.0\.0\.1:9 could not be reached"
    ):
        both.resolve(index, "torch==2.15.1")


def test_the_guard_does_not_trust_what_was_resolved(
    make: Callable[..., StandIn], tmp_path: Path
) -> None:
    """Each wheel must be where it should come from, as the very file that is locked."""
    main = [make("a", "1"), make("torch", "1")]
    other = [make("a", "1"), make("torch", "1"), make("b", "1")]
    with indexes(main, other) as both, PackageIndex(both.network) as asked:
        index = both.index("torch")
        good = replace(other[1].locked, index=index.url)
        check_origin(lock(main[0].locked, good), index, asked)
        for bad, problem in (
            (other[0].locked, "a 1 is not in the main index, its index in images.yaml"),
            (other[2].locked, "b 1 is not in the main index, its index in images.yaml"),
            (replace(main[1].locked, index=index.url), f"torch 1 is not in {index.url}, its index"),
            (
                replace(main[0].locked, sha256=almost(main[0].locked.sha256)),
                "a 1 is not in the main index, its index in images.yaml",
            ),
            (wheel("a"), "a 1 is not in the main index, its index in images.yaml"),
            (wheel("none"), "none 1 is not in the main index, its index in images.yaml"),
        ):
            with pytest.raises(LockError, match=f"^{re.escape(problem)}"):
                check_origin(lock(good, bad), index, asked)
    assert not list(tmp_path.glob("*.whl"))


def test_a_resolver_that_takes_all_from_the_index_is_found_out(
    both: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shortcut(index: Index, _: PackageIndex, folder: Path) -> None:
        with PackageIndex(both.network) as asked:
            write_pages(replace(index, packages=("torch", "triton", "lib")), asked, folder)

    monkeypatch.setattr(resolving, "write_pages", shortcut)
    with pytest.raises(LockError, match=r"^lib 2\.0 is not in the main index, its"):
        both.resolve(both.index("torch", "triton"), "torch==2.15.1")


def test_links_of_a_page_stay_links(tmp_path: Path) -> None:
    """What an index says is not obeyed as markup, nor as the path of a file of this machine."""
    page = (
        '<a href="torch-1-py3-none-any.whl" data-requires-python="&gt;=3&quot; x=&quot;"'
        ' data-yanked="&lt;/a&gt;" data-core-metadata="true">torch-1-py3-none-any.whl</a>'
        '<a href="file:///etc/torch-2-py3-none-any.whl">torch-2-py3-none-any.whl</a>'
    )
    with (
        web_server({"/simple/torch/": page.encode()}) as (url, _),
        PackageIndex(Network()) as asked,
    ):
        index = Index(url=f"{url}/simple", packages=("torch", "none"), torch=("1",))
        write_pages(index, asked, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["torch"]
    assert (tmp_path / "torch" / "index.html").read_text() == (
        f'<!DOCTYPE html><html><body><a href="{url}/simple/torch/torch-1-py3-none-any.whl"'
        ' data-requires-python="&gt;=3&quot; x=&quot;" data-yanked="&lt;/a&gt;"'
        ' data-core-metadata="true">torch-1-py3-none-any.whl</a></body></html>'
    )


@pytest.mark.parametrize(
    "url", ["file:///etc/torch-1-py3-none-any.whl", "http://[", "\udcff", "-f", "http://a:b:c/x"]
)
def test_whatever_a_page_names_is_one_line(url: str) -> None:
    file = {"filename": "torch-1-py3-none-any.whl", "url": url, "hashes": {"sha256": "0" * 64}}
    page = {"meta": {"api-version": "1.0"}, "name": "torch", "files": [file]}
    answers = {"/simple/torch/": json.dumps(page).encode()}
    with web_server({}) as (main, _), web_server(answers) as (other, _):
        both = Indexes(main, other, {})
        with pytest.raises((LockError, NetworkError)) as caught:
            both.resolve(both.index("torch"), "torch==1")
    assert "\n" not in str(caught.value)


# Fetching.


def test_a_wheel_is_fetched_from_its_index(make: Callable[..., StandIn], tmp_path: Path) -> None:
    """Both have a file of this name."""
    ours, theirs = make("torch", "1"), make("torch", "1")
    assert ours.locked.sha256 != theirs.locked.sha256
    with indexes([ours], [theirs]) as both, PackageIndex(both.network) as asked:
        url = both.index("torch").url
        locked_there = replace(theirs.locked, index=url)
        assert asked.fetch(ours.locked, tmp_path).read_bytes() == ours.data
        assert not both.asked["other"]
        both.asked["main"].clear()
        assert asked.fetch(locked_there, tmp_path).read_bytes() == theirs.data
        assert not both.asked["main"]
        with pytest.raises(LockError, match=r"^torch 1 is not the locked file: expected"):
            asked.fetch(replace(ours.locked, index=url), tmp_path)
        gone = replace(wheel("gone"), index=url)
        with pytest.raises(LockError) as caught:
            asked.fetch(gone, tmp_path)
        assert str(caught.value) == (
            f"a locked wheel is not in the index {url} (gone-1-py3-none-any.whl); run `invoke lock --renew --all`"
        )
        plan = LayerPlan(title="t", wheels=(locked_there,), python="3.11")
        assert plan.key == replace(plan, wheels=(theirs.locked,)).key  # the same bytes
        both.asked["main"].clear()
        with making([[plan]], tmp_path / "cache", both.network) as layers:
            assert layers[plan].result().path.exists()
        assert not both.asked["main"]


def test_no_index_learns_the_password_of_another() -> None:
    told: dict[str, str | None] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told[self.path] = self.headers["Authorization"]
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep requests out of the output of tests."""

    with serving(Handler) as url:
        secret = url.replace("http://", "http://me:hunter22@")
        with PackageIndex(Network(index=f"{secret}/main")) as asked:
            for _ in range(2):
                assert asked.find(wheel("torch")) is None
                assert asked.find(wheel("torch", index=f"{url}/other")) is None
    assert told["/main/torch/"]
    assert told["/other/torch/"] is None


def test_lock_check_asks_the_index_of_each_wheel(
    make: Callable[..., StandIn], tmp_path: Path
) -> None:
    main = [make("lib", "1.0"), make("torch", "2.15.1")]
    other = [make("torch", "2.15.1+cu130", "lib"), make("lib", "1.0")]
    with indexes(main, other) as both:
        index = both.index("torch")
        held = lock(
            main[0].locked,
            replace(other[0].locked, index=index.url),
        )
        item = WheelRequest(name="w", request=("torch==2.15.1",), python="3.11", index=index)
        path = tmp_path / "w.json"

        def states() -> dict[str, str]:
            resolver = Resolver(root=tmp_path, network=both.network, run=Runner())
            with PackageIndex(both.network) as asked:
                found = check(item, tmp_path, resolver, asked)
            return {f.name: f.state for f in found}

        path.write_text(dumps(held))
        assert states() == {"lib": "unchanged", "torch": "unchanged"}
        altered = replace(held, wheels=tuple(replace(w, sha256="f" * 64) for w in held.wheels))
        path.write_text(dumps(altered))
        assert states() == {"lib": "altered", "torch": "altered"}
        both.asked["other"].clear()
        path.write_text(dumps(lock(replace(main[0].locked, index=index.url))))
        with pytest.raises(LockError, match="lib is from http://"):
            states()
        assert not both.asked["other"]


# Facts.


def test_facts_of_a_release_of_the_index(tmp_path: Path) -> None:
    made = torch_wheel(tmp_path, "2.15.1+cu130", "_ZN2at6Tensor3addEv")
    other = torch_wheel(tmp_path, "2.15.1", "_ZN2at6Tensor3addEv")
    with indexes([other], [made]) as both:
        index = both.index("torch")
        item = facts_request(index)
        plain = both.resolve(index, "torch==2.15.1")
        both.asked["main"].clear()

        def found(item: FactsRequest) -> FactsLock:
            return find_facts(item, plain, network=both.network, cache=tmp_path, date=DAY)

        facts = found(item)
        assert facts.facts.torch == "2.15.1"
        assert facts.sha256 == made.locked.sha256
        assert not [path for path in both.asked["main"] if path.endswith(".whl")]
        with pytest.raises(LockError, match=r"is not for CUDA 12\.8; name an index in"):
            found(replace(item, cuda=replace(item.cuda, version="12.8")))


# Builds.


@pytest.fixture
def moved(yaml_file: Write, root: Path, tmp_path: Path) -> tuple[Config, Path]:
    """images.yaml and locks as they would be if torch 2.14.1 came from another index."""
    folder = tmp_path / "locks"
    folder.mkdir()
    url = "https://index.example/whl/cu130"
    named = ("torch", "torchvision", "torchaudio", "triton")
    for path in (root / "locks").iterdir():
        text = path.read_text()
        if path.name.startswith("wheel-") and "cu130-torch2.14.1-" in path.name:
            held = read_wheels(path)
            wheels = tuple(replace(w, index=url) if w.name in named else w for w in held.wheels)
            text = dumps(replace(held, wheels=wheels))
        (folder / path.name).write_text(text)
    packages = f"[{', '.join(named)}]"
    main = "    torch: [2.11.0, 2.12.1, 2.13.0]\n"
    config = load_config(yaml_file(beside(entry(url, packages, "[2.14.1]"), main=main)))
    return with_facts(config, folder), folder


def test_a_build_asks_the_index_for_its_wheels_only(moved: tuple[Config, Path], root: Path) -> None:
    config, folder = moved
    variants = [v.name for v in config.variants if any(x.name == "vision" for x in v.extras)]
    spec = choose(config, cuda="13.0", torch="2.14.1", arch="12.0", variant=variants[0])
    held = image_lock(config, spec, folder)
    assert {w.name for w in held.all_wheels if w.index} >= {"torch", "triton", "torchvision"}
    context = render(config, spec, held, root)
    [text] = [f.data.decode() for f in context.files if f.path == "wheels/variant.txt"]
    assert text.startswith(f"--find-links {URL}/torchaudio/\n--find-links {URL}/torchvision/\n")
    assert text.count("--find-links") == 2
    assert "\ntorchvision==" in text
    rules = constraints(config, spec, held)
    assert (
        f"# Another index has torch, torchaudio, torchvision, triton:\n# pip install --extra-index-url {URL} ...\n"
        in rules
    )
    assert locked(spec, held).lock == held


def test_builds_of_the_main_index_do_not_change(config: Config, root: Path) -> None:
    spec = choose(config, cuda="13.0", arch="12.0", variant="pod")
    held = image_lock(config, spec, root / "locks")
    for file in render(config, spec, held, root).files:
        assert b"--find-links" not in file.data
        assert b"Another index" not in file.data


@pytest.mark.parametrize(
    "file", ["wheel-cu130-torch2.14.1-py313", "wheel-cu130-torch2.14.1-py313-pod"]
)
def test_an_image_whose_lock_names_another_index(
    moved: tuple[Config, Path], config: Config, file: str
) -> None:
    ours, folder = moved
    axes = {"cuda": "13.0", "torch": "2.14.1", "arch": "12.0", "variant": "pod"}
    with pytest.raises(LockError, match=rf"is from {URL}, but images\.yaml has the main index"):
        image_lock(config, choose(config, **axes), folder)
    path = folder / f"{file}.json"
    path.write_text(path.read_text().replace(URL, "https://evil.example"))
    with pytest.raises(LockError) as caught:
        image_lock(ours, choose(ours, **axes), folder)
    assert str(caught.value).startswith(f"locks/{file}.json: torch")
    assert f" is from https://evil.example, but images.yaml has {URL}; run" in str(caught.value)


def test_uv_installs_the_list_of_a_build(make: Callable[..., StandIn], tmp_path: Path) -> None:
    """As scripts/image/build/install-wheels does, which knows the main index only."""
    import uv

    main = [make("lib", "1.0"), make("torch", "2.15.1"), make("same", "1")]
    other = [
        make("torch", "2.15.1+cu130"),
        make("lib", "2.0"),
        make("lib", "1.0"),
        make("same", "1"),
    ]
    with indexes(main, other) as both:
        url = both.index("torch", "same").url
        there = [replace(other[i].locked, index=url) for i in (0, 3)]
        text = requirements_text([main[0].locked, *there])
        (tmp_path / "wheels.txt").write_text(text)
        target = tmp_path / "target"
        command = [uv.find_uv_bin(), "pip", "install", "--no-config", "--no-progress", "--no-cache"]
        command += ["--target", str(target), "--python", sys.executable, "--no-deps"]
        command += ["--require-hashes", "--only-binary", ":all:"]
        command += ["--requirements", str(tmp_path / "wheels.txt")]
        Runner().run(command, env={"UV_DEFAULT_INDEX": f"{both.main}/simple"})
        assert not [path for path in both.asked["other"] if "/lib/" in path]
    assert sorted(path.name for path in target.glob("*.dist-info")) == [
        "lib-1.0.dist-info",
        "same-1.dist-info",
        "torch-2.15.1+cu130.dist-info",
    ]
