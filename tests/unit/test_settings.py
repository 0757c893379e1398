"""What images.yaml and the environment mean, case by case: names, sums of parts, and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import requests

from tests.releases import T130
from torch_images.arch import Capability
from torch_images.config.choose import choose
from torch_images.config.extras import Extra, Variant
from torch_images.config.release import Facts, Fit, Release
from torch_images.config.selection import find_image, select
from torch_images.config.types import (
    Architecture,
    Config,
    Cuda,
    Exclude,
    Feature,
    Removal,
    Source,
    Tree,
)
from torch_images.errors import UsageError
from torch_images.host import network
from torch_images.host.network import Network, detect
from torch_images.platforms import AMD64, ARM64

SM90 = Architecture(
    capability=Capability(9, 0), family="Hopper", first_driver="520", gpus=("a", "b", "c", "d")
)
CUDA = Cuda(
    version="13.0",
    driver="580.65.06",
    floor="580",
    targets=(Capability(9, 0), Capability(12, 1), Capability(7, 5)),
    torch=("2.10.0", "2.11.0"),
    base="trixie",
)
OLDER = replace(CUDA, version="12.8")
TREE = Tree(repository="https://r", commit="c" * 40, version="2.12.0a0")
SOURCE = Source(name="s", description="")
EXTRA = Extra(
    name="e",
    description="",
    wheels=(("13.0", ("e==1", "f")),),
    fit="required",
    arches=("9.0", "8.0"),
)
FACTS = Facts(
    cuda="13.0",
    torch="2.11.0",
    python="3.11",
    arches=(Capability(9, 0),),
    features=("x",),
    fits=(Fit(extra="e", wheels=("e==1.2",), reason="it does"),),
)
RELEASE = Release(version="2.11.0", facts=FACTS)
LACKING = Release(
    version="2.12.0",
    facts=replace(FACTS, fits=(Fit(extra="e", wheels=(), reason="it is too old"),)),
)


def test_what_a_build_is_told_tells_sources_apart() -> None:
    """And nothing else does: a source's description is for people."""
    others = [
        SOURCE,
        replace(SOURCE, torch_options=(("A", "1"),)),
        replace(SOURCE, triton_options=(("A", "1"),)),
        replace(SOURCE, features=(Feature(name="f"),)),
        replace(SOURCE, without=(Feature(name="f"),)),
    ]
    assert len({source.build for source in others}) == len(others)
    assert replace(SOURCE, description="d", wheels=("w",), name="n").build == SOURCE.build
    assert not SOURCE.compiled
    assert replace(SOURCE, torch=TREE).compiled


@pytest.mark.parametrize(
    ("cuda", "release", "arches", "why"),
    [
        ("13.0", RELEASE, ("9.0",), None),
        ("13.0", RELEASE, (), None),
        ("13.0", Release(version="2.12.0"), (), None),
        ("12.8", RELEASE, (), "e has no wheels for CUDA 12.8"),
        ("13.0", LACKING, (), "no wheels of e fit torch 2.12.0: it is too old"),
        ("13.0", None, (), "the wheels of e are compiled for published releases of torch"),
        ("13.0", RELEASE, ("9.0", "12.0"), "the wheels of e have code for 9.0, 8.0 only"),
        ("13.0", RELEASE, ("8.6", "8.9"), None),  # they run code for 8.0
        ("13.0", RELEASE, ("7.5",), "the wheels of e have code for 9.0, 8.0 only"),
    ],
)
def test_why_an_image_cannot_have_an_extra(
    cuda: str, release: Release | None, arches: tuple[str, ...], why: str | None
) -> None:
    assert EXTRA.refusal(cuda, release, arches) == why
    anywhere = replace(EXTRA, fit="", arches=())
    assert anywhere.refusal("13.0", release, arches) is None
    if release is LACKING:
        assert replace(EXTRA, fit="optional").refusal(cuda, release, arches) is None


def test_what_is_asked_for_of_an_extra() -> None:
    """What fits the release, where that is known; nothing where nothing fits."""
    assert EXTRA.requirements("13.0", RELEASE) == ("e==1.2",)
    assert EXTRA.requirements("13.0", LACKING) == ()
    assert EXTRA.requirements("13.0", Release(version="2.13.0")) == ("e==1", "f")
    assert EXTRA.requirements("12.8", Release(version="2.13.0")) == ()
    assert replace(EXTRA, fit="").requirements("13.0", RELEASE) == ("e==1", "f")


def test_architectures_that_a_release_lacks() -> None:
    assert RELEASE.lacks(Capability(9, 0)) is None
    assert RELEASE.lacks(Capability(9, 1)) is None
    assert RELEASE.lacks(Capability(8, 0)) == "the wheel of torch 2.11.0 has code for 9.0 only"
    assert Release(version="2.12.0").lacks(Capability(8, 0)) is None


def test_what_a_variant_adds() -> None:
    plain = Variant(name="v", description="")
    assert not plain.adds
    assert all(
        variant.adds
        for variant in (
            replace(plain, packages=("git",)),
            replace(plain, wheels=("w",)),
            replace(plain, extras=(EXTRA,)),
            replace(plain, cuda_home="/usr/local/cuda"),
        )
    )
    one = replace(EXTRA, name="b", replaces=("z", "a"), unpack="/opt/b")
    two = replace(EXTRA, name="b-c", replaces=("a", "m"), unpack="/opt/a")
    three = replace(EXTRA, name="a")
    variant = replace(plain, extras=(one, two, three))
    assert variant.replaces == ("a", "m", "z")
    # As their locks sort, whose names go on with "-cu130": "b-c-cu130" comes before "b-cu130".
    assert variant.unpacked == (two, one)


def test_what_is_excluded(config: Config) -> None:
    image = {
        "cuda": "13.0",
        "torch": "2.11.0",
        "arch": "9.0",
        "source": "s",
        "base": "b",
        "variant": "v",
        "platform": "p",
    }
    assert Exclude(reason="").matches(image)
    for axis, value in image.items():
        assert Exclude(reason="", **{axis: value}).matches(image)
        assert not Exclude(reason="", **{axis: "other"}).matches(image)
        # Without a value of that axis, images may have any: not all of them are excluded.
        some = {name: value for name, value in image.items() if name != axis}
        assert not Exclude(reason="", **{axis: value}).matches(some)
        assert Exclude(reason="").matches(some)
    rules = (
        Exclude(reason="one", cuda="12.8", variant="v"),
        Exclude(reason="two", variant="v"),
        Exclude(reason="three"),
    )
    assert replace(config, excludes=rules[:1]).excluded(**image) is None
    assert replace(config, excludes=rules).excluded(**image) == "two"
    # The first one of the file gives the reason, whichever axis it names.
    swapped = (Exclude(reason="late", variant="v"), Exclude(reason="later", cuda="13.0"), *rules)
    assert replace(config, excludes=swapped).excluded(**image) == "late"
    assert replace(config, excludes=swapped[1:]).excluded(**image) == "later"
    assert replace(config, excludes=rules[::-1]).excluded(**image) == "three"


def test_an_image_by_its_parts(config: Config) -> None:
    spec = choose(config, source="fork", cuda="12.8", arch="12.0;9.0,", variant="devel")
    assert spec.id == "cu128-sm90_sm120-fork-bookworm-devel"
    assert spec.arches == ("9.0", "12.0")
    assert spec.source.torch
    assert spec.torch == spec.source.torch.version
    assert not spec.whole
    plain = choose(config, platform="linux/amd64")
    assert (plain.whole, plain.arch_name) == (True, "")
    assert plain.torch == plain.cuda.torch[-1]
    assert plain.platform == AMD64
    # GPUs of 11.0 and 12.1 are in hosts with Arm processors only; CUDA 13 has dropped 7.0.
    lost = ("7.0", "11.0", "12.1")
    assert plain.arches == tuple(a for a in config.names("arch") if a not in lost)
    arm = choose(config, platform="linux/arm64")
    assert (arm.id, arm.arches) == (f"{plain.id}-arm64", config.names("arch")[2:])
    assert plain.release.facts
    assert plain.features == plain.release.facts.features
    assert replace(plain, release=Release(version="2.99.0")).features == ()


def test_where_a_removal_applies() -> None:
    """To the wheels that have what it names, which others do not."""
    everywhere = Removal(wheels=("w",), reason="")
    some = replace(everywhere, cuda=("13.0",), platforms=("linux/amd64",))
    for cuda, platform in (("13.0", AMD64), ("12.8", AMD64), ("13.0", ARM64)):
        assert everywhere.applies(cuda, platform, narrowed=False)
        here = (cuda, platform) == ("13.0", AMD64)
        assert some.applies(cuda, platform, narrowed=False) == here


def test_an_architecture_is_foreign_if_all_its_gpus_are(config: Config) -> None:
    arm = replace(config, arm64_gpus=SM90.gpus)
    assert arm.foreign(SM90, AMD64)
    assert not arm.foreign(SM90, ARM64)
    assert not arm.foreign(replace(SM90, geforce=("e",)), AMD64)


def test_features_of_a_source_that_is_compiled(config: Config) -> None:
    spec = choose(config, source="fork", arch="9.0")
    features = (
        Feature(name="any"),
        Feature(name="hopper", arch=Capability(9, 0)),
        Feature(name="blackwell", arch=Capability(12, 0)),
    )
    assert replace(spec, source=replace(spec.source, features=features)).features == (
        "any",
        "hopper",
    )


@pytest.mark.parametrize(
    ("axes", "nouns"),
    [
        ({"arch": ",;"}, ["no architecture in ',;'"]),
        ({"arch": "12.0+PTX"}, ["'12.0+PTX'", "compute capability", "known: 7.0, 7.5"]),
        ({"arch": "6.1"}, ["6.1", "7.5 to 12.1", "images.yaml", "known: 7.0, 7.5"]),
        ({"arch": "7.0"}, ["CUDA 13.0", "7.5 to 12.1", "CUDA 12.8 can"]),
        ({"cuda": "none"}, ["unknown cuda 'none'", "known: "]),
        ({"source": "none"}, ["unknown source 'none'", "known: wheel, fork"]),
        ({"base": "none"}, ["unknown base 'none'", "known: "]),
        ({"variant": "none"}, ["unknown variant 'none'", "known: runtime"]),
    ],
)
def test_a_refusal_names_the_value_and_what_is_known(
    config: Config, axes: dict[str, str], nouns: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        choose(config, **axes)
    assert [noun for noun in nouns if noun not in str(caught.value)] == []


def test_an_image_or_none_by_its_name(config: Config) -> None:
    name = f"cu130-sm120-torch{T130}-trixie-runtime"
    assert find_image(config, name).id == name
    assert [spec.id for spec in select(config, name)] == [name]
    with pytest.raises(UsageError, match=r"^unknown variant 'runtim'; did you mean 'runtime'"):
        find_image(config, name[:-1])
    for ask in (find_image, select):
        with pytest.raises(UsageError, match=rf"'{name[1:]}'.*; did you mean '{name}'"):
            ask(config, name[1:])


def test_bundles_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user names goes before what the system has, of which the first that is there counts."""
    ours, other, system = (tmp_path / name for name in ("ours", "other", "system"))
    for path in (ours, other, system):
        path.touch()
    monkeypatch.setattr(network, "_SYSTEM_BUNDLES", (tmp_path / "none", system, other))
    assert detect({}).ca_bundle == system
    assert detect({"PIP_CERT": str(ours)}).ca_bundle == ours
    assert detect({"PIP_CERT": str(ours), "SSL_CERT_FILE": str(other)}).ca_bundle == other
    monkeypatch.setattr(network, "_SYSTEM_BUNDLES", (tmp_path / "none",))
    assert detect({}).ca_bundle is None


def test_what_clients_are_told(tmp_path: Path) -> None:
    told = Network(ca_bundle=tmp_path / "ca", index="https://i")
    assert told.verify == str(tmp_path / "ca")
    assert told.for_uv() == {
        "UV_DEFAULT_INDEX": "https://i",
        "UV_INDEX_URL": None,
        "PIP_INDEX_URL": None,
        "UV_INDEX": None,
        "UV_EXTRA_INDEX_URL": None,
        "UV_FIND_LINKS": None,
        "UV_NO_CONFIG": "1",
        "SSL_CERT_FILE": str(tmp_path / "ca"),
    }
    plain = Network()
    assert plain.verify is True
    assert plain.for_uv()["SSL_CERT_FILE"] is plain.for_uv()["UV_DEFAULT_INDEX"] is None


def test_where_a_mirror_has_what_is_elsewhere() -> None:
    assert Network().mirrored("https://host/a") == "https://host/a"
    found = Network(source_mirror="https://m/x/").mirrored("https://host/a?b=://c")
    assert found == "https://m/x/host/a?b=://c"
    assert Network(source_mirror="https://m/X").mirrored("https://host/a") == "https://m/X/host/a"


def test_every_variable_that_reaches_out() -> None:
    found = detect(
        {
            "HTTP_PROXY": "http://a",
            "https_proxy": "http://b",
            "ALL_PROXY": "http://c",
            "all_proxy": "http://other",
            "no_proxy": "x",
            "PIP_INDEX_URL": "https://1",
            "UV_INDEX_URL": "https://2",
            "TORCH_IMAGES_COMPAT_MIRROR": "https://compat/X/",
            "TORCH_IMAGES_SOURCE_MIRROR": "https://source/X//",
        }
    )
    assert found.proxies == (
        ("HTTP_PROXY", "http://a"),
        ("HTTPS_PROXY", "http://b"),
        ("ALL_PROXY", "http://c"),
        ("NO_PROXY", "x"),
    )
    assert found.index == "https://2"
    assert (found.compat_mirror, found.source_mirror) == (
        "https://compat/X",
        "https://source/X",
    )
    assert detect({"UV_DEFAULT_INDEX": "https://0", "UV_INDEX_URL": "https://2"}).index == (
        "https://0"
    )


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_each_name_of_loopback(host: str) -> None:
    assert Network(index=f"http://{host}:80/simple").on_loopback
    assert Network(proxies=(("ALL_PROXY", f"http://{host}"),)).on_loopback
    assert not Network(proxies=(("NO_PROXY", f"http://{host}"),)).on_loopback


def test_of_the_compile_cache_only_where_it_is_shared() -> None:
    url = "redis://cache.example"
    environ = {"CCACHE_REMOTE_STORAGE": url, "CCACHE_DIR": "/d", "CCACHE_DISABLE": "1"}
    assert detect(environ).compile_cache == (("CCACHE_REMOTE_STORAGE", url),)


def test_why_a_request_failed() -> None:
    class Pool(Exception):  # noqa: N818  as urllib3's errors have it
        reason = "<urllib3.X object at 0x1>: refused\n <y>: by the\thost"

    assert network.cause(requests.ConnectionError(Pool())) == "refused by the host"
    assert network.cause(requests.ConnectionError("no\nroute")) == "no route"
    named = "Watching(host='a.example', port=443): Failed to resolve 'a.example' ([Errno -2] x)"
    assert network.cause(requests.ConnectionError(named)) == (
        "Failed to resolve 'a.example' ([Errno -2] x)"
    )
    assert network.cause(requests.ConnectionError()) == ""
    assert network.cause(requests.ConnectionError("x" * 300)) == "x" * 200
