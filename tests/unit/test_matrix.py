from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.releases import T128, T130
from torch_images.arch import Capability
from torch_images.config.matrix import ImageSpec, choose, matrix
from torch_images.config.parse import load_config
from torch_images.config.selection import chosen, describe, select, unfit
from torch_images.config.types import Architecture, Config
from torch_images.errors import UsageError
from torch_images.locks.facts import with_facts

ROOT = Path(__file__).resolve().parents[2]
CONFIG = with_facts(load_config(ROOT / "images.yaml"), ROOT / "locks")


def complaint(config: Config, **axes: str) -> str:
    with pytest.raises(UsageError) as caught:
        choose(config, **axes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_identifiers_are_unique_and_stable(config: Config) -> None:
    ids = [spec.id for spec in matrix(config)]
    assert len(ids) == len(set(ids))
    assert f"cu130-sm120-torch{T130}-bookworm-runtime" in ids
    assert f"cu128-all-torch{T128}-ubuntu24.04-runtime" in ids


def test_nothing_excluded_is_listed(config: Config) -> None:
    fork = {s.base.name for s in matrix(config) if s.source.name.startswith("fork")}
    assert fork == {"bookworm"}
    assert {s.variant.name for s in matrix(config)} == set(config.names("variant"))
    recsys = {a.name for s in matrix(config) if s.variant.name == "recsys" for a in s.architectures}
    assert recsys == {"8.0", "8.6", "8.9", "9.0", "10.0", "10.3"}
    exact = {s.torch for s in matrix(config) if s.variant.name == "recsys" and "10.3" in s.arches}
    assert exact == {T130}  # FBGEMM's code before is for 10.0 and no other GPU (sm_100a)
    devel = {(s.cuda.version, s.base.name) for s in matrix(config) if s.variant.name == "devel"}
    bookworm = {(cuda, "bookworm") for cuda in config.names("cuda")}
    assert devel == bookworm | {("13.0", "trixie"), ("13.2", "trixie")}


@st.composite
def specs(draw: st.DrawFn) -> ImageSpec:
    """Any image that can be built: of the matrix, of several architectures, with PTX, pruned."""
    spec = draw(st.sampled_from(matrix(CONFIG)))
    if spec.every_arch:
        chosen = draw(st.sets(st.sampled_from(spec.architectures), min_size=1))
        if draw(st.booleans()):
            several = tuple(a for a in spec.architectures if a in chosen)
            spec = replace(spec, architectures=several, every_arch=False)
    ptx = spec.source.compiled and draw(st.booleans())
    return replace(spec, ptx=ptx, prune=draw(st.booleans()))


def axes(words: Sequence[str]) -> dict[str, str]:
    """The axes that words of a command line name."""
    values = [word for word in words if word != "--prune"]
    return {
        name.removeprefix("--"): value
        for name, value in zip(values[::2], values[1::2], strict=True)
    }


@given(specs())
def test_an_identifier_leads_back_to_its_image(spec: ImageSpec) -> None:
    assert ImageSpec.parse(spec.id, CONFIG) == spec


@given(specs())
def test_arguments_lead_back_to_their_image(spec: ImageSpec) -> None:
    [again] = chosen(CONFIG, "", axes(spec.arguments), prune="--prune" in spec.arguments)
    assert again == spec


@given(specs(), specs())
def test_no_two_images_share_an_identifier(one: ImageSpec, two: ImageSpec) -> None:
    assert (one.id == two.id) == (one == two)


def test_an_identifier_whose_end_reads_as_another_base_and_variant(config: Config) -> None:
    """The end "-a-b" also ends "...-torch2.14.1-a-a-b", whose variant is "a-b"."""
    [runtime] = [v for v in config.variants if v.name == "runtime"]
    named = replace(
        config,
        bases=(*config.bases, replace(config.bases[0], name="a")),
        variants=(*config.variants, *(replace(runtime, name=name) for name in ("b", "a-b"))),
        excludes=(),
    )
    spec = choose(named, base="a", variant="a-b")
    assert spec.id.endswith("-a-a-b")
    assert ImageSpec.parse(spec.id, named) == spec


@pytest.mark.parametrize(
    ("identifier", "reason"),
    [
        ("", "no image ''"),
        ("cu130", "no image 'cu130'"),
        (f"cu130-sm120_sm90-torch{T130}-bookworm-runtime", "no image"),  # in another order
        (f"cu130-sm90_sm90-torch{T130}-bookworm-runtime", "no image"),
        ("cu130-sm90_pruned_ptx-fork-bookworm-runtime", "no image"),
        (f"cu130-sm90__pruned-torch{T130}-bookworm-runtime", "no image"),
        (f"cu130--torch{T130}-bookworm-runtime", "no image"),
        (f"cu130-_pruned-torch{T130}-bookworm-runtime", "no image"),
        (f"cu131-sm90-torch{T130}-bookworm-runtime", "no image"),
        (f"cu130-sm91-torch{T130}-bookworm-runtime", "no image"),
        (f"cu130-sm90-torch{T130}-bookworm-runtime-", "no image"),
        (f"CU130-sm90-torch{T130}-bookworm-runtime", "no image"),
        ("cu130-sm99-torch2.99.0-bookworm-runtime", "no image 'cu130-sm99-torch2.99.0-bookworm-"),
        (f"cu130-sm90_ptx-torch{T130}-bookworm-runtime", "source wheel has no PTX"),
        (f"cu130-sm120-torch{T130}-bookworm-recsys", "variant recsys is not built: "),
    ],
)
def test_what_is_no_identifier(identifier: str, reason: str) -> None:
    with pytest.raises(UsageError, match=re.escape(reason)):
        ImageSpec.parse(identifier, CONFIG)


@given(st.text("cu130-sm9_ptxrundweh.lbok", max_size=60))
def test_any_text_is_an_identifier_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert ImageSpec.parse(text, CONFIG).id == text


@given(st.data())
def test_the_order_of_architectures_does_not_matter(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from([spec for spec in matrix(CONFIG) if spec.every_arch]))
    served = [a.name for a in whole.architectures]
    arches = data.draw(st.sets(st.sampled_from(served), min_size=1))
    same = {"cuda": whole.cuda.name, "torch": whole.torch, "source": whole.source.name}
    same |= {
        "base": whole.base.name,
        "variant": whole.variant.name,
        "platform": whole.platform.name,
    }
    forth = choose(CONFIG, arch=",".join(sorted(arches)), **same)
    back = choose(CONFIG, arch=";".join(sorted(arches, reverse=True)), **same)
    assert forth == back
    assert {a.name for a in forth.architectures} == arches


@given(st.text(min_size=1), st.sampled_from(["cuda", "arch", "source", "base", "variant"]))
def test_any_other_word_is_one_line(word: str, axis: str) -> None:
    if word in {*CONFIG.names(axis), "all"}:
        return
    try:
        choose(CONFIG, **{axis: word})
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert axis == "arch"


def test_defaults_give_all_architectures(config: Config) -> None:
    spec = choose(config, platform="linux/arm64")
    assert spec.id == f"cu130-all-torch{T130}-bookworm-runtime-arm64"
    older = {"7.0", "7.5"}  # no wheel for Arm processors has code for them
    assert {a.name for a in spec.architectures} == {*config.names("arch")} - older
    spec = choose(config, platform="linux/amd64")
    assert spec.id == f"cu130-all-torch{T130}-bookworm-runtime"
    alone = {"11.0", "12.1"}  # in hosts with Arm processors only
    assert {a.name for a in spec.architectures} == {*config.names("arch")} - alone - {"7.0"}
    assert choose(config, cuda="12.8", platform="linux/amd64").arches[:2] == ("7.0", "7.5")


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({"cuda": "13.5"}, "unknown cuda '13.5'; did you mean '13."),
        ({"arch": "9.9"}, "unknown arch '9.9'; did you mean '9.0'?"),
        ({"arch": "7.0"}, "CUDA 13.0 cannot target 7.0: its compiler goes from 7.5 to 12.1"),
        ({"arch": "6.1", "cuda": "12.8"}, "unknown arch '6.1'"),
        ({"arch": "sm_120"}, "'sm_120' is not a compute capability like 9.0 or 12.0"),
        ({"arch": ","}, "no architecture in ','"),
        ({"variant": "runtme"}, "did you mean 'runtime'?"),
        ({"base": "bokworm"}, "did you mean 'bookworm'?"),
        ({"source": "fork", "base": "ubuntu24.04"}, "is not built: sources are compiled on bookw"),
        ({"arch": "12.0+PTX"}, "source wheel has no PTX: it is published without; leave +PTX out"),
        ({"arch": "12.0+FTX"}, "'+FTX' is no part of an architecture; +PTX may end the last one"),
        ({"arch": "12.0+"}, "'+' is no part of an architecture"),
        (
            {"variant": "vllm", "cuda": "12.8"},
            "is not built: vLLM's wheels for torch 2.10.0 are of",
        ),
        ({"variant": "recsys", "arch": "12.0"}, "wheels have code for 8.0, 9.0 and 10.0 only"),
    ],
)
def test_refused_with_advice(config: Config, axes: dict[str, str], expected: str) -> None:
    assert expected in complaint(config, **axes)


def test_select_is_a_glob(config: Config) -> None:
    found = select(config, "cu1??-sm120-fork-bookworm-runtime")
    assert [s.cuda.version for s in found] == ["12.8", "13.0"]
    both = f"cu128-sm120-torch{T128}-bookworm-runtime,cu130-sm120-torch{T130}-bookworm-runtime"
    assert ",".join(s.id for s in select(config, both)) == both
    with pytest.raises(UsageError, match="no image matches 'cu99"):
        select(config, "cu99*")


@pytest.mark.parametrize(
    ("axes", "torch"),
    [
        ({"cuda": "13.0"}, T130),
        ({"cuda": "13.0", "torch": "2.12.1"}, "2.12.1"),
        ({"cuda": "13.0", "torch": "2.12"}, "2.12.1"),
        ({"cuda": "13.0", "variant": "vllm"}, "2.13.0"),  # the newest that vLLM has wheels for
        ({"cuda": "13.0", "torch": "2.11", "variant": "vllm"}, "2.11.0"),
        ({"source": "fork"}, "2.12.0a0"),
        ({"source": "fork", "torch": "2.12.0a0"}, "2.12.0a0"),
    ],
)
def test_which_torch_an_image_has(config: Config, axes: dict[str, str], torch: str) -> None:
    spec = choose(config, **axes)
    assert spec.torch == torch
    assert ImageSpec.parse(spec.id, config) == spec


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({"torch": "2.12.9"}, "CUDA 13.0 has no torch '2.12.9'; did you mean '2.12.1'? known: "),
        ({"torch": T128}, f"CUDA 13.0 has no torch '{T128}'; CUDA 12.8 has it"),
        ({"torch": "2.1"}, "CUDA 13.0 has no torch '2.1'; "),
        (
            {"torch": "2.11.0", "source": "fork"},
            "source fork compiles torch 2.12.0a0, not 2.11.0; leave --torch out, or take --source",
        ),
        (
            {"source": "fork", "cuda": "13.2"},
            "source fork is not compiled for CUDA 13.2; it is for",
        ),
        ({"torch": "2.12.1", "variant": "vllm"}, "; it is built with --torch 2.13.0"),
        (
            {"torch": "2.15.0", "variant": "vllm", "cuda": "13.2"},
            "no wheels of vllm fit torch 2.15.0",
        ),
    ],
)
def test_a_torch_that_an_image_cannot_have(
    config: Config, axes: dict[str, str], expected: str
) -> None:
    assert expected in complaint(config, **axes)


def test_an_architecture_that_the_wheel_has_no_code_for_is_left_out(config: Config) -> None:
    lacking = tuple(dataclasses.replace(f, arches=(Capability(9, 0),)) for f in config.facts)
    config = dataclasses.replace(config, facts=lacking)
    assert choose(config, cuda="13.0").arches == ("9.0",)
    assert f"the wheel of torch {T130} has code for 9.0 only" in complaint(config, arch="12.0")
    assert choose(config, source="fork", arch="12.0").arches == ("12.0",)


def test_an_excluded_architecture_is_left_out(yaml_file: Callable[..., Path]) -> None:
    rule = '  - cuda: "13.0"\n    arch: "8.6"\n    reason: for the test\n'
    config = load_config(yaml_file(("exclude:\n", "exclude:\n" + rule)))
    assert "8.6" not in [a.name for a in choose(config).architectures]
    assert f"cu130-sm86-torch{T130}-bookworm-runtime" not in [s.id for s in matrix(config)]
    assert "is not built: for the test" in complaint(config, arch="8.6")


def test_a_pattern_or_single_axes_but_not_both(config: Config) -> None:
    named = {"cuda": "13.0", "arch": "9.0", "base": ""}
    [spec] = chosen(config, "", named)
    assert spec == choose(config, cuda="13.0", arch="9.0")
    assert chosen(config, "", named, prune=True) == (dataclasses.replace(spec, prune=True),)
    pattern = "cu1??-sm90-fork-bookworm-runtime"
    assert chosen(config, pattern, {"arch": ""}) == select(config, pattern)
    with pytest.raises(UsageError) as refused:
        chosen(config, pattern, named)
    assert str(refused.value) == (
        "--select and single axes exclude each other; give one or the other"
    )


def test_the_description_is_one_line_for_people(config: Config) -> None:
    assert choose(config, cuda="13.0", arch="9.0,12.0").description == (
        f"PyTorch {T130} for CUDA 13.0 on 9.0 (Hopper: H100, H200, GH200), "
        "12.0 (Blackwell: RTX 5090, RTX 5080, RTX PRO 6000, RTX PRO 5000)"
    )


def test_description_is_plain_data(config: Config) -> None:
    assert describe(choose(config, arch="12.0"))["arch"] == ["12.0"]


def test_a_base_is_left_out_where_it_names_no_image(yaml_file: Callable[..., Path]) -> None:
    config = load_config(yaml_file(('"12.8": nvidia/cuda:', '# "12.8": nvidia/cuda:')))
    bases = {(s.cuda.version, s.base.name) for s in matrix(config)}
    debian = {(cuda, base) for cuda in config.names("cuda") for base in ("bookworm", "trixie")}
    assert bases == debian | {("13.0", "ubuntu24.04")}
    assert complaint(config, cuda="12.8", base="ubuntu24.04") == (
        f"CUDA 12.8, torch {T128}, arch {config.names('arch')[0]}, source wheel, base ubuntu24.04, "
        "variant runtime is not built: base ubuntu24.04 names no image for CUDA 12.8"
    )
    assert choose(config, cuda="13.0", base="ubuntu24.04").base.name == "ubuntu24.04"


def test_an_architecture_is_left_out_where_its_compiler_cannot(config: Config) -> None:
    """Whoever builds a Config without images.yaml is held to the same: nothing excludes 6.1."""
    pascal = Architecture(capability=Capability(6, 1), family="Pascal", gpus=("P40",))
    facts = (dataclasses.replace(f, arches=(Capability(6, 0), *f.arches)) for f in config.facts)
    wider = dataclasses.replace(
        config, architectures=(pascal, *config.architectures), facts=tuple(facts)
    )
    served = {(s.cuda.version, pascal in s.architectures) for s in matrix(wider) if s.every_arch}
    assert {("12.8", True), ("13.0", False)} <= served
    assert ("13.0", True) not in served
    assert {s.cuda.version for s in matrix(wider) if s.architectures == (pascal,)} == {"12.8"}
    assert pascal in choose(wider, cuda="12.8").architectures
    assert pascal not in choose(wider, cuda="13.0").architectures
    assert "CUDA 13.0 cannot target 6.1" in complaint(wider, cuda="13.0", arch="6.1")


def test_a_cuda_version_for_none_of_the_architectures_has_no_image(config: Config) -> None:
    future = Architecture(capability=Capability(12, 1), family="Blackwell", gpus=("GB10",))
    only = dataclasses.replace(config, architectures=(future,))
    able = {c.version for c in config.cudas if future.capability in c.targets}
    assert {s.cuda.version for s in matrix(only)} == able
    assert "13.0" in able
    assert "is not built: CUDA 12.8 cannot target 12.1" in complaint(only, cuda="12.8")


def test_variants_that_no_wheels_fit_are_listed_with_the_reason(config: Config) -> None:
    """And they are not in the matrix; a variant that fits is in no line."""
    lines = unfit(config)
    built = {(s.cuda.version, s.torch, s.variant.name) for s in matrix(config)}
    assert lines
    for line in lines:
        found = re.match(r"cuda (\S+), torch (\S+), variant (\S+): no ", line)
        assert found
        assert found.groups() not in built
    bare = replace(config, facts=())
    assert unfit(bare) == ()
