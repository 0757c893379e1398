"""Whatever is done to images.yaml, it is refused in one line, or every image of it can be made.

The file is taken as a tree, changed in a place or three, written and read. What HYPOTHESIS_PROFILE=
long does with many new examples, the ordinary run does with the same ones each time.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.releases import T130
from torch_images.build import labels
from torch_images.build.plan import LockedImage, plan_image, version
from torch_images.config.choose import choose
from torch_images.config.image import ImageSpec
from torch_images.config.load import load_config
from torch_images.config.lock_requests import (
    image_inputs,
    source_input,
    toolkit_input,
    tools_inputs,
    unpacked_inputs,
    variant_inputs,
    wheel_input,
)
from torch_images.config.lock_selection import inputs
from torch_images.config.matrix import matrix
from torch_images.config.selection import describe, find_image
from torch_images.config.types import Config
from torch_images.errors import TorchImagesError
from torch_images.locks.debs import DebLock
from torch_images.locks.files import read
from torch_images.locks.image_lock import ImageLock
from torch_images.locks.sources import SourceLock
from torch_images.locks.wheels import WheelLock, read_wheels
from torch_images.publish.tag_rules import floating

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "locks"
TEXT = (ROOT / "images.yaml").read_text()
TREE: dict[str, Any] = yaml.load(TEXT, Loader=yaml.BaseLoader)  # noqa: S506  which makes nothing but text
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")

# Text that means something to a shell, a Dockerfile, apt, Jinja, YAML, a path or a number.
HOSTILE = (
    *("", " ", ".", "..", "-", "/", "//", "~", "*", "?", "^a$", "#", "a b", "a\tb", "a\nb", "\0"),
    *("$(id)", "`id`", "${HOME}", "'", '"', "\\", "a\\", ";", "&&", "|", ">", "<", "=", "a=b", "%s"),
    *("{{ 7 * 7 }}", "{% raw %}", "\x1b[31m", "\u202e", "ü", "²", "\ufeff", "\udc80", "\U0001d7d9"),
    *("apt-", "g++", "make+", "make/sid", "make=1", "make:i386", "a..b", "?essential", "--purge"),
    *("../x", "/a/../b", "/a/./b", "/a b", "/opt/cutlass", "/usr/local/cuda", "a/../../b"),
    *("0", "-1", "00", "022", "65535", "65536", "9" * 900, "9" * 5000, "1e400", "12.8", "13.0", "13"),
    *("9.9", "99.9", "nan", ".nan", "null", "true", "2026-01-01", "0x10", "1_000", "12:30"),
    *("all", "latest", "wheel", "fork", "runtime", "bookworm", "x-q", "q", "torch", "Torch>=1"),
    *("a; python_version>'3'", "a @ https://x/y.whl", "a===1", "a[b", "a>=", f"torch=={T130}"),
    *("https://", "https://u:p@h/x", "http://h:0/", "http://h:65536/", "https://h/../x", "file:///x"),
    *("a" * 24, "a" * 25, "a" * 200, "a:b", "a/b:c", "a//b:c", "580", "999"),
)  # fmt: skip
# What the file says elsewhere is the most misleading.
SCALARS = sorted({node for node in re.findall(r"[\w.+/-]{2,40}", TEXT) if node})
WORDS = st.one_of(
    st.sampled_from(HOSTILE), st.sampled_from(SCALARS), st.text(max_size=12), st.just(None)
)

SENTENCES = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=30)
# What happens to a place, or to the name of an entry and what refers to it.
ACTS = ("drop", "word", "word", "swap", "name", "name", "copy", "prose", "prose")
NAMED = ("cuda", "architectures", "sources", "bases", "variants", "extras")
PROSE = ("description", "reason", "family")  # may say anything on one line

Place = tuple[Any, Any]  # a mapping or list, and the key or index in it


def places(tree: Any) -> Iterator[Place]:
    """Every place of a tree that holds something."""
    keys = tree if isinstance(tree, dict) else range(len(tree))
    for key in list(keys):
        yield tree, key
        if isinstance(tree[key], (dict, list)):
            yield from places(tree[key])


def swapped(value: Any) -> Any:
    """The same content as another kind of node."""
    if isinstance(value, dict):
        return list(value)
    if isinstance(value, list):
        return {str(member): "x" for member in value} if value else "x"
    return [value]


def renamed(tree: dict[str, Any], section: str, old: str, new: str) -> None:
    """An entry gets another name, as do all the references to it."""
    tree[section] = {new if key == old else key: value for key, value in tree[section].items()}
    axis = {"cuda": "cuda", "architectures": "arch"}.get(section, section.removesuffix("s"))
    for holder, key in list(places(tree)):
        if (key == axis and holder[key] == old) or (
            section == "extras" and isinstance(holder, list) and holder[key] == old
        ):
            holder[key] = new


def change(draw: st.DrawFn, act: str, holder: Any, key: Any, everywhere: list[Place]) -> None:
    """One place is changed."""
    if act == "drop":
        del holder[key]
    elif act == "copy":
        other, there = draw(st.sampled_from(everywhere))
        holder[key] = copy(other[there])
    elif act == "swap":
        holder[key] = swapped(holder[key])
    else:
        holder[key] = draw(st.one_of(WORDS, SENTENCES) if act == "prose" else WORDS)


def copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


@st.composite
def changed(draw: st.DrawFn) -> dict[str, Any]:
    """The tree of images.yaml after one change or a few."""
    tree: dict[str, Any] = copy(TREE)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        act = draw(st.sampled_from(ACTS))
        named = [s for s in NAMED if isinstance(tree.get(s), dict) and tree[s]]
        if act == "name" and named:
            section = draw(st.sampled_from(named))
            old = draw(st.sampled_from(sorted(tree[section])))
            renamed(tree, section, old, draw(WORDS.map(str)))
            continue
        everywhere = list(places(tree))
        prose = [(h, k) for h, k in everywhere if k in PROSE and isinstance(h[k], str)]
        chosen = prose if act == "prose" and prose else everywhere
        if chosen:
            change(draw, act, *draw(st.sampled_from(chosen)), everywhere)
    return tree


def locked(config: Config, spec: ImageSpec) -> ImageLock:
    """Some lock that has all the parts which an image needs; resolving one is not the matter."""
    extra_wheels, extra_debs = variant_inputs(config, spec)
    tools, tool_debs = tools_inputs(config, spec)
    return ImageLock(
        wheels=some(wheel_input(config, spec).name),
        base=BASE if spec.base.suite else IMAGE,
        build=TOOLS,
        sbom=TOOLS,
        compat=COMPAT,
        extra_wheels=some(extra_wheels.name) if extra_wheels else None,
        extra_debs=BASE if extra_debs else None,
        sources=SOURCES if source_input(spec) else None,
        tools=some(tools.name) if tools else None,
        tool_debs=BASE if tool_debs else None,
        toolkit=SOURCES if toolkit_input(config, spec) else None,
        unpacked=tuple(some(item.name) for item in unpacked_inputs(spec)),
    )


def some(name: str) -> WheelLock:
    return WheelLock(**{**vars(WHEELS), "name": name})


WHEELS = read_wheels(LOCKS / f"wheel-cu130-torch{T130}-py313.json")
TOOLS = read_wheels(LOCKS / "tools-build.json")
BASE = read(DebLock, LOCKS / "base-bookworm.json")
IMAGE = replace(
    BASE, system="ubuntu noble", image=f"nvidia/cuda:x@sha256:{'0' * 64}", debs=(), unlocked=True
)
COMPAT = read(DebLock, LOCKS / "compat-cu130.json")
SOURCES = read(SourceLock, LOCKS / "source-fork.json")


def one_line(error: TorchImagesError) -> None:
    assert str(error).isprintable()
    assert len(str(error)) < 5000


def keeps_its_promises(path: Path) -> Config | None:
    """The configuration, None for one that is refused."""
    try:
        config = load_config(path)
        specs = matrix(config)
    except TorchImagesError as error:
        one_line(error)
        assert str(error).startswith("images.yaml")
        return None
    json.dumps([describe(spec) for spec in specs])
    assert len({spec.id for spec in specs}) == len(specs)
    named = [
        (f"{spec.repository}:{tag}", spec.platform)
        for spec in specs
        for tag in set(floating(config, spec))
    ]
    assert len(set(named)) == len(named)  # one tag is for the same image on each platform
    tags = [tag for tag, _ in named]
    assert all(TAG.fullmatch(tag.partition(":")[2]) for tag in tags)
    requests: dict[str, tuple[str, ...]] = {}
    for item in itertools.chain.from_iterable(image_inputs(config, spec) for spec in specs):
        assert requests.setdefault(item.name, item.request) == item.request
    assert {item.name for item in inputs(config)} >= set(requests)
    for cuda in config.names("cuda"):
        try:
            assert choose(config, cuda=cuda).architectures
        except TorchImagesError as error:
            one_line(error)
    kinds = {(s.source.name, s.base.name, s.variant.name): s for s in specs}
    for spec in kinds.values():
        try:
            image = LockedImage(spec=spec, lock=locked(config, spec))
            plan = plan_image(config, image, ROOT)
        except TorchImagesError as error:
            one_line(error)
        else:
            assert TAG.fullmatch(version(config, plan))
            assert all(text.isprintable() for text in labels.write(config, plan).values())
            assert find_image(config, spec.id) == spec
    return config


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "images.yaml"


def test_the_file_itself(path: Path) -> None:
    path.write_text(yaml.dump(TREE, Dumper=yaml.CSafeDumper, sort_keys=False))
    found = keeps_its_promises(path)
    assert found == load_config(ROOT / "images.yaml")


@given(changed())
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_change_is_refused_or_can_be_made(path: Path, tree: dict[str, Any]) -> None:
    text = yaml.dump(tree, Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=True)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    event("refused" if keeps_its_promises(path) is None else "made")
