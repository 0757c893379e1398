"""The README says what the project does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from invoke.parser import Parser

import tasks
from torch_images.config import Config
from torch_images.matrix import matrix

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_table_of_images_is_the_matrix(config: Config) -> None:
    wanted = [
        f"| {spec.cuda.version} | {spec.torch} | {spec.base.python} | "
        f"{' '.join(a.name for a in spec.architectures)} |"
        for spec in matrix(config)
        if spec.every_arch and spec.base.name == config.defaults.base
    ]
    rows = [row for row in README.read_text().splitlines() if re.match(r"\| 1[0-9]\.", row)]
    assert rows == wanted


COMMANDS = re.findall(r"^\./inv (.*)$", README.read_text(), re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_exists(line: str) -> None:
    words = shlex.split(line)
    parsed = Parser(contexts=tasks.namespace.to_contexts()).parse_argv(words)
    assert parsed[0].name == words[0]
