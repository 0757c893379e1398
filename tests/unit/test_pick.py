"""Which image to run where; the rules of the start themselves are tested in test_runtime.py."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.locks.image_lock import compat_versions
from torch_images.publish.ledger import State
from torch_images.publish.pick import answer, find_driver, find_gpu, pick

COMPAT, MINOR = "uses the compat library", "by minor version compatibility"


@pytest.fixture(scope="module")
def config(config: Config) -> Config:
    """The two CUDA versions that the tables below decide between, however many there are."""
    return replace(config, cudas=tuple(c for c in config.cudas if c.version in ("12.8", "13.0")))


def without_release(image: str) -> str:
    """The name of an image, "torch-cu130:2.11.0-sm120", without the release of torch."""
    name, found = re.subn(r":[0-9]+\.[0-9]+\.[0-9]+-", ":", image)
    assert found == 1
    return name


def ask(config: Config, root: Path, gpu: str, driver: str, variant: str = "runtime") -> Any:
    found = find_gpu(config, gpu)
    version = find_driver(config, driver)
    versions = compat_versions(config, root / "locks")
    suggestions = pick(
        *(config, found, version),
        lambda cuda: versions[cuda.version],
        variant=variant,
        namespace="ghcr.io/me",
        state=lambda spec: State(proved=True, words=f"proved: {spec.id}"),
    )
    return answer(found, version, suggestions, branch=driver if driver != version else "")


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
        (
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "575.57",
            "torch-cu128:sm120",
            "nat",
        ),
        ("NVIDIA RTX 6000 Ada Generation", "590.44.01", "torch-cu130:sm89", "natively"),
        ("NVIDIA B300 SXM6 AC", "580.82.07", "torch-cu130:sm100", "natively"),
        ("5090", "570.133", "torch-cu128:sm120", "natively"),
        ("A100 80GB", "580.95.05", "torch-cu130:sm80", "natively"),
        ("10.3", "580.82.07", "torch-cu130:sm100", "natively"),
    ],
)
def test_picks(config: Config, root: Path, gpu: str, driver: str, image: str, why: str) -> None:
    found = ask(config, root, gpu, driver)
    assert without_release(found["image"]) == f"ghcr.io/me/{image}"
    assert found["run"] == f"docker run --rm --gpus all {found['image']}"
    assert why in found["why"][1]


def test_it_says_what_else_there_is(config: Config, root: Path) -> None:
    [other] = ask(config, root, "RTX 5090", "570.133")["others"]
    assert without_release(other["image"]) == "ghcr.io/me/torch-cu130:sm120"
    assert not other["works"]
    assert "compat libraries do not run on GeForce RTX 5090 (GeForce, error 804)" in other["why"]
    assert "driver 580.65.06 or newer would do" in other["why"]
    found = ask(config, root, "RTX 5090", "580.95.05", variant="devel")
    assert without_release(found["image"]).endswith("torch-cu130:sm120-devel")
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


def test_cuda_versions_without_the_variant_are_left_out(config: Config, root: Path) -> None:
    found = ask(config, root, "H100", "580.95.05", variant="vllm")
    assert without_release(found["image"]) == "ghcr.io/me/torch-cu130:sm90-vllm"
    assert found["others"] == []
    with pytest.raises(UsageError, match="variant recsys is not built: "):
        ask(config, root, "RTX 5090", "580.95.05", variant="recsys")
    with pytest.raises(UsageError, match=r"unknown variant 'vlm'; did you mean 'vllm'\?"):
        ask(config, root, "H100", "580.95.05", variant="vlm")


def test_a_longer_name_wins(config: Config) -> None:
    assert str(find_gpu(config, "NVIDIA L40S").name) == "L40S"
    assert find_gpu(config, "GeForce RTX 3080 Ti").geforce
    assert not find_gpu(config, "RTX A6000").geforce


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
        ("NVIDIA GB200", "GB200", "10.0"),
        ("NVIDIA B300 SXM6 AC", "B300", "10.3"),
        ("NVIDIA GB300", "GB300", "10.3"),
        ("NVIDIA GB10", "GB10", "12.1"),
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
        ("A100 80GB", "A100", "8.0"),
        ("DGX Spark", "DGX Spark", "12.1"),
        ("5090", "GeForce RTX 5090", "12.0"),
        ("4090 laptop", "GeForce RTX 4090", "8.9"),
        ("3080ti", "GeForce RTX 3080", "8.6"),
        ("rtx4070super", "GeForce RTX 4070", "8.9"),
        ("RTXA6000", "RTX A6000", "8.6"),
        ("6000 Ada", "RTX 6000 Ada", "8.9"),
        ("pro 4500", "RTX PRO 4500", "12.0"),
        ("5000Ada", "RTX 5000 Ada", "8.9"),
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


@pytest.mark.parametrize(
    "gpu", ["GH200 480GB", "NVIDIA GB200", "GB300", "GB10", "DGX Spark", "12.1"]
)
def test_gpus_of_arm_hosts_get_no_command_that_cannot_work(
    config: Config, root: Path, gpu: str
) -> None:
    with pytest.raises(UsageError, match=r"^no image is built for linux/arm64 yet, which every"):
        ask(config, root, gpu, "580.95.05")


@pytest.mark.parametrize(
    ("gpu", "texts"),
    [
        (
            "Tesla T4",
            ("capability 7.5, which T4 has", "torch 2.10.0 in torch-cu128 has code for 7.0,"),
        ),
        ("V100-SXM2-32GB", ("7.0, which V100 has", "no image is checked for it; PyTorch's wheels")),
        (
            "GTX 1080 Ti",
            ("6.1, which GTX 1080 has", "8.0, 8.6, 8.9, 9.0, 10.0, 12.0; PyTorch's wheels"),
        ),
        ("Quadro RTX 6000", ("7.5, which Quadro RTX 6000 has", "torch 2.10.0 in torch-cu128")),
        ("2080 Ti", ("7.5, which RTX 2080 has", "CUDA 12.6")),
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


@pytest.mark.parametrize("gpu", ["K80", "3.5", "11.0"])
def test_nothing_is_promised_where_no_wheel_has_code(config: Config, gpu: str) -> None:
    with pytest.raises(UsageError, match=r"they serve [0-9., ]*12\.0$"):
        find_gpu(config, gpu)


@pytest.mark.parametrize("gpu", ["6000", "RTX 6000", "4000", "RTX 4000"])
def test_a_number_of_several_gpus_is_not_guessed(config: Config, gpu: str) -> None:
    with pytest.raises(
        UsageError, match=f"'{gpu}' names several GPUs: RTX {gpu[-4:]} Ada "
    ) as told:
        find_gpu(config, gpu)
    assert "(12.0)" in str(told.value)
    assert str(told.value).endswith("; give the whole name")


@pytest.mark.parametrize(
    ("gpu", "driver", "text"),
    [
        ("V100", "570.133", "no image serves compute capability 7.0, which V100 has; they"),
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
