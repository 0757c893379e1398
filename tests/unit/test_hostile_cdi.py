"""Spec files of devices may hold anything: names that can be used, or one line that says why not."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hostile import DOCUMENTS, RAW_JSON, WORDS, altered, altered_lines, ends_well
from torch_images.host.cdi import SpecFile, is_qualified, parse_spec, resolve
from torch_images.host.gpu_facts import from_info
from torch_images.host.gpus import GpuWays, check_words, device_requests

SPEC: dict[str, Any] = {
    "cdiVersion": "0.6.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
        {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
    ],
    "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
}
YAML = yaml.safe_dump(SPEC)
# Aliases that refer to themselves or to ever more, tags that make objects, merges, directives.
RAW_YAML = st.sampled_from(
    [
        *("&a [*a]", "&a {? *a : b}", "a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]", "*a", "<<: *a"),
        *("!!python/object/apply:os.system [id]", "!!binary x", "%YAML 9.9\n---\na", "--- !<x> a"),
        *("? [a]\n: b", "? {a: b}\n: c", "- - - - -", "{" * 500, "- " * 500, "\ta: b", "a: |\n  x"),
        *("kind: [", "'", '"\\ud800"', '"\\UFFFFFFFF"', "---\n---\n", "...", "%TAG ! x", "@a", "`"),
    ]
)
TEXTS = (
    RAW_JSON
    | RAW_YAML
    | DOCUMENTS.map(json.dumps)
    | altered(SPEC).map(json.dumps)
    | altered_lines(st.just(YAML))
    | st.text(max_size=30)
)
NAMES = st.sampled_from(
    ["nvidia.com/gpu=0", "nvidia.com/gpu=all", "nvidia.com/gpu=GPU-1", "a.b/cd=e"]
)


@given(TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=40))
def test_any_spec_gives_names_or_one_line(data: bytes) -> None:
    found = parse_spec("/etc/cdi/x", data)
    assert not (found.devices and found.problem)
    assert all(is_qualified(name) and name.isascii() for name in found.devices)
    assert len(set(found.devices)) == len(found.devices)
    assert len(found.problem.splitlines()) <= 1
    assert len(found.problem) < 300
    assert found.problem.isprintable()


@given(st.lists(st.lists(st.lists(NAMES, unique=True), max_size=3), max_size=3))
def test_no_device_is_both_usable_and_doubtful(folders: list[list[list[str]]]) -> None:
    groups = [[SpecFile(path="x", devices=tuple(names)) for names in group] for group in folders]
    usable, twice = resolve(groups)
    assert len(set(usable)) == len(usable)
    assert not set(usable) & set(twice)
    assert {*usable, *twice} == {name for group in folders for names in group for name in names}
    for name in usable:
        assert all(sum(name in names for names in group) <= 1 for group in folders)


@given(
    WORDS | st.lists(NAMES | WORDS, min_size=1, max_size=4).map(",".join) | st.just("2"),
    st.none() | st.booleans(),
    st.booleans(),
    st.none() | st.lists(NAMES, unique=True).map(tuple),
)
def test_any_choice_is_a_request_or_one_line(
    words: str, own: bool | None, cdi: bool, devices: tuple[str, ...] | None
) -> None:
    """A request by CDI has only devices that the specs have, and none where CDI is off."""
    ways = GpuWays(own=own, cdi=cdi, devices=devices)
    ends_well(lambda: check_words(words))
    requests = ends_well(lambda: device_requests(words, ways))
    for request in requests or ():
        if request.get("driver") == "cdi":
            assert cdi
            assert devices is None or set(request["device_ids"]) <= set(devices)
        else:
            assert own is not False
    if requests is None:  # refused: either by its words, or with a reason in the engine
        assert not (own and words in ("all", "2"))


@given(st.lists(TEXTS, max_size=3))
def test_a_folder_of_anything(texts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(texts):
            Path(folder, f"{number}.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
        info = {"ServerVersion": "26.1.5", "CDISpecDirs": [folder]}
        found = from_info(info, local=True, hook=False)
        assert len(found.files) == len(texts)
        ends_well(lambda: device_requests("all", found.ways))
