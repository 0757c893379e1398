"""Which image to run where; the rules of the start themselves are tested in test_runtime.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import T130
from tests.unit.fakes import axes
from torch_images.build.render import image_facts
from torch_images.config.choose import choose, choose_id
from torch_images.config.image import ImageSpec
from torch_images.config.matrix import matrix
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.inside import decision
from torch_images.locks.image_lock import compat_versions
from torch_images.pick.drivers import find_driver, unsupported
from torch_images.pick.gpus import CAVEATS, find_gpu, host_platform
from torch_images.pick.pick import answer, commands, pick
from torch_images.platforms import AMD64, ARM64, Platform
from torch_images.verify.ledger import State

COMPAT, MINOR = "uses the compat library", "by minor-version compatibility"


def without_release(image: str) -> str:
    """The name of an image, "torch-cu130:2.11.0-sm120", without the release of torch."""
    name, count = re.subn(r":[0-9]+\.[0-9]+\.[0-9]+(?:-|$)", ":", image)
    assert count == 1
    return name


def ask(
    config: Config,
    root: Path,
    gpu: str,
    driver: str,
    variant: str = "runtime",
    *,
    platform: str = "",
    state: Callable[[ImageSpec], State] | None = None,
    **axes: str,
) -> Any:
    model = find_gpu(config, gpu)
    known = find_driver(config, driver)
    host = host_platform(config, model, platform)
    versions = compat_versions(config, root / "locks", host)
    suggestions = pick(
        config,
        model,
        known.version,
        lambda cuda: versions[cuda.version],
        variant=variant,
        platform=host,
        namespace="ghcr.io/me",
        state=state or (lambda spec: State(tested=True, words=f"tested: {spec.id}", built=True)),
        **axes,
    )
    return answer(config, model, known, suggestions, platform=host)


@pytest.mark.parametrize(
    ("gpu", "driver", "image", "why"),
    [
        ("RTX 5090", "570.133", "torch-cu128:sm120", "natively"),
        ("RTX 5090", "580.95.05", "torch-cu130:sm120", "natively"),
        ("NVIDIA GeForce RTX 4090", "550.54.14", "torch-cu128:", MINOR),
        ("rtx3090", "525.85.12", "torch-cu128:sm86", MINOR),
        ("NVIDIA H100 80GB HBM3", "550.54.14", "torch-cu130:compat", COMPAT),
        ("NVIDIA A100-SXM4-80GB", "535.183.01", "torch-cu130:compat", COMPAT),
        ("T4", "580.95.05", "torch-cu130:sm75", "natively"),
        ("Tesla V100-SXM2-32GB", "580.95.05", "torch-cu128:sm70", "natively"),
        ("V100", "550.54.14", "torch-cu128:compat", COMPAT),
        # NVIDIA's compat libraries do not run on a TITAN, either.
        ("TITAN RTX", "550.54.14", "torch-cu128:sm75", "TITAN RTX (Titan, error 804)"),
    ],
)
def test_pick_image(
    config: Config, root: Path, gpu: str, driver: str, image: str, why: str
) -> None:
    reply = ask(config, root, gpu, driver)
    assert without_release(reply["reference"]) == f"ghcr.io/me/{image}"
    assert reply["platform"] == "linux/amd64"
    assert not reply["id"].endswith("arm64")
    assert why in reply["why"][1]
    assert CAVEATS[ARM64] not in reply["why"]


@pytest.mark.parametrize(
    ("gpu", "driver"), [("H100", "550.54.14"), ("A100", "535.183.01"), ("T4", "550.54.14")]
)
def test_an_image_with_the_compat_library_comes_after_one_that_was_built_without(
    config: Config, root: Path, gpu: str, driver: str
) -> None:
    """Without it, CUDA 12.8 works all the same, and CUDA 13.0 does not."""

    def state(spec: ImageSpec) -> State:
        return State(tested=not spec.compat, words="tested", built=not spec.compat)

    reply = ask(config, root, gpu, driver, state=state)
    assert "torch-cu128:" in reply["reference"]
    assert not reply["compat"]
    assert MINOR in reply["why"][1]
    assert [one["image"] for one in reply["others"]] == ["torch-cu130:compat", "torch-cu128:compat"]
    assert all(one["works"] for one in reply["others"])


@pytest.mark.parametrize(
    ("gpu", "driver", "build", "why"),
    [
        ("RTX 3090, RTX 4090", "580", "--cuda 13.0 --arch 8.6,8.9", "natively"),
        ("8.6,8.9", "550", "--cuda 13.0 --arch 8.6,8.9 --compat", COMPAT),
        # One GeForce is enough for compat libraries not to run.
        ("RTX A6000, RTX 4090", "550", "--cuda 12.8 --arch 8.6,8.9", MINOR),
        ("V100, H100", "580", "--cuda 12.8 --arch 7.0,9.0", "natively"),
    ],
)
def test_pick_for_a_host_with_two_models(
    real: Config, root: Path, gpu: str, driver: str, build: str, why: str
) -> None:
    reply = ask(real, root, gpu, driver)
    steps = commands(real, choose_id(real, reply["id"]), "x", published=False, machine=AMD64)
    assert steps["build"] == f"./inv build {build}"
    assert [one["name"] for one in reply["gpus"]] == [g.name for g in find_gpu(real, gpu).all]
    assert any(why in reason for reason in reply["why"])
    with pytest.raises(UsageError, match=r"driver 450.00 does not support .*; install driver 580"):
        ask(real, root, gpu, "450")


def test_pick_offers_unlocked_images_last(config: Config, root: Path) -> None:
    def state(spec: ImageSpec) -> State:
        locked = spec.cuda.version == "12.8"
        return State(tested=False, words="", built=not locked, inputs="a" * locked)

    reply = ask(config, root, "RTX 5090", "580", state=state)
    assert (reply["image"], reply["locked"], reply["others"]) == ("torch-cu128:sm120", True, [])
    spec = choose_id(config, reply["id"])
    steps = commands(config, spec, "x", published=False, locked=False)
    assert steps["command"].startswith(f"./inv lock --select {spec.id} && ./inv build --cuda 12.8 ")
    assert commands(config, spec, "x", published=True, locked=False)["image"] == "x"


def test_a_host_that_needs_the_compat_library_gets_its_image(config: Config, root: Path) -> None:
    reply = ask(config, root, "H100", "550.54.14", torch=T130)
    assert (reply["compat"], reply["reference"]) == (True, f"ghcr.io/me/torch-cu130:{T130}-compat")
    assert reply["others"] == []  # without the library it does not work
    steps = commands(config, choose_id(config, reply["id"]), reply["reference"], published=False)
    assert steps["command"] == (
        "./inv build --cuda 13.0 --compat --platform linux/amd64 && "
        "docker run --rm --gpus all torch-cu130:compat"
    )
    # Elsewhere it is neither chosen nor offered.
    reply = ask(config, root, "H100", "580.95.05")
    assert not any("compat" in one["id"] for one in (reply, *reply["others"]))


def test_answer_lists_other_images(config: Config, root: Path) -> None:
    [other] = ask(config, root, "RTX 5090", "570.133")["others"]
    assert without_release(other["reference"]) == "ghcr.io/me/torch-cu130:sm120"
    assert not other["works"]
    assert "compat libraries do not run on GeForce RTX 5090 (GeForce, error 804)" in other["why"]
    assert "driver 580.65.06 or newer would do" in other["why"]
    reply = ask(config, root, "RTX 5090", "580.95.05", variant="devel")
    [other] = reply["others"]
    assert other["works"]


@pytest.mark.parametrize(
    ("driver", "axes", "image"),
    [
        # The catalogue has one for this architecture alone, or only the whole one.
        ("580.95.05", {}, "torch-cu130:sm90"),
        ("580.95.05", {"torch": "2.12.1"}, "torch-cu130:"),
        ("580.95.05", {"variant": "devel"}, "torch-cu130:devel"),
        # One of the project before another that needs no compat library.
        ("570.133", {"variant": "pod"}, "torch-cu130:pod-compat"),
        # None of the project's: the one for this architecture.
        ("580.95.05", {"torch": "2.12.1", "variant": "devel"}, "torch-cu130:sm90-devel"),
    ],
    ids=str,
)
def test_an_image_of_the_project_comes_first(
    config: Config, root: Path, driver: str, axes: dict[str, Any], image: str
) -> None:
    reply = ask(config, root, "H100", driver, **axes)
    assert without_release(reply["reference"]) == f"ghcr.io/me/{image}"
    spec = choose_id(config, reply["id"])
    ours = spec.id in {listed.id for listed in matrix(config)}
    assert ours == (image != "torch-cu130:sm90-devel")


def test_cuda_versions_without_the_variant_are_left_out(config: Config, root: Path) -> None:
    reply = ask(config, root, "H100", "580.95.05", variant="vllm")
    assert without_release(reply["reference"]) == "ghcr.io/me/torch-cu130:vllm"
    assert reply["others"] == []
    with pytest.raises(UsageError, match="vllm cannot be built: "):
        ask(config, root, "RTX 5090", "580.95.05", variant="vllm")
    with pytest.raises(UsageError, match=r"unknown variant 'vlm'; did you mean 'vllm'\?"):
        ask(config, root, "H100", "580.95.05", variant="vlm")


@pytest.mark.parametrize("gpu", ["GH200 480GB", "DGX Spark", "12.1"])
def test_a_host_with_an_arm_processor_gets_an_image_for_it(
    config: Config, root: Path, gpu: str
) -> None:
    """In a registry its name has no platform, for it is that of an index."""
    torch = config.cudas[-1].torch[-1]
    reply = ask(config, root, gpu, "580")
    assert reply == ask(config, root, gpu, "580", platform="linux/arm64")
    assert reply["reference"] == f"ghcr.io/me/torch-cu130:{torch}"
    assert reply["id"] == f"cu130-torch{torch}-trixie-runtime-arm64"
    assert reply["others"] == []  # no torch of CUDA 12.8 is for it
    assert reply["why"][-1] == CAVEATS[ARM64]
    steps = commands(config, choose_id(config, reply["id"]), "x", published=False)
    assert steps["build"].endswith(" --platform linux/arm64")
    assert steps["run"] == "docker run --rm --gpus all torch-cu130:latest-arm64"


@pytest.mark.parametrize(
    ("gpu", "requested", "platform"),
    [("H100", "", AMD64), ("H100", "linux/arm64", ARM64), ("GH200", "", ARM64)],
)
def test_host_platform(config: Config, gpu: str, requested: str, platform: Platform) -> None:
    assert host_platform(config, find_gpu(config, gpu), requested) == platform


@pytest.mark.parametrize(
    ("gpu", "requested", "reason"),
    [
        ("GB10", "linux/amd64", "built together with an Arm processor"),
        ("H100", "arm64", "unknown platform 'arm64'"),
        ("GH200", "", "no image is built for linux/arm64"),
        ("H100", "linux/arm64", "no image is built for linux/arm64"),
    ],
)
def test_host_platform_that_is_impossible(
    config: Config, gpu: str, requested: str, reason: str
) -> None:
    few = replace(config, platforms=(AMD64,)) if reason.startswith("no image") else config
    with pytest.raises(UsageError, match=reason):
        host_platform(few, find_gpu(few, gpu), requested)


@pytest.mark.parametrize(
    ("gpu", "platform", "choice", "reason"),
    [
        *(
            (gpu, ARM64, {"torch": torch}, "the wheel of torch 2.10.0 for Arm processors is for C")
            for gpu in ("GH200", "H100")
            for torch in ("2.10.0", "2.10")
        ),
        # Of the CUDA version with that torch: CUDA 13.0 only says that 12.8 has it.
        ("H100", AMD64, {"torch": "2.10.0", "variant": "vllm"}, "images.yaml pins no vllm"),
    ],
    ids=str,
)
def test_a_choice_without_an_image_gets_the_reason(
    config: Config, root: Path, gpu: str, platform: Platform, choice: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError) as caught:
        ask(config, root, gpu, "600.10", platform=platform.name, **choice)
    assert f" cannot be built: {reason}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_compat_library_is_that_of_the_platform(config: Config, root: Path) -> None:
    """None is locked for linux/arm64, so an older driver is not helped there."""
    assert COMPAT in ask(config, root, "H100", "550.54.14")["why"][1]
    assert set(compat_versions(config, root / "locks", ARM64).values()) == {""}
    with pytest.raises(
        UsageError, match=r"no image runs on H100 with driver 550\.54\.14: "
    ) as caught:
        ask(config, root, "H100", "550.54.14", platform="linux/arm64")
    assert "driver 580.65.06 or newer would do" in str(caught.value)
    assert "cu128" not in str(caught.value)  # there is none for that platform


def test_a_gpu_that_cuda_13_dropped_gets_no_image_of_it(config: Config, root: Path) -> None:
    assert ask(config, root, "V100", "580.95.05")["others"] == []
    [other] = ask(config, root, "T4", "580.95.05")["others"]
    assert other["works"]
    assert without_release(other["reference"]) == "ghcr.io/me/torch-cu128:sm75"
    with pytest.raises(UsageError, match=r"the wheel of torch [0-9.]+ has code for 8\.0, 9\.0, "):
        ask(config, root, "T4G", "580.95.05")  # it is in hosts with Arm processors


@pytest.mark.parametrize(
    ("gpu", "driver", "reason", "remedy"),
    [
        ("V100", "510.47", "no image runs on V100 with driver 510.47", "580"),
        ("RTX 5090", "550", "does not support GeForce RTX 5090", "580 or newer"),
        ("V100", "595", "the last branch that does is 580", "580"),
    ],
)
def test_no_image_works_names_the_driver_to_install(
    config: Config, root: Path, gpu: str, driver: str, reason: str, remedy: str
) -> None:
    with pytest.raises(UsageError) as caught:
        ask(config, root, gpu, driver)
    assert reason in str(caught.value)
    assert str(caught.value).endswith(f"install driver {remedy}")


def test_pick_of_one_cuda_version(config: Config, root: Path) -> None:
    assert ask(config, root, "H100", "580.95.05")["id"].startswith("cu130-")
    assert ask(config, root, "H100", "580.95.05", cuda="12.8")["id"].startswith("cu128-")
    with pytest.raises(UsageError, match=r"unknown cuda '12\.7'"):
        ask(config, root, "H100", "580.95.05", cuda="12.7")
    with pytest.raises(UsageError, match=r"^no image runs on .* 570\.133: torch-cu130:sm120"):
        ask(config, root, "RTX 5090", "570.133", cuda="13.0")


def states_of(**words: str) -> Callable[[ImageSpec], State]:
    """States by the beginning of an identifier: "tested", "built" from older inputs, else none.

    No image with the compat library was built.
    """

    def state(spec: ImageSpec) -> State:
        plain = {} if spec.compat else words
        fitting = (w for name, w in plain.items() if spec.id.startswith(name.replace("_", "-")))
        word = next(fitting, "never")
        return State(tested=word == "tested", words=word, built=word != "never")

    return state


@pytest.mark.parametrize(
    ("driver", "words", "image"),
    [
        # What was built and tested comes before what never was: also the whole image of a CUDA
        # version before the one for this architecture alone, and an older CUDA before a newer one.
        ("580.95.05", {}, "torch-cu130:sm90"),
        ("580.95.05", {"cu130_torch": "built"}, "torch-cu130:"),
        ("580.95.05", {"cu128_sm90": "built"}, "torch-cu128:sm90"),
        ("550.54.14", {"cu128_torch": "built"}, "torch-cu128:"),
        # Of those that were built, the one that needs the least help, and then the newest CUDA,
        # if its inputs changed since.
        ("570.133", {"cu128": "built", "cu130": "tested"}, "torch-cu128:sm90"),
        ("580.95.05", {"cu128": "tested", "cu130": "built"}, "torch-cu130:sm90"),
    ],
    ids=str,
)
def test_pick_offers_built_images_first(
    config: Config, root: Path, driver: str, words: dict[str, str], image: str
) -> None:
    reply = ask(config, root, "H100", driver, state=states_of(**words))
    assert without_release(reply["reference"]) == f"ghcr.io/me/{image}"


NEVER = State(tested=False, words="never built")
BUILT = State(tested=False, words="last tested", built=True)
TESTED = State(tested=True, words="tested", built=True)
H100, H200, L4 = (
    replace(TESTED, gpus=(f"2 x NVIDIA {name}",)) for name in ("H100 80GB HBM3", "H200", "L4")
)


@pytest.mark.parametrize(
    ("gpu", "alone", "whole", "image"),
    [
        ("H100", H100, H100, "torch-cu130:sm90"),
        ("H100", H200, H100, "torch-cu130:"),
        ("H100", TESTED, H200, "torch-cu130:"),
        ("H100", TESTED, L4, "torch-cu130:sm90"),
        ("H100", BUILT, TESTED, "torch-cu130:"),
        ("H100", NEVER, BUILT, "torch-cu130:"),
    ],
)
def test_image_tested_on_the_gpu_comes_first(
    config: Config, root: Path, gpu: str, alone: State, whole: State, image: str
) -> None:
    """Then what ran on one of its architecture, what was tested without a GPU, what was built."""

    def state(spec: ImageSpec) -> State:
        return NEVER if spec.cuda.version != "13.0" else whole if spec.whole else alone

    reply = ask(config, root, gpu, "580.95.05", state=state)
    assert without_release(reply["reference"]) == f"ghcr.io/me/{image}"


@pytest.mark.parametrize(
    ("capability", "compat", "warns"),
    [("8.6", True, True), ("8.9", True, True), ("9.0", True, False), ("8.6", False, False)],
)
def test_a_capability_is_never_a_geforce_by_luck(
    config: Config, root: Path, capability: str, compat: bool, warns: bool
) -> None:
    reply = ask(config, root, capability, "550.54.14" if compat else "580.95.05")
    assert (COMPAT in reply["why"][1]) == compat
    assert ("; not so on a GeForce: name it, such as RTX " in reply["why"][1]) == warns


def test_the_first_command_works_now(config: Config, root: Path) -> None:
    """It builds, until a registry was seen to have the image."""
    reply = ask(config, root, "H100", "580.95.05")
    spec = choose_id(config, reply["id"])
    build = "./inv build --cuda 13.0 --arch 9.0 --platform linux/amd64"
    steps = commands(config, spec, reply["reference"], published=False)
    assert steps["command"] == f"{build} && docker run --rm --gpus all torch-cu130:sm90"
    assert steps["run"] == f"docker run --rm --gpus all {reply['image']}"
    assert commands(config, spec, "x", published=False, program="torch-images")["build"] == (
        build.replace("./inv", "torch-images")
    )
    steps = commands(config, spec, reply["reference"], published=True)
    assert steps["command"] == steps["run"]


@pytest.mark.parametrize("index", range(6))
def test_a_build_command_names_what_is_not_the_default(config: Config, index: int) -> None:
    """Of every sixth image of the catalogue from its end: what the words choose is that image."""
    spec = matrix(config)[-1 - index * 6 % len(matrix(config))]
    assert (
        choose(config, **axes(commands(config, spec, "x", published=False)["build"].split()[2:]))
        == spec
    )


@pytest.mark.parametrize("driver", ["418.1", "515.65", "575.51", "620.10"])
def test_the_start_refuses_the_same_old_drivers(config: Config, driver: str) -> None:
    """By NVML's capability and the table in the image, see image_facts."""
    drivers = image_facts(config, choose(config, cuda="12.8"), [])["drivers"]
    image = decision.Release("12.8", "570.26", "525")
    for arch in (arch for arch in config.architectures if arch.name in drivers):
        device = decision.Device("GPU", 14, arch.name, drivers[arch.name])
        host = decision.Host(driver, "libcuda.so.1", nodes=True, devices=(device,))
        choice = decision.choose(host, image, None)
        refused = "does not support" in choice.reason
        old = "first branch" in unsupported(find_gpu(config, arch.name), driver)
        assert refused == old
