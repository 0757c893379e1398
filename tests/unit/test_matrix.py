from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.conftest import CONFIG, T128, T130
from tests.unit.fakes import axes
from torch_images.arch import Capability
from torch_images.config.axes import Exclude, Row
from torch_images.config.choose import choose, choose_glob, choose_id, choose_images
from torch_images.config.combine import same_files
from torch_images.config.image import ImageSpec
from torch_images.config.load import load_config
from torch_images.config.matrix import matrix
from torch_images.config.types import Config
from torch_images.errors import ConfigError, UsageError


def complaint(config: Config, **axes: str) -> str:
    with pytest.raises(UsageError) as caught:
        choose(config, **axes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@st.composite
def specs(draw: st.DrawFn) -> ImageSpec:
    """Any image that can be built: of the catalogue, and of several architectures."""
    spec = draw(st.sampled_from(matrix(CONFIG)))
    if spec.whole and draw(st.booleans()):
        some = draw(st.sets(st.sampled_from(spec.architectures), min_size=1))
        several = tuple(a for a in spec.architectures if a in some)
        spec = replace(spec, architectures=several, whole=False)
    assume(same_files(spec) is None)
    return spec


def test_a_compat_library_needs_a_repository_for_the_platform(config: Config) -> None:
    one = replace(config.compat, repositories=(("linux/amd64", "https://example.org"),))
    alone = replace(config, compat=one)
    assert choose(alone, compat="with", platform="linux/amd64").compat
    assert not choose(alone, platform="linux/arm64").compat
    assert complaint(alone, compat="with", platform="linux/arm64") == (
        f"cu130-torch{T130}-trixie-runtime-compat-arm64 cannot be built: images.yaml names no "
        "repository with NVIDIA's compat library for linux/arm64"
    )
    closed = replace(config, excludes=(Exclude(reason="no such thing", compat=("with",)),))
    assert complaint(closed, compat="with").endswith("cannot be built: no such thing")
    assert not choose(closed).compat


@given(specs())
def test_an_identifier_leads_back_to_its_image(spec: ImageSpec) -> None:
    assert choose_id(CONFIG, spec.id) == spec


@given(specs())
def test_arguments_lead_back_to_their_image(spec: ImageSpec) -> None:
    assert choose_images(CONFIG, "", axes(spec.arguments)) == (spec,)


@pytest.mark.parametrize(
    ("identifier", "reason"),
    [
        ("", "'' names no image"),
        (f"cu130-sm120_sm90-torch{T130}-trixie-runtime", "names no image"),  # in another order
        (f"cu130-torch{T130}-trixie-runtime-arm64-compat", "names no image"),
        *((word, "names no image") for word in ("arm64", "compat", "compat-arm64")),
        ("cu130-sm90-torch2.99.0-trixie-runtime", "CUDA 13.0 has no torch '2.99.0'"),
        ("cu130-sm120-torch2.14.0-trixie-vllm", "vllm cannot be built: "),
    ],
)
def test_choose_id_refuses_text(identifier: str, reason: str) -> None:
    with pytest.raises(UsageError, match=re.escape(reason)):
        choose_id(CONFIG, identifier)


@given(st.text("cu130-sm9_torchundweh.lbkixa", max_size=60))
def test_choose_id_of_any_text(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert choose_id(CONFIG, text).id == text


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({"arch": "9.9"}, "unknown arch '9.9'; did you mean '9.0'?"),
        ({"arch": "sm_120a"}, "'sm_120a' is not a compute capability like 9.0 or 12.0"),
        ({"arch": "all"}, "'all' is not a compute capability"),
        ({"source": "fork", "cuda": "12.8", "base": "trixie"}, "cannot be built: CUDA 12.8's nvcc"),
        ({"variant": "vllm", "cuda": "12.8"}, "cannot be built: images.yaml pins no vllm"),
        (
            {"variant": "vllm", "arch": "12.0", "torch": "2.14.0"},
            "has wheels with code for 8.0, 9.0 only",
        ),
    ],
)
def test_choose_refuses_axes_with_advice(
    config: Config, axes: dict[str, str], expected: str
) -> None:
    assert expected in complaint(config, **axes)


def test_select_is_a_glob_over_the_catalogue(config: Config) -> None:
    chosen = choose_glob(config, "cu1??-sm120-*")
    assert [s.cuda.version for s in chosen] == ["12.8", "13.0"]
    both = f"cu128-sm120-torch{T128}-bookworm-runtime,cu130-sm120-torch{T130}-trixie-runtime"
    assert ",".join(s.id for s in choose_glob(config, both)) == both
    with pytest.raises(UsageError, match="no image matches 'cu99"):
        choose_glob(config, "cu99*")


def test_select_names_an_image_outside_the_catalogue(config: Config) -> None:
    other = f"cu130-sm90_sm120-torch{T130}-trixie-runtime"
    assert [s.id for s in choose_glob(config, f"cu130-*-devel,{other}")][-1] == other
    with pytest.raises(UsageError, match="unknown variant 'none'"):
        choose_glob(config, f"cu130-torch{T130}-trixie-none")
    with pytest.raises(UsageError, match=r"no image matches .* for linux/arm64"):
        choose_glob(config, other, "linux/arm64")


@pytest.mark.parametrize(
    ("axes", "torch"),
    [
        ({"cuda": "13.0"}, T130),
        ({"cuda": "13.0", "torch": "2.12.1"}, "2.12.1"),
        ({"cuda": "13.0", "torch": "2.12"}, "2.12.1"),
        ({"cuda": "13.0", "variant": "vllm"}, "2.14.0"),  # which its extra adds
        ({"cuda": "13.0", "torch": "2.14", "variant": "vllm"}, "2.14.0"),
        ({"cuda": "13.0", "torch": "2.11", "variant": "vllm"}, "2.11.0"),
        ({"source": "fork"}, "2.12.0a0"),
        ({"source": "fork", "torch": "2.12.0a0"}, "2.12.0a0"),
    ],
)
def test_choose_torch(config: Config, axes: dict[str, str], torch: str) -> None:
    spec = choose(config, **axes, platform="linux/amd64")
    assert spec.torch == torch
    assert choose_id(config, spec.id) == spec


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({"torch": "2.12.9"}, "CUDA 13.0 has no torch '2.12.9'; did you mean '2.12.1'? known: "),
        ({"torch": T128}, f"CUDA 13.0 has no torch '{T128}'; CUDA 12.8 has it"),
        ({"torch": "2.1"}, "CUDA 13.0 has no torch '2.1'; "),
        (
            {"torch": "2.11.0", "source": "fork"},
            "source fork is torch 2.12.0a0 for CUDA 12.8, 13.0, not torch 2.11.0 for CUDA 13.0",
        ),
        ({"torch": "2.12.1", "variant": "vllm"}, "; --torch 2.14.0 works"),
        ({"torch": "2.14.0"}, "CUDA 13.0 has no torch '2.14.0'; variant vllm has it"),
    ],
)
def test_choose_refuses_torch_with_advice(
    config: Config, axes: dict[str, str], expected: str
) -> None:
    assert expected in complaint(config, **axes, platform="linux/amd64")


def test_an_architecture_that_the_wheel_has_no_code_for_is_refused(config: Config) -> None:
    lacking = tuple(dataclasses.replace(f, arches=(Capability(9, 0),)) for f in config.facts)
    config = dataclasses.replace(config, facts=lacking)
    assert choose(config, cuda="13.0", platform="linux/amd64").arches == ("9.0",)
    assert f"the wheel of torch {T130} has code for 9.0 only" in complaint(config, arch="12.0")
    assert choose(config, source="fork", arch="12.0").arches == ("12.0",)


ROW = '  - {cuda: "13.0", base: bookworm}\n'


def written(yaml_file: Callable[..., Path], row: str) -> Config:
    return load_config(yaml_file((ROW, ROW + f"  - {row}\n")))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ('{cuda: "12.8", variant: vllm}', "images.yaml pins no vllm for torch 2.10.0"),
        ("{torch: 2.12.1, variant: vllm}", "images.yaml pins no vllm for torch 2.12.1"),
        (
            '{torch: 2.14.0, arch: ["9.0", "12.0"], variant: vllm}',
            "has wheels with code for 8.0, 9.0 only",
        ),
    ],
)
def test_a_row_that_cannot_be_built_is_refused_with_the_reason(
    yaml_file: Callable[..., Path], row: str, expected: str
) -> None:
    config = replace(CONFIG, catalogue=written(yaml_file, row).catalogue)
    with pytest.raises(ConfigError, match=r"'catalogue\[[0-9]+\]' lists an image") as caught:
        matrix(config)
    assert expected in str(caught.value)


def listed(config: Config, **values: tuple[str, ...]) -> tuple[ImageSpec, ...]:
    """The images of a catalogue of one row."""
    return matrix(replace(config, catalogue=(Row(**values),)))


def test_matrix_defaults_of_a_row(config: Config) -> None:
    """The base is that of the CUDA version which the row names, not of the default one."""
    assert {spec.base.name for spec in listed(config, cuda=("12.8",))} == {"bookworm"}
    each = listed(config, torch=("each",), base=("bookworm",))
    assert {spec.torch for spec in each} == set(each[0].cuda.torch)
    assert {spec.base.name for spec in each} == {"bookworm"}
    alone = listed(config, arch=("each",))
    assert alone
    for spec in alone:
        assert spec == choose(config, arch=spec.arches[0], platform="linux/amd64")
    with pytest.raises(ConfigError, match=r": unknown cuda '12\.88'; did you mean '12\.8'"):
        listed(config, cuda=("12.88",))


def test_choose_images_takes_a_glob_or_axes(config: Config) -> None:
    words = {"cuda": "13.0", "arch": "9.0", "base": ""}
    assert choose_images(config, "", words) == (choose(config, cuda="13.0", arch="9.0"),)
    pattern = "cu1??-sm90-*"
    assert choose_images(config, pattern, {"arch": ""}) == choose_glob(config, pattern)
    with pytest.raises(UsageError) as refused:
        choose_images(config, pattern, words)
    assert str(refused.value) == (
        "--select and single axes exclude each other; give one or the other"
    )
