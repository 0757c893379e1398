"""Which image to run where; the rules of the start themselves are tested in test_runtime.py."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.releases import fewer
from torch_images.build.plan import lock_image, plan_image
from torch_images.config.choose import choose
from torch_images.config.load import load_config
from torch_images.config.matrix import matrix
from torch_images.config.selection import cudas_for, find_image
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.locks.facts import with_facts
from torch_images.locks.image_lock import compat_versions
from torch_images.platforms import AMD64, ARM64, PLATFORMS, Platform
from torch_images.publish.gpus import CAVEATS, find_gpu, host_platform
from torch_images.publish.ledger import State, states
from torch_images.publish.pick import (
    answer,
    build_commands,
    candidates,
    find_driver,
    pick,
    registry_tags,
)

COMPAT, MINOR = "uses the compat library", "by minor version compatibility"


@pytest.fixture(scope="module")
def config(config: Config) -> Config:
    """The two CUDA versions that the tables below decide between, however many there are."""
    return fewer(config, cudas=("12.8", "13.0"))


def without_release(image: str) -> str:
    """The name of an image, "torch-cu130:2.11.0-sm120", without the release of torch."""
    name, found = re.subn(r":[0-9]+\.[0-9]+\.[0-9]+(?:-|$)", ":", image)
    assert found == 1
    return name


def ask(
    config: Config,
    root: Path,
    gpu: str,
    driver: str,
    variant: str = "runtime",
    *,
    platform: str = "",
    torch: str = "",
    base: str = "",
) -> Any:
    found = find_gpu(config, gpu)
    version = find_driver(config, driver)
    host = host_platform(config, found, platform)
    versions = compat_versions(config, root / "locks", host)
    suggestions = pick(
        *(config, found, version),
        lambda cuda: versions[cuda.version],
        torch=torch,
        base=base,
        variant=variant,
        platform=host,
        namespace="ghcr.io/me",
        state=lambda spec: State(proved=True, words=f"proved: {spec.id}"),
    )
    branch = driver if driver != version else ""
    return answer(found, version, suggestions, platform=host, branch=branch)


@pytest.mark.parametrize(
    ("gpu", "driver", "image", "why"),
    [
        ("RTX 5090", "570.133", "torch-cu128:sm120", "natively"),
        ("RTX 5090", "580.95.05", "torch-cu130:sm120", "natively"),
        ("NVIDIA GeForce RTX 4090", "550.54.14", "torch-cu128:sm89", MINOR),
        ("rtx3090", "525.85.12", "torch-cu128:sm86", MINOR),
        ("NVIDIA H100 80GB HBM3", "550.54.14", "torch-cu130:sm90", COMPAT),
        ("NVIDIA H200", "570.124.06", "torch-cu128:sm90", "natively"),
        ("NVIDIA A100-SXM4-80GB", "535.183.01", "torch-cu130:sm80", COMPAT),
        ("L40S", "560.35.05", "torch-cu128:sm89", COMPAT),
        ("RTX PRO 6000 Blackwell Server Edition", "575.57", "torch-cu128:sm120", "natively"),
        ("NVIDIA RTX 6000 Ada Generation", "590.44.01", "torch-cu130:sm89", "natively"),
        ("NVIDIA B300 SXM6 AC", "580.82.07", "torch-cu130:sm103", "natively"),
        ("5090", "570.133", "torch-cu128:sm120", "natively"),
        ("A100 80GB", "580.95.05", "torch-cu130:sm80", "natively"),
        ("10.3", "580.82.07", "torch-cu130:sm103", "natively"),
        ("T4", "580.95.05", "torch-cu130:sm75", "natively"),
        ("Tesla T4", "550.54.14", "torch-cu130:sm75", COMPAT),
        ("2080 Ti", "550.54.14", "torch-cu128:sm75", MINOR),
        ("Tesla V100-SXM2-32GB", "580.95.05", "torch-cu128:sm70", "natively"),
        ("V100", "550.54.14", "torch-cu128:sm70", COMPAT),
        ("7.2", "570.133", "torch-cu128:sm70", "natively"),
    ],
)
def test_picks(config: Config, root: Path, gpu: str, driver: str, image: str, why: str) -> None:
    found = ask(config, root, gpu, driver)
    assert without_release(found["image"]) == f"ghcr.io/me/{image}"
    assert found["run"] == f"docker run --rm --gpus all {found['image']}"
    assert found["platform"] == "linux/amd64"
    assert not found["id"].endswith("arm64")
    assert why in found["why"][1]
    assert CAVEATS[ARM64] not in found["why"]


def test_it_says_what_else_there_is(config: Config, root: Path) -> None:
    [other] = ask(config, root, "RTX 5090", "570.133")["others"]
    assert without_release(other["image"]) == "ghcr.io/me/torch-cu130:sm120"
    assert not other["works"]
    assert "compat libraries do not run on GeForce RTX 5090 (GeForce, error 804)" in other["why"]
    assert "driver 580.65.06 or newer would do" in other["why"]
    found = ask(config, root, "RTX 5090", "580.95.05", variant="devel")
    [other] = found["others"]
    assert other["works"]


@pytest.mark.parametrize(
    ("gpu", "branch", "driver", "image", "why"),
    [
        ("H100", "550", "550.00", "torch-cu130:sm90", COMPAT),
        ("H100", "560", "560.00", "torch-cu128:sm90", COMPAT),
        ("RTX 5090", "570", "570.26", "torch-cu128:sm120", "natively"),
        ("RTX 5090", "580", "580.65.06", "torch-cu130:sm120", "natively"),
    ],
)
def test_a_branch_is_taken_as_its_oldest_driver(
    config: Config, root: Path, gpu: str, branch: str, driver: str, image: str, why: str
) -> None:
    found = ask(config, root, gpu, branch)
    assert (found["branch"], found["driver"]) == (branch, driver)
    assert without_release(found["image"]) == f"ghcr.io/me/{image}"
    assert why in found["why"][1]
    assert found["why"][2] == f"branch {branch} is taken as {driver}: no driver of it is older"
    whole = ask(config, root, gpu, driver)
    assert (whole["image"], whole["branch"]) == (found["image"], "")


@pytest.mark.parametrize(
    ("driver", "axes", "image"),
    [
        # The catalogue has one for this architecture alone, or only the whole one.
        ("580.95.05", {}, "torch-cu130:sm90"),
        ("580.95.05", {"torch": "2.13.0"}, "torch-cu130:"),
        ("580.95.05", {"base": "bookworm"}, "torch-cu130:bookworm"),
        ("580.95.05", {"variant": "pod"}, "torch-cu130:pod"),
        ("580.95.05", {"variant": "recsys"}, "torch-cu130:recsys"),
        # One of the project before another that needs no compat library.
        ("570.133", {"variant": "pod"}, "torch-cu130:pod"),
        # None of the project's: the one for this architecture.
        ("580.95.05", {"torch": "2.13.0", "variant": "pod"}, "torch-cu130:sm90-pod"),
        ("580.95.05", {"torch": "2.10.0", "variant": "devel"}, "torch-cu128:sm90-devel"),
    ],
    ids=str,
)
def test_an_image_of_the_project_comes_first(
    config: Config, root: Path, driver: str, axes: dict[str, str], image: str
) -> None:
    found = ask(config, root, "H100", driver, **axes)
    assert without_release(found["image"]) == f"ghcr.io/me/{image}"
    spec = find_image(config, found["id"])
    ours = spec.id in {listed.id for listed in matrix(config)}
    assert ours == ("sm90-" not in image)
    words = states(config, [spec], {}, root, root / "locks")[spec].words
    assert (words == "not one of the project's images") != ours


def test_cuda_versions_without_the_variant_are_left_out(config: Config, root: Path) -> None:
    found = ask(config, root, "H100", "580.95.05", variant="vllm")
    assert without_release(found["image"]) == "ghcr.io/me/torch-cu130:vllm"
    assert found["others"] == []
    with pytest.raises(UsageError, match="variant recsys cannot be built: the wheels of recomm"):
        ask(config, root, "RTX 5090", "580.95.05", variant="recsys")
    with pytest.raises(UsageError, match=r"unknown variant 'vlm'; did you mean 'vllm'\?"):
        ask(config, root, "H100", "580.95.05", variant="vlm")


@pytest.mark.parametrize(
    ("written", "name", "capability"),
    [
        # nvidia-smi's words, and labels of Kubernetes with them.
        ("NVIDIA A100-SXM4-80GB", "A100", "8.0"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "A100", "8.0"),
        ("NVIDIA H100 80GB HBM3", "H100", "9.0"),
        ("NVIDIA H100 NVL", "H100", "9.0"),
        ("NVIDIA H200 NVL", "H200", "9.0"),
        ("NVIDIA GH200 480GB", "GH200", "9.0"),
        ("NVIDIA B300 SXM6 AC", "B300", "10.3"),
        ("NVIDIA Jetson AGX Thor Developer Kit", "Jetson AGX Thor", "11.0"),
        ("NVIDIA GeForce RTX 5090 D", "GeForce RTX 5090", "12.0"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "GeForce RTX 4090", "8.9"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", "8.9"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "RTX 4000 SFF Ada", "8.9"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000", "12.0"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000", "12.0"),
        ("NVIDIA A10-24Q", "A10", "8.6"),
        ("Quadro RTX A6000", "RTX A6000", "8.6"),
        # Clouds' words.
        ("RTX_6000Ada", "RTX 6000 Ada", "8.9"),
        ("RTX_PRO_6000_WS", "RTX PRO 6000", "12.0"),
        ("nvidia-h100-80gb", "H100", "9.0"),
        ("nvidia-l4", "L4", "8.9"),
        # People's.
        ("4090 laptop", "GeForce RTX 4090", "8.9"),
        ("3080ti", "GeForce RTX 3080", "8.6"),
        ("rtx4070super", "GeForce RTX 4070", "8.9"),
        ("RTXA6000", "RTX A6000", "8.6"),
        ("6000 Ada", "RTX 6000 Ada", "8.9"),
        ("pro 4500", "RTX PRO 4500", "12.0"),
        ("5000Ada", "RTX 5000 Ada", "8.9"),
        # Older ones, of which some are GeForce.
        ("Tesla T4", "T4", "7.5"),
        ("NVIDIA GeForce RTX 2080 Ti", "GeForce RTX 2080", "7.5"),
        ("NVIDIA GeForce GTX 1660 SUPER", "GeForce GTX 1660", "7.5"),
        ("NVIDIA TITAN RTX", "TITAN RTX", "7.5"),
        ("Quadro RTX 6000", "Quadro RTX 6000", "7.5"),
        ("NVIDIA T1000 8GB", "T1000", "7.5"),
        ("Tesla V100-SXM2-16GB", "V100", "7.0"),
        ("NVIDIA TITAN V", "TITAN V", "7.0"),
    ],
)
def test_names(config: Config, written: str, name: str, capability: str) -> None:
    found = find_gpu(config, written)
    assert (found.name, str(found.capability)) == (name, capability)
    assert found.capability.runs(found.architecture.capability)
    assert found.geforce == name.startswith("GeForce")


def test_every_listed_name_is_found(config: Config) -> None:
    """As it is, and as nvidia-smi writes it; none is hidden by a longer or an older one."""
    for architecture in config.architectures:
        for name in (*architecture.gpus, *architecture.geforce):
            for written in (name, f"NVIDIA {name}", f"NVIDIA GeForce {name}"):
                found = find_gpu(config, written)
                assert found.name.removeprefix("GeForce ") == name
                assert found.capability == architecture.capability
    served = {a.capability.major for a in config.architectures}
    for other in config.other_gpus:
        for name in other.names:
            if other.capability.major in served:
                assert find_gpu(config, name).capability == other.capability
            else:
                with pytest.raises(UsageError, match=f"{other.capability}, which {name} has"):
                    find_gpu(config, name)


def test_a_host_with_an_arm_processor_gets_an_image_for_it(config: Config, root: Path) -> None:
    """Its name in a registry is that of all platforms; what a clone builds is its own."""
    torch = config.cudas[-1].torch[-1]
    alone = ("GH200 480GB", "NVIDIA GB200", "GB300", "GB10", "DGX Spark", "12.1", "Jetson AGX Thor")
    for gpu, named in ((gpu, named) for gpu in (*alone, "11.0") for named in ("", "linux/arm64")):
        found = ask(config, root, gpu, "580", platform=named)
        assert found["platform"] == "linux/arm64"
        assert found["image"] == f"ghcr.io/me/torch-cu130:{torch}"
        assert found["id"] == f"cu130-torch{torch}-trixie-runtime-arm64"
        assert found["proof"] == f"proved: {found['id']}"
        assert found["others"] == []  # no torch of CUDA 12.8 is for it
        assert found["why"][-1] == CAVEATS[ARM64]
    told = build_commands(config, find_image(config, found["id"]))
    assert told["build"].endswith(" --platform linux/arm64")
    assert told["local"] == "docker run --rm --gpus all torch-cu130:latest-arm64"
    for gpu in ("H100", "RTX 4090", "B300", "10.3", "A100", "RTX PRO 6000"):  # fit either host
        usual = ask(config, root, gpu, "580.95.05")
        assert usual == ask(config, root, gpu, "580.95.05", platform="linux/amd64")
        assert ask(config, root, gpu, "580.95.05", platform="linux/arm64")["id"] == found["id"]


def test_a_platform_that_no_host_of_a_gpu_is(config: Config) -> None:
    for gpu in ("GH200", "GB10", "12.1"):
        model = find_gpu(config, gpu)
        with pytest.raises(UsageError) as caught:
            host_platform(config, model, "linux/amd64")
        assert str(caught.value) == (
            f"{model.name} is built together with an Arm processor, so no host with it is "
            "linux/amd64; leave the platform out, or give linux/arm64"
        )


def test_platforms_that_are_unknown_or_not_built(config: Config) -> None:
    card, arm = find_gpu(config, "H100"), find_gpu(config, "GH200")
    assert host_platform(config, card) == host_platform(config, card, "linux/amd64") == AMD64
    assert host_platform(config, arm) == host_platform(config, card, "linux/arm64") == ARM64
    for gpu in (card, arm):
        with pytest.raises(UsageError, match=r"^unknown platform 'arm64'; did you mean 'linux/ar"):
            host_platform(config, gpu, "arm64")
    one = replace(config, platforms=(AMD64,))
    assert host_platform(one, card) == AMD64
    for gpu, named in ((arm, ""), (card, "linux/arm64")):
        with pytest.raises(UsageError) as caught:
            host_platform(one, gpu, named)
        assert str(caught.value) == (
            "no image is built for linux/arm64; the platforms of images.yaml are linux/amd64"
        )


@pytest.mark.parametrize(
    ("gpu", "platform", "choice", "reason"),
    [
        *(
            (gpu, ARM64, {"torch": torch}, "the wheel of torch 2.10.0 for Arm processors is for C")
            for gpu in ("GH200", "H100")
            for torch in ("2.10.0", "2.10")
        ),
        # Of the CUDA version with that torch: CUDA 13.2 only says that 12.8 has it.
        ("H100", AMD64, {"torch": "2.10.0", "variant": "vllm"}, "vllm has no wheels for CUDA 12.8"),
        ("H100", AMD64, {"torch": "2.12.1", "variant": "vllm"}, "no wheels of vllm fit torch 2.12"),
    ],
    ids=str,
)
def test_a_choice_without_an_image_gets_the_reason(
    root: Path, gpu: str, platform: Platform, choice: dict[str, str], reason: str
) -> None:
    """With all CUDA versions."""
    config = with_facts(load_config(root / "images.yaml"), root / "locks")
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
    ) as told:
        ask(config, root, "H100", "550.54.14", platform="linux/arm64")
    assert "driver 580.65.06 or newer would do" in str(told.value)
    assert "cu128" not in str(told.value)  # there is none for that platform
    assert [cuda.version for cuda in cudas_for(config, ARM64)] == ["13.0"]
    assert cudas_for(config, AMD64) == config.cudas
    spec = choose(config, arch="9.0", platform="linux/arm64")
    context = plan_image(config, lock_image(config, spec, root / "locks"), root).context
    [told] = [json.loads(f.data) for f in context.files if f.path == "runtime/image.json"]
    assert [release["cuda"] for release in told["releases"]] == ["13.0"]


def test_an_unknown_capability_is_served_as_by_a_card(config: Config, root: Path) -> None:
    """12.2 runs code for 12.1 as well, but no image for it is built for usual hosts."""
    for capability, arch in (("12.2", "12.0"), ("12.1", "12.1"), ("10.4", "10.3"), ("8.7", "8.6")):
        assert find_gpu(config, capability).architecture.name == arch
    with pytest.raises(UsageError, match=r"are in hosts with Arm processors only: linux/arm64$"):
        ask(config, root, "11.5", "580.95.05")
    assert "arm64" in ask(config, root, "11.5", "580.95.05", platform="linux/arm64")["id"]


@given(data=st.data())
def test_an_image_is_for_the_platform_of_the_host(config: Config, data: st.DataObject) -> None:
    """It has code for the GPU, and is one of the project's where any of them would serve."""
    arch = data.draw(st.sampled_from(config.architectures))
    platform = data.draw(st.sampled_from(PLATFORMS))
    choice = {
        axis: data.draw(st.sampled_from(config.names(axis)))
        for axis in ("torch", "base", "variant")
    }
    fitting = [
        s
        for s in matrix(config)
        if (s.platform, s.torch, s.base.name, s.variant.name) == (platform, *choice.values())
        and arch in s.architectures
    ]
    try:
        found = candidates(config, arch, platform, **choice)
    except UsageError as error:
        assert " cannot be built: " in str(error) or "has no torch" in str(error)
        assert not fitting
        return
    [spec] = found
    assert spec.platform == platform
    assert arch in spec.architectures
    assert (spec in fitting) == bool(fitting)
    assert not fitting or spec.whole == all(s.whole for s in fitting)
    assert not [tag for tag in registry_tags(config, spec) if "arm64" in tag]


def test_a_gpu_that_cuda_13_dropped_gets_no_image_of_it(config: Config, root: Path) -> None:
    assert ask(config, root, "V100", "580.95.05")["others"] == []
    [other] = ask(config, root, "T4", "580.95.05")["others"]
    assert other["works"]
    assert without_release(other["image"]) == "ghcr.io/me/torch-cu128:sm75"
    with pytest.raises(UsageError, match=r"the wheel of torch [0-9.]+ has code for 8\.0, 9\.0, "):
        ask(config, root, "T4G", "580.95.05")  # it is in hosts with Arm processors


@pytest.mark.parametrize(
    ("gpu", "texts"),
    [
        (
            "GTX 1080 Ti",
            ("6.1, which GTX 1080 has", "8.9, 9.0, 10.0, 10.3, 11.0, 12.0, 12.1; PyTorch's wheels"),
        ),
        ("Tesla P100", ("6.0, which P100 has", "they serve 7.0, 7.5, 8.0", "CUDA 12.6")),
        ("5.2", ("5.2, which this GPU has", "up to torch 2.14")),
    ],
)
def test_owners_of_older_gpus_are_told_what_to_do(
    config: Config, gpu: str, texts: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as caught:
        find_gpu(config, gpu)
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.parametrize("gpu", ["K80", "3.5", "13.0"])
def test_nothing_is_promised_where_no_wheel_has_code(config: Config, gpu: str) -> None:
    with pytest.raises(UsageError, match=r"they serve [0-9., ]*12\.1$"):
        find_gpu(config, gpu)


@pytest.mark.parametrize("gpu", ["6000", "RTX 6000", "4000", "RTX 4000"])
def test_a_number_of_several_gpus_is_not_guessed(config: Config, gpu: str) -> None:
    with pytest.raises(
        UsageError, match=f"'{gpu}' names several GPUs: .*RTX {gpu[-4:]} Ada "
    ) as told:
        find_gpu(config, gpu)
    assert "(12.0)" in str(told.value)
    assert str(told.value).endswith("; give the whole name")


@pytest.mark.parametrize(
    ("gpu", "driver", "text"),
    [
        ("V100", "510.47", "no image runs on V100 with driver 510.47: ghcr.io/me/torch-cu128:"),
        ("Tesla P40", "570.133", "compute capability 6.1"),
        ("5.2", "570.133", "compute capability 5.2"),
        ("RTX 5990", "570.133", "unknown GPU 'RTX 5990'; did you mean 'RTX 5090'?"),
        ("", "570.133", "unknown GPU ''; known: "),
        ("H100", "57", "'57' is not a driver's version; give it as nvidia-smi does"),
        ("H100", "²55", "is not a driver's version"),
        ("RTX 4090", "470", "branch 470 is taken as 470.00: no driver of it is older"),
        ("H100", "r570.1", "is not a driver's version"),
        ("RTX 4090", "470.82", "no image runs on GeForce RTX 4090 with driver 470.82: ghcr.io"),
    ],
)
def test_no_pick(config: Config, root: Path, gpu: str, driver: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        ask(config, root, gpu, driver)
    assert text in str(caught.value)


@given(st.text(max_size=30))
def test_any_name_is_a_gpu_or_an_error(config: Config, name: str) -> None:
    try:
        found = find_gpu(config, name)
    except UsageError:
        return
    assert found.architecture in config.architectures


@given(st.integers(400, 700), st.integers(0, 300), st.sampled_from(["H100", "RTX 4090", "9.0"]))
def test_a_newer_driver_never_has_less(
    config: Config, root: Path, branch: int, minor: int, gpu: str
) -> None:
    """What a driver runs natively, all newer ones do."""
    native = {"12.8": (570, 26), "13.0": (580, 65)}
    runs = [cuda for cuda, least in native.items() if (branch, minor) >= least]
    if not runs:
        return
    found = ask(config, root, gpu, f"{branch}.{minor:02}.99")
    assert f"torch-cu{max(runs).replace('.', '')}" in found["image"]
    assert "natively" in found["why"][1]
