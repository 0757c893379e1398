"""The constraints of an image: what its pip and uv may not change."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.releases import T130
from torch_images.build.plan import plan_images
from torch_images.config.choose import choose
from torch_images.config.matrix import matrix
from torch_images.config.release import Fit
from torch_images.config.types import Config
from torch_images.layers.constraints import companions, constraints, project, refusals
from torch_images.locks.image_lock import image_lock


def pins(config: Config, root: Path, **axes: str) -> dict[str, str]:
    """The constraints of an image, version by name."""
    spec = choose(config, **axes)
    text = constraints(spec, image_lock(config, spec, root / "locks"))
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines == sorted(lines)
    return dict(line.split("==") for line in lines)


@pytest.mark.parametrize(("cuda", "suffix"), [("12.8", "-cu12"), ("13.0", "")])
def test_torch_triton_and_the_cuda_libraries_are_held(
    config: Config, root: Path, cuda: str, suffix: str
) -> None:
    spec = choose(config, cuda=cuda)
    locked = image_lock(config, spec, root / "locks").wheels.versions()
    held = pins(config, root, cuda=cuda)
    assert {"torch", "triton", f"nvidia-cublas{suffix}", f"nvidia-nvjitlink{suffix}"} <= set(held)
    assert {name: locked[name] for name in held if name in locked} == {
        name: version for name, version in held.items() if name in locked
    }
    assert {name for name in locked if name.startswith("nvidia-")} <= set(held)
    assert not {"numpy", "pip", "cuda-bindings", "cuda-pathfinder"} & set(held)


def test_what_is_compiled_for_this_torch_is_held_to_the_release_that_fits(
    config: Config, root: Path
) -> None:
    """Of the extras that images of the catalogue have with that release."""
    newest, older = (pins(config, root, torch=torch) for torch in (T130, "2.13.0"))
    assert newest["torchaudio"] == "2.11.0"
    assert {"torchvision", "torchao", "fbgemm-gpu"} <= newest.keys()
    assert "jupyterlab" not in newest  # fits any torch
    assert ("vllm" in older, "vllm" in newest) == (True, False)
    other = pins(config, root, cuda="13.2")
    assert "torchvision" in other
    assert "torchaudio" not in other  # its import ends beside a torch for another minor version
    assert "cuda-python" not in older  # it is locked with vLLM, and fits any torch


def test_a_variant_that_pins_another_release_holds_that_one(config: Config, root: Path) -> None:
    spec = choose(config, variant="vllm")
    has = {w.name: w.version for w in image_lock(config, spec, root / "locks").all_wheels}
    held = pins(config, root, variant="vllm")
    assert {n: v for n, v in held.items() if n in has} == {n: has[n] for n in held if n in has}
    assert companions(spec)["torchvision"] != held["torchvision"] == has["torchvision"]


def test_an_extra_that_is_added_to_facts_changes_no_other_image(config: Config, root: Path) -> None:
    """Else one more variant makes every image of its release another."""
    specs = [spec for spec in matrix(config) if spec.release.version == T130]
    before = {p.spec.id: p.identity for p in plan_images(config, specs, root, root / "locks")}

    def with_fit(fit: Fit) -> dict[str, str]:
        facts = tuple(replace(f, fits=(*f.fits, fit)) for f in config.facts)
        more = replace(config, facts=facts)
        images = [spec for spec in matrix(more) if spec.release.version == T130]
        return {p.spec.id: p.identity for p in plan_images(more, images, root, root / "locks")}

    fit = Fit(extra="new", wheels=("new==1.0",), reason="it fits", shared=False)
    assert with_fit(fit) == before
    shared = with_fit(replace(fit, shared=True))
    assert shared.keys() == before.keys()
    assert not {*shared.items()} & {*before.items()}


def test_an_image_holds_the_extras_of_its_own(config: Config, root: Path) -> None:
    """Also those that its facts do not share."""
    spec = choose(config, variant="recsys")
    assert spec.release.facts
    fits = tuple(replace(fit, shared=False) for fit in spec.release.facts.fits)
    facts = replace(spec.release.facts, fits=fits)
    alone = replace(spec, release=replace(spec.release, facts=facts))
    assert companions(alone).keys() == {"fbgemm-gpu", "torchrec"}


def test_a_compiled_torch_is_held_by_its_whole_version_and_has_no_companions(
    config: Config, root: Path
) -> None:
    held = pins(config, root, source="fork", cuda="13.0")
    assert held["torch"] == "2.12.0a0+gita58677f.cu130"
    assert held["triton"] == "3.7.1+git5d6048a"
    assert not {"torchvision", "torchaudio"} & set(held)
    assert "nvidia-cudnn-cu13" in held


def test_a_project_leaves_to_the_image_what_it_has(config: Config, root: Path) -> None:
    """Else it locks, and downloads, all of it again, and a torchvision for another torch."""
    for variant, fitting in (
        ("runtime", "constraint-dependencies"),
        ("pod", "exclude-dependencies"),
    ):
        spec = choose(config, cuda="13.0", variant=variant)
        lock = image_lock(config, spec, root / "locks")
        told = tomllib.loads(project(spec, lock))["tool"]["uv"]
        assert {"torch", "triton", "nvidia-cublas"} <= set(told["exclude-dependencies"])
        names = {line.partition("==")[0] for line in told[fitting]}
        assert "torchvision" in names
        both = set(told["exclude-dependencies"]) | set(told["constraint-dependencies"])
        assert len(both) == len(pins(config, root, cuda="13.0", variant=variant))


def test_no_project_fetches_a_torch_of_its_own(config: Config, root: Path) -> None:
    """Poetry fetches CUDA's 3 GB before it finds that it may not fetch torch."""
    spec = choose(config, cuda="13.0")
    told = refusals(image_lock(config, spec, root / "locks"))
    assert told["UV_NO_BINARY_PACKAGE"] == "torch"
    assert {"torch", "triton", "nvidia-cublas"} <= set(
        told["POETRY_INSTALLER_NO_BINARY"].split(",")
    )
