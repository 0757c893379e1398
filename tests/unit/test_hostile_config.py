"""images.yaml as nobody should write it: every fault is one line that names the place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_images.config.load import load_config
from torch_images.errors import ConfigError

Write = Callable[..., Path]


def complaint(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    text = str(caught.value)
    assert text.isprintable()
    return text


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # Texts.
        ("ports: [22, 8888]", f"ports: [{'9' * 900}]", "999...', which is not a port"),
        ("ports: [22, 8888]", f"ports: [{'9' * 5000}]", "is longer than 1000 characters; shorten it"),
        ("torch: [2.11.0", "torch: [2026-01-01", "must be text, not '2026-01-01'"),
        ("owner: torch-images", "owner: ' '", "'owner' must be text, but is blank; write a value"),
        ("  recsys:\n", f"  {'a' * 101}:\n", "a key is longer than 100 characters; shorten it"),
        # What YAML has beyond a tree of plain values.
        ("owner: torch", "owner: &a torch", "images.yaml:5:8: '&a' is not allowed; write the"),
        ("owner: ", "owner: !!python/object/apply:os.system ", "the tag 'tag:yaml.org,2002:python/"),
        ("owner: ", "<<: {a: b}\nowner: ", "the merge key '<<' is not allowed; write the"),
        ("owner: ", "? [a, b]\n: c\nowner: ", "5:3: a key of the file must be a value, not a list"),
        ("owner: ", "~: c\nowner: ", "5:1: a key of the file must be text"),
        ("owner: ", "owner: x\nowner: ", "'owner' is given twice; first at images.yaml:5:1"),
        ("owner: ", "owner: x\n---\nowner: ", "images.yaml:6:1: not valid YAML: but found another do"),
        ("owner: ", f"x: {'[' * 50_000}\nowner: ", ": more than 20 levels within each other"),
        ("owner: ", f"x: [{'a, ' * 101}]\nowner: ", ": more than 100 entries in one place"),
        ("owner: ", f"owner: {'x' * 99_000}", "larger than 100 kB"),
        ("owner: ", "owner: a\0b", ":5:9: not valid YAML: a character that YAML does not allow"),
        ("owner: torch-images", 'owner: "a\\u202eb"', "must be one line of printable text"),
        ("owner: torch-images", 'owner: "a\\nb"', "must be one line of printable text"),
    ],
)  # fmt: skip
def test_refused_in_one_line(yaml_file: Write, old: str, new: str, expected: str) -> None:
    text = complaint(yaml_file((old, new)))
    assert text.startswith("images.yaml:")
    assert expected in text


def test_a_folder_a_loop_and_a_pipe(tmp_path: Path) -> None:
    folder, loop, pipe = tmp_path / "folder.yaml", tmp_path / "loop.yaml", tmp_path / "pipe.yaml"
    folder.mkdir()
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    assert complaint(folder).startswith("folder.yaml: it is not a file; looked at ")
    assert "Too many levels of symbolic links" in complaint(loop)
    assert complaint(pipe).startswith("pipe.yaml: it is not a file; looked at ")


def test_the_line_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "images.yaml"
    path.write_bytes(b"registry: ghcr.io\nowner: \xff\n")
    text = "images.yaml:2:8: not valid YAML: not UTF-8 text; save it as UTF-8"
    assert complaint(path) == text
    path.write_text("registry: ghcr.io\n", encoding="utf-16")
    assert "not UTF-8 text" in complaint(path)


def test_depth_does_not_end_the_process(tmp_path: Path) -> None:
    """The parser in C calls itself for each level: what got through to it ended Python itself."""
    path = tmp_path / "images.yaml"
    path.write_text("[" * 90_000)
    code = "import sys, pathlib, torch_images.config.load as y; y.load_config(pathlib.Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "more than 20 levels within each other; write the value out"
    )


@pytest.mark.parametrize(
    ("section", "name", "problem"),
    [
        ("bases", "wheel", "has the name of a source; rename one of them"),
        ("variants", "fork", "has the name of a source"),
        ("variants", "bookworm", "has the name of a base"),
        ("bases", "latest", "has a name that tags use for something else; rename it"),
        ("variants", "arm64", "has a name that tags use for something else"),
        ("variants", "sm90", "has a name that tags use for something else"),
        ("bases", "torch2.14.1", "has a name that tags use for something else"),
        ("bases", "bookworm-x", "is not a name; use lower-case letters"),
        ("variants", "x-q", "is not a name"),
        ("sources", "fork-slim", "is not a name"),
    ],
)
def test_names_that_an_identifier_could_not_tell_apart(
    yaml_file: Write, section: str, name: str, problem: str
) -> None:
    more = {
        "bases": ["system: debian sid", "suite: sid", "python: '3.13'", "packages: [python3]"],
        "sources": [],
        "variants": [],
    }
    lines = ["description: another", *more[section]]
    entry = f"  {name}:\n" + "".join(f"    {line}\n" for line in lines)
    text = complaint(yaml_file((f"{section}:\n  ", f"{section}:\n{entry}  ")))
    assert re.match(r"images.yaml:[0-9]+:3: ", text)
    assert f"'{section}.{name}' {problem}" in text
