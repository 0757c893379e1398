"""What images.yaml and the environment mean, case by case: names, sums of parts, and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torch_images.arch import Capability
from torch_images.config.choose import choose
from torch_images.config.extras import Extra
from torch_images.config.release import Facts, Fit, Release
from torch_images.config.selection import describe
from torch_images.config.types import (
    Config,
    Cuda,
    Exclude,
    Feature,
    Removal,
    Source,
    Tree,
)
from torch_images.errors import UsageError
from torch_images.platforms import AMD64, ARM64

CUDA = Cuda(
    version="13.0",
    driver="580.65.06",
    floor="580",
    targets=(Capability(9, 0), Capability(12, 1), Capability(7, 5)),
    torch=("2.10.0", "2.11.0"),
    base="trixie",
)
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
    assert describe(spec) == {
        "id": spec.id,
        "cuda": "12.8",
        "arch": ["9.0", "12.0"],
        "source": "fork",
        "base": "bookworm",
        "variant": "devel",
        "compat": False,
        "platform": "linux/amd64",
        "python": "3.11",
        "torch": spec.torch,
        "repository": "torch-cu128",
    }


def test_where_a_removal_applies() -> None:
    """To the wheels that have what it names, which others do not."""
    everywhere = Removal(wheels=("w",), reason="")
    some = replace(everywhere, cuda=("13.0",), platforms=("linux/amd64",))
    for cuda, platform in (("13.0", AMD64), ("12.8", AMD64), ("13.0", ARM64)):
        assert everywhere.applies(cuda, platform, narrowed=False)
        here = (cuda, platform) == ("13.0", AMD64)
        assert some.applies(cuda, platform, narrowed=False) == here


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


def test_an_architecture_that_only_another_cuda_version_can(config: Config) -> None:
    with pytest.raises(UsageError) as caught:
        choose(config, arch="7.0")
    assert str(caught.value) == (
        "CUDA 13.0 cannot target 7.0: its compiler supports 7.5 to 12.1; CUDA 12.8 can"
    )

    twice = replace(config, cudas=(*config.cudas, replace(config.cudas[0], version="12.9")))
    with pytest.raises(UsageError, match=r"; CUDA 12\.8 or 12\.9 can$"):
        choose(twice, arch="7.0")
