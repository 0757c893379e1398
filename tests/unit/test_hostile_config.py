"""images.yaml as nobody should write it: every fault is one line that names the place."""

from __future__ import annotations

import re
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
    ("section", "name", "problem"),
    [
        ("bases", "wheel", "has the name of a source; rename one of them"),
        ("variants", "fork", "has the name of a source"),
        ("variants", "bookworm", "has the name of a base"),
        ("bases", "latest", "has a name that tags use for something else; rename it"),
        ("variants", "arm64", "has a name that tags use for something else"),
        ("variants", "sm90", "has a name that tags use for something else"),
        ("bases", "torch2.14.1", "has a name that tags use for something else"),
        ("bases", "bookworm-x", "is not a name"),
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
