"""The constraints of an image: what its pip and uv may not change."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.conftest import OLDER130, T130
from torch_images.build.plan import plan_images
from torch_images.config.choose import choose
from torch_images.config.extras import Extra
from torch_images.config.matrix import matrix
from torch_images.config.types import Config
from torch_images.locks.constraints import (
    companions,
    constraints,
    project,
    refusals,
    rivals,
    uv_settings,
)
from torch_images.locks.image_lock import image_lock


def pins(config: Config, root: Path, **axes: str) -> dict[str, str]:
    """The constraints of an image, version by name."""
    spec = choose(config, **axes)
    text = constraints(config, spec, image_lock(config, spec, root / "locks"))
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines == sorted(lines)
    return dict(line.split("==") for line in lines)


@pytest.mark.parametrize(
    "axes",
    [{"cuda": "12.8"}, {"cuda": "13.0"}, {"variant": "pod"}, {"variant": "vllm"}],
    ids=str,
)
def test_constraints_pin_installed_versions(
    config: Config, root: Path, axes: dict[str, str]
) -> None:
    """Of torch, Triton, CUDA's libraries and companions; vLLM requires another torchvision."""
    lock = image_lock(config, choose(config, **axes), root / "locks")
    has = {wheel.name: wheel.version for wheel in lock.all_wheels}
    pinned = pins(config, root, **axes)
    assert {name: version for name, version in pinned.items() if name in has} == {
        name: has[name] for name in pinned if name in has
    }
    libraries = {n for n in has if n.startswith("nvidia-") and not n.startswith("nvidia-cutlass")}
    assert {"torch", "triton", "torchvision", *libraries} <= pinned.keys()
    assert not {"numpy", "pip", "cuda-bindings", "cuda-python", "jupyterlab"} & pinned.keys()


@pytest.mark.parametrize(("cuda", "own", "other"), [("12.8", "12", "13"), ("13.0", "13", "12")])
def test_no_wheel_for_another_cuda_fits(
    config: Config, root: Path, cuda: str, own: str, other: str
) -> None:
    """nvidia-nccl-cu12 replaces libnccl.so.2 of nvidia-nccl-cu13, and the reverse."""
    pinned = pins(config, root, cuda=cuda)
    names = [n for n, v in pinned.items() if n.endswith(f"-cu{own}") and not v.startswith("0+")]
    assert "nvidia-cudnn-cu" + own in names
    for name in names:
        rival = pinned[name.removesuffix(own) + other]
        assert rival == f"0+not.beside.{name.replace('-', '.')}"


def test_uv_has_the_same_pins_in_its_settings(config: Config, root: Path) -> None:
    spec = choose(config)
    lock = image_lock(config, spec, root / "locks")
    text = constraints(config, spec, lock)
    settings = tomllib.loads(uv_settings(text, "file"))
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert settings["constraint-dependencies"] == settings["build-constraint-dependencies"] == lines


def test_companions_are_those_of_the_release(config: Config, root: Path) -> None:
    newest, older = (pins(config, root, torch=torch) for torch in (T130, OLDER130))
    assert (newest["torchvision"], older["torchvision"]) == ("0.29.2", "0.26.0")
    assert ("vllm" in older, "vllm" in newest) == (True, False)


def test_a_new_extra_changes_no_other_image(config: Config, root: Path) -> None:
    def identities(config: Config) -> dict[str, str]:
        specs = [spec for spec in matrix(config) if spec.release.version == T130]
        return {p.spec.id: p.identity for p in plan_images(config, specs, root, root / "locks")}

    new = Extra(name="new", description="", pins=((T130, ("new==1.0",)),))
    more = replace(config, extras=(*config.extras, new))
    assert identities(more) == identities(config)
    companion = identities(replace(more, companions=(*config.companions, new)))
    assert not {*companion.items()} & {*identities(config).items()}
    pod = choose(config, variant="pod")
    own = replace(pod, variant=replace(pod.variant, extras=(new,)))
    assert companions(replace(config, companions=()), own) == {"new": "1.0"}


def test_constraints_pin_a_compiled_torch_without_companions(config: Config, root: Path) -> None:
    pinned = pins(config, root, source="fork", cuda="13.0")
    assert pinned["torch"] == "2.12.0a0+gita58677f.cu130"
    assert pinned["triton"] == "3.7.1+git5d6048a"
    assert not {"torchvision", "torchaudio"} & set(pinned)
    assert "nvidia-cudnn-cu13" in pinned


def test_project_excludes_what_the_image_has(config: Config, root: Path) -> None:
    """Else it locks, and downloads, all of it again, and a torchvision for another torch."""
    for variant, fitting in (
        ("runtime", "constraint-dependencies"),
        ("pod", "exclude-dependencies"),
    ):
        spec = choose(config, cuda="13.0", variant=variant)
        lock = image_lock(config, spec, root / "locks")
        settings = tomllib.loads(project(config, spec, lock))["tool"]["uv"]
        assert {"torch", "triton", "nvidia-cublas"} <= set(settings["exclude-dependencies"])
        names = {line.partition("==")[0] for line in settings[fitting]}
        assert "torchvision" in names
        both = set(settings["exclude-dependencies"]) | set(settings["constraint-dependencies"])
        assert len(both) == len(
            pins(config, root, cuda="13.0", variant=variant).keys() - rivals(lock).keys()
        )


def test_refusals_of_a_project_with_its_own_torch(config: Config, root: Path) -> None:
    """Poetry fetches CUDA's 3 GB before it finds that it may not fetch torch."""
    spec = choose(config, cuda="13.0")
    variables = refusals(image_lock(config, spec, root / "locks"))
    assert variables["UV_NO_BINARY_PACKAGE"] == "torch"
    assert {"torch", "triton", "nvidia-cublas"} <= set(
        variables["POETRY_INSTALLER_NO_BINARY"].split(",")
    )
