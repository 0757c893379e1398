"""Spec files of the Container Device Interface: what an engine would find in them.

Each case was tried with Docker 26.1.5, which takes or refuses it as told here, but for those that
say otherwise.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from torch_images.host import cdi as module
from torch_images.host.cdi import MOST_BYTES, SpecFile, is_qualified, parse_spec, resolve
from torch_images.host.cdi_files import read_folder, read_folders

EDITS = {"env": ["A=b"]}


def spec(*names: str, **changes: Any) -> dict[str, Any]:
    """A spec for nvidia.com/gpu with these devices."""
    devices = [{"name": name, "containerEdits": EDITS} for name in names or ("0",)]
    return {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices, **changes}


def parsed(document: Any) -> SpecFile:
    """What a document defines, as JSON."""
    return parse_spec("/etc/cdi/a.json", json.dumps(document).encode())


# As `nvidia-ctk cdi generate` writes one, shortened.
NVIDIA = b"""\
---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-cdi-hook
    - update-ldcache
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: GPU-00000000-1111-2222-3333-444444444444
- containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}
  name: all
kind: nvidia.com/gpu
"""


def test_a_spec_as_nvidia_writes_it() -> None:
    names = ("0", "GPU-00000000-1111-2222-3333-444444444444", "all")
    found = parse_spec("/etc/cdi/nvidia.yaml", NVIDIA)
    assert found == SpecFile(
        path="/etc/cdi/nvidia.yaml", devices=tuple(f"nvidia.com/gpu={name}" for name in names)
    )


def test_json_is_the_same() -> None:
    document = yaml.safe_load(NVIDIA)
    for text in (json.dumps(document), json.dumps(document, indent="\t")):
        found = parse_spec("x", text.encode())
        assert found.devices == parse_spec("x", NVIDIA).devices


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        # A number is the name that it is written as.
        ("[{name: 0, containerEdits: {env: [A=b]}}]", ("0",)),
        ("[{name: 0:1, containerEdits: {env: [A=b]}}]", ("0:1",)),
        ("[{name: a, containerEdits: &e {env: [A=b]}}, {name: b, containerEdits: *e}]", ("a", "b")),
        ("[]", ()),
    ],
)
def test_yaml_that_is_taken(text: str, devices: tuple[str, ...]) -> None:
    head = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: "
    for tail in ("\n", "\n---\nfoo: [\n"):  # only the first of several documents counts
        found = parse_spec("x", f"{head}{text}{tail}".encode())
        assert (found.problem, found.devices) == ("", tuple(f"nvidia.com/gpu={d}" for d in devices))


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (spec("b", "a", "a"), "it defines the device 'a' twice"),
        (spec("a", "-b"), "'-b' is not the name of a device"),
        (spec("a", "b_"), "'b_' is not the name of a device"),
        (spec("a", "b=c"), "'b=c' is not the name of a device"),
        (spec(devices=[{"containerEdits": EDITS}]), "'' is not the name of a device"),
        (
            spec(devices=[{"name": ["a"], "containerEdits": EDITS}]),
            "'' is not the name of a device",
        ),
        (spec(devices=[{"name": "a", "containerEdits": {}}]), "its device 'a' has no containerE"),
        (spec(devices=[{"name": "a", "containerEdits": []}]), "its device 'a' has no containerE"),
        (spec(devices=[{"name": "a"}]), "its device 'a' has no containerEdits"),
        (spec(devices=["a"]), "one of its devices is not a mapping"),
        (spec(devices={"a": EDITS}), "its devices are not a list"),
        (spec(devices=None), "its devices are not a list"),
        ({"cdiVersion": "0.5.0", "kind": "a.com/bc"}, "its devices are not a list"),
        (spec(kind="nvidia.com"), "its kind 'nvidia.com' is not one such as nvidia.com/gpu"),
        (spec(kind="nvidia.com/gpu/x"), "its kind 'nvidia.com/gpu/x' is not one such"),
        (spec(kind="9vidia.com/gpu"), "its kind '9vidia.com/gpu' is not one such"),
        (spec(kind="nvidia.com/gpu-"), "its kind 'nvidia.com/gpu-' is not one such"),
        (spec(kind=["nvidia.com/gpu"]), "its kind '' is not one such"),
        # This one ends dockerd.
        (spec(kind="nvidia.com/g"), "its kind 'nvidia.com/g' is not one such"),
        (spec(kind="a.com/\x1b[31m"), "its kind 'a.com/\\x1b[31m' is not one such"),
        (spec(cdiVersion="0.5"), "its cdiVersion is not one such as 0.6.0"),
        (spec(cdiVersion=None), "its cdiVersion is not one such as 0.6.0"),
        ({"kind": "a.com/bc", "devices": []}, "its cdiVersion is not one such as 0.6.0"),
        ([spec()], "it is not a mapping"),
        ("a", "it is not a mapping"),
    ],
)
def test_what_is_wrong_is_said_and_defines_nothing(document: Any, problem: str) -> None:
    found = parsed(document)
    assert found.problem.startswith(problem)
    assert (found.path, found.devices, found.readable) == ("/etc/cdi/a.json", (), True)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "it is not a mapping"),
        (b"a: [", "it is neither JSON nor YAML in line "),
        (b"a: b\n\t- c: ]", "it is neither JSON nor YAML in line 2"),
        (b"\x00", "it is neither JSON nor YAML$"),
        (b"\xff\xfe", "it is not UTF-8 text"),
        (b"kind: a\nkind: b", "a mapping in it has one key twice"),
        (b"a: [{b: {c: 1, c: 2}}]", "a mapping in it has one key twice"),
        (b"[" * 31, "it is nested too deeply, or too long"),
        (b"{a: " * 100_000, "it is nested too deeply, or too long"),
        (b"[" + b"0," * 250_000 + b"0]", "it is nested too deeply, or too long"),
        (b"#" * (MOST_BYTES + 1), "it is larger than 1000 kB"),
        # What is read again and again by whoever follows each alias.
        (b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]", "its cdiVersion is not one"),
        (b"a: &a [*a]", "its cdiVersion is not one"),
        (b"a: *b", "it is neither JSON nor YAML"),
        (b"? {a: b}\n: c", "its cdiVersion is not one"),
    ],
)
def test_what_is_no_spec_at_all(data: bytes, problem: str) -> None:
    found = parse_spec("x", data)
    assert re.match(problem, found.problem)
    assert found.devices == ()


def test_thirty_levels_are_read() -> None:
    assert parse_spec("x", b"[" * 30 + b"]" * 30).problem == "it is not a mapping"
    assert parse_spec("x", b"#" * MOST_BYTES).problem == "it is not a mapping"


@pytest.mark.parametrize("data", [b"%YAML " + b"9" * 5000 + b".1\n--- a", rb'a: "\UFFFFFFFF"'])
def test_pythons_own_parser_will_do(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML may have been built without the one in C."""
    monkeypatch.setattr(module, "_LOADER", yaml.BaseLoader)
    assert parse_spec("x", NVIDIA).devices[0] == "nvidia.com/gpu=0"
    assert parse_spec("x", data).problem.startswith("it is neither JSON nor YAML")


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("nvidia.com/gpu=all", True),
        ("nvidia.com/gpu=0", True),
        ("management.nvidia.com/gpu=0:1", True),
        ("vv/gg=a.b-c_d", True),
        ("nvidia.com/gpu=a" + "b" * 5000, True),
        ("nvidia.com/gpu=0\n", False),
        ("nvidia.com/gpu=\u0663", False),
        ("nvidia.com/gpu=0/1", False),
        ("=0", False),
        ("", False),
    ],
)
def test_the_name_of_a_device(name: str, whole: bool) -> None:
    assert is_qualified(name) == whole


def held(*names: str) -> SpecFile:
    return SpecFile(path="x", devices=names)


def test_a_device_that_two_files_of_a_folder_define_is_gone() -> None:
    assert resolve([[held("a", "b"), held("b", "c")]]) == (("a", "c"), ("b",))


def test_a_later_folder_defines_a_device_anew() -> None:
    assert resolve([[held("a", "b")], [held("b", "c")]]) == (("a", "b", "c"), ())
    assert resolve([[held("a"), held("a")], [held("a")]]) == ((), ("a",))


# --- files ----------------------------------------------------------------------------------------


def test_the_files_of_a_folder(tmp_path: Path) -> None:
    """Those with two suffixes, in the order of their names, through links; no folder below."""
    (tmp_path / "b.json").write_text(json.dumps(spec("0")))
    (tmp_path / "a.yaml").write_bytes(NVIDIA)
    (tmp_path / "c.yml").write_bytes(NVIDIA)
    (tmp_path / "d.json.bak").write_bytes(NVIDIA)
    (tmp_path / "e.json").mkdir()
    (tmp_path / "e.json" / "f.json").write_bytes(NVIDIA)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(json.dumps(spec("link")))
    (tmp_path / "g.yaml").symlink_to(elsewhere)
    files = read_folder(tmp_path)
    assert [(Path(f.path).name, f.problem) for f in files] == [
        ("a.yaml", ""),
        ("b.json", ""),
        ("g.yaml", ""),
    ]
    assert files[2].devices == ("nvidia.com/gpu=link",)


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "gone.json").symlink_to("nothing")
    (tmp_path / "folder.json").symlink_to(tmp_path)
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.json")
    problems = {Path(file.path).name: file.problem for file in read_folder(tmp_path)}
    assert problems == {
        "endless.json": "it is not a file",
        "folder.json": "it is not a file",
        "gone.json": "No such file or directory",
        "loop.json": "Too many levels of symbolic links",
        "pipe.json": "it is not a file",
    }


def test_a_large_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(1 << 40)
    [found] = read_folder(tmp_path)
    assert found.problem == "it is larger than 1000 kB"


def test_what_this_user_may_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can hold anything, so nothing is known. Root can read all, so the system's word is faked."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.json").write_text("{}")
    monkeypatch.setattr(os, "open", refuse)
    closed = SpecFile(path=f"{tmp_path}/a.json", problem="Permission denied", readable=False)
    assert read_folder(tmp_path) == (closed,)
    monkeypatch.setattr(os, "scandir", refuse)
    assert read_folder(tmp_path) == (replace(closed, path=str(tmp_path)),)


def test_too_many_files(tmp_path: Path) -> None:
    for number in range(201):
        (tmp_path / f"{number:03}.json").write_text(json.dumps(spec(f"d{number}")))
    *files, last = read_folder(tmp_path)
    assert len(files) == 200
    assert files[199].devices == ("nvidia.com/gpu=d199",)
    problem = "it has more than 200 spec files"
    assert last == SpecFile(path=str(tmp_path), problem=problem, readable=False)
    (tmp_path / "200.json").unlink()
    assert read_folder(tmp_path) == tuple(files)


def test_folders_that_are_one_are_read_once(tmp_path: Path) -> None:
    """As /var/run and /run are; the same device would seem to be defined twice."""
    folder = tmp_path / "cdi"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps(spec("0")))
    (tmp_path / "link").symlink_to(folder)
    groups = read_folders([str(folder), str(tmp_path / "link"), str(tmp_path / "none")])
    assert resolve(groups) == (("nvidia.com/gpu=0",), ())
    assert sum(map(len, groups)) == 1
