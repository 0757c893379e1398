"""What images.yaml and the environment mean, case by case: names, sums of parts, and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torch_images.arch import Capability
from torch_images.config.extras import Extra
from torch_images.config.release import Facts, Release
from torch_images.config.types import (
    Config,
    Cuda,
    Exclude,
    Feature,
    Removal,
    Source,
    Tree,
)
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
    pins=(("2.11", ("e==1.2",)), ("2.10", ())),
    arches=("9.0", "8.0"),
)
FACTS = Facts(
    cuda="13.0",
    torch="2.11.0",
    python="3.11",
    arches=(Capability(9, 0),),
    features=("x",),
)
RELEASE = Release(version="2.11.0", facts=FACTS)
LACKING = Release(version="2.12.0", facts=FACTS)


def test_source_build_hash_depends_on_options_and_features() -> None:
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
        ("13.0", LACKING, (), "images.yaml pins no e for torch 2.12.0"),
        ("13.0", Release(version="2.10.1"), (), None),  # built without it
        ("13.0", None, (), "the wheels of e are compiled for published releases of torch"),
        ("13.0", RELEASE, ("9.0", "12.0"), "e has wheels with code for 9.0, 8.0 only"),
        ("13.0", RELEASE, ("8.6", "8.9"), None),  # they run code for 8.0
        ("13.0", RELEASE, ("7.5",), "e has wheels with code for 9.0, 8.0 only"),
    ],
)
def test_extra_refusal(
    cuda: str, release: Release | None, arches: tuple[str, ...], why: str | None
) -> None:
    assert EXTRA.refusal(cuda, release, arches) == why
    anywhere = replace(EXTRA, pins=(), wheels=(("13.0", ("e",)),), arches=())
    assert anywhere.refusal("13.0", release, arches) is None
    assert anywhere.refusal("12.8", release, arches) == "e has no wheels for CUDA 12.8"


def test_extra_pins_by_minor_version_or_release() -> None:
    extra = replace(EXTRA, pins=(("2.11", ("e==1",)), ("2.11.2", ("e==2",)), ("2.12", ())))
    torches = ("2.11.0", "2.11.2", "2.12.0", "2.13.0")
    assert [extra.pinned(torch) for torch in torches] == [("e==1",), ("e==2",), (), None]
    assert [extra.requirements("13.0", torch) for torch in torches] == [
        ("e==1",),
        ("e==2",),
        (),
        (),
    ]
    plain = replace(EXTRA, pins=(), wheels=(("13.0", ("e>=1", "f")),))
    assert plain.requirements("13.0", "2.13.0") == ("e>=1", "f")
    assert plain.requirements("12.8", "2.13.0") == ()


def test_excluded_by_axes(config: Config) -> None:
    image = {"cuda": "13.0", "torch": "2.11.0", "arch": "9.0", "source": "s", "base": "b"}
    image |= {"variant": "v", "platform": "p"}
    assert Exclude(reason="").matches(image)
    for axis, value in image.items():
        assert Exclude(reason="", **{axis: (value,)}).matches(image)
        assert not Exclude(reason="", **{axis: ("other",)}).matches(image)
        # Without a value of that axis, images may have any: not all of them are excluded.
        some = {name: value for name, value in image.items() if name != axis}
        assert not Exclude(reason="", **{axis: (value,)}).matches(some)
        assert Exclude(reason="").matches(some)
    rules = (
        Exclude(reason="one", cuda=("12.8",), variant=("v",)),
        Exclude(reason="two", variant=("v",)),
        Exclude(reason="three"),
    )
    assert replace(config, excludes=rules[:1]).excluded(**image) is None
    assert replace(config, excludes=rules).excluded(**image) == "two"
    assert replace(config, excludes=rules[::-1]).excluded(**image) == "three"  # the first one


def test_removal_applies_by_cuda_and_platform() -> None:
    """To the wheels that have what it names, which others do not."""
    everywhere = Removal(wheels=("w",), reason="")
    some = replace(everywhere, cuda=("13.0",), platforms=("linux/amd64",))
    for cuda, platform in (("13.0", AMD64), ("12.8", AMD64), ("13.0", ARM64)):
        assert everywhere.applies(cuda, platform, narrowed=False)
        here = (cuda, platform) == ("13.0", AMD64)
        assert some.applies(cuda, platform, narrowed=False) == here
