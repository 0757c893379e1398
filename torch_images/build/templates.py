"""The templates of Dockerfiles, with filters for text that may be more than a word."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jinja2

from torch_images.errors import ConfigError


def quoted(value: str) -> str:
    """A Dockerfile word that means exactly `value`, in double quotes and without expansion."""
    _check(value)
    return '"' + re.sub(r'([\\"$])', r"\\\1", value) + '"'


def comment(value: str) -> str:
    """Text for a comment line, without a backslash at its end, which would continue the line."""
    _check(value)
    return value.rstrip("\\ ")


def _check(value: str) -> None:
    if not value.isprintable():
        raise ConfigError(f"{value!r} is not valid in a Dockerfile", "use one line of plain text")


def exec_form(words: Sequence[str]) -> str:
    """Words as the JSON list that ENTRYPOINT and CMD take, which no shell expands."""
    return json.dumps(list(words))


@cache
def templates(folder: Path) -> jinja2.Environment:
    """The templates of a folder."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  a Dockerfile is not HTML
    )
    environment.filters |= {"comment": comment, "exec_form": exec_form, "quoted": quoted}
    return environment
