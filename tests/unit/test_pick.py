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
        ("10.3", "580.82.07", "torch-cu130:sm100", "natively"),
        ("12.1", "580.82.07", "torch-cu130:sm120", "natively"),
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
    ("gpu", "driver", "text"),
    [
        ("V100", "570.133", "no image serves compute capability 7.0, which this GPU has; they"),
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
