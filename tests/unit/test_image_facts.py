"""What an image knows of itself, and that a fact about another image changes none of its bytes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from torch_images.build.plan import lock_image, plan_image, plan_images
from torch_images.build.render import image_facts
from torch_images.config.choose import choose
from torch_images.config.image import ImageSpec
from torch_images.config.load import load_config
from torch_images.config.matrix import compat_sister, matrix
from torch_images.config.types import Config
from torch_images.locks.facts import with_facts


def identities(config: Config, root: Path) -> Mapping[str, str]:
    """The identity of each image of the catalogue, by its identifier."""
    plans = plan_images(config, matrix(config), root, root / "locks")
    return {plan.spec.id: plan.identity for plan in plans}


@pytest.fixture(scope="module")
def before(config: Config, root: Path) -> Mapping[str, str]:
    return identities(config, root)


@pytest.mark.parametrize(
    ("old", "new", "cuda"),
    [
        ('driver: "595.45.04"', 'driver: "595.45.05"', "13.2"),
        ('"9.0", "10.0", "10.1", "12.0"]', '"9.0", "10.0", "10.1", "10.3", "12.0"]', "12.8"),
        ('first-driver: "384"', 'first-driver: "385"', "12.8"),  # Volta, which 13.x cannot target
    ],
    ids=["a driver of CUDA 13.2", "a target of CUDA 12.8", "the first driver of Volta"],
)
def test_a_fact_changes_only_the_images_it_is_about(
    yaml_file: Callable[..., Path],
    before: Mapping[str, str],
    config: Config,
    root: Path,
    old: str,
    new: str,
    cuda: str,
) -> None:
    after = identities(with_facts(load_config(yaml_file((old, new))), root / "locks"), root)
    assert after.keys() == before.keys()
    versions = {spec.id: spec.cuda.version for spec in matrix(config)}
    changed = Counter(versions[name] for name in before if before[name] != after[name])
    assert changed == {cuda: Counter(versions.values())[cuda]}


def test_it_has_the_facts_of_itself(config: Config, root: Path) -> None:
    spec = choose(config, cuda="12.8", base="trixie", platform="linux/amd64")
    plan = plan_image(config, lock_image(config, spec, root / "locks"), root)
    [told] = [json.loads(f.data) for f in plan.context.files if f.path == "runtime/image.json"]
    told.pop("compat", None)  # only if the catalogue lists such an image
    assert told == {
        "cuda": "12.8",
        "driver": spec.cuda.driver,
        "floor": spec.cuda.floor,
        "repository": "torch-cu128",
        "page": f"{config.homepage}/blob/main/docs/pick.md",
        "drivers": {
            "7.0": "384",
            "7.5": "410",
            "8.0": "450",
            "8.6": "455",
            "8.9": "520",
            "9.0": "520",
            "10.0": "570",
            "12.0": "570",
        },
    }


def with_library(config: Config, **axes: str) -> ImageSpec:
    return replace(choose(config, **{"platform": "linux/amd64", **axes}), compat=True)


def test_it_names_the_image_with_a_compat_library_that_is_listed(config: Config) -> None:
    whole, pod = with_library(config), with_library(config, variant="pod")
    narrow, other = with_library(config, arch="12.0"), with_library(config, arch="9.0")
    plain = replace(narrow, compat=False)

    def tag(spec: ImageSpec, *listed: ImageSpec) -> str:
        return str(image_facts(config, spec, listed).get("compat", {}).get("tag", ""))

    assert tag(plain, whole, pod, narrow, other) == "sm120-compat"
    assert tag(plain, pod, whole, other) == "compat"  # the code of 9.0 alone is of no use to it
    assert tag(plain, other) == ""
    assert tag(replace(pod, compat=False), whole, pod) == "pod-compat"
    assert tag(replace(pod, compat=False), whole) == "compat"
    assert tag(narrow, narrow) == ""  # it has the library itself
    for axes in ({"cuda": "13.2"}, {"cuda": "13.0", "platform": "linux/arm64"}):
        assert tag(choose(config, **axes), whole) == ""
    facts = image_facts(config, plain, [whole])
    assert facts["compat"] == {"tag": "compat", "branches": plain.cuda.compat}
    assert compat_sister(plain, [plain, replace(whole, compat=False)]) is None
