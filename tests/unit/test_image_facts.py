"""What an image knows of itself, and that a fact about another image changes none of its bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from torch_images.build.plan import lock_image, plan_image
from torch_images.build.render import image_facts
from torch_images.config.choose import choose
from torch_images.config.image import ImageSpec
from torch_images.config.matrix import compat_sister
from torch_images.config.types import Config


def test_image_facts_of_the_image_itself(config: Config, root: Path) -> None:
    spec = choose(config, cuda="12.8", base="trixie", platform="linux/amd64")
    plan = plan_image(config, lock_image(config, spec, root / "locks"), root)
    [facts] = [json.loads(f.data) for f in plan.context.files if f.path == "runtime/image.json"]
    facts.pop("compat", None)  # only if the catalogue lists such an image
    assert facts == {
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


def test_image_facts_name_the_listed_image_with_compat(config: Config) -> None:
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
    assert tag(choose(config, platform="linux/arm64"), whole) == ""
    facts = image_facts(config, plain, [whole])
    assert facts["compat"] == {"tag": "compat", "branches": plain.cuda.compat}
    assert compat_sister(plain, [plain, replace(whole, compat=False)]) is None
