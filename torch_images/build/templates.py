"""The templates of Dockerfiles, into which only safe text can be filled.

A value from images.yaml cannot break out of its place: text that is not plain must pass a quoting
filter, or rendering fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from torch_images.errors import ConfigError

_PLAIN = re.compile(r"[A-Za-z0-9._/:@+=,-]+(?: [A-Za-z0-9._/:@+=,-]+)*| \\\n +|")


def quoted(value: str) -> str:
    """A Dockerfile word that means exactly `value`, in double quotes and without expansion."""
    _check(value)
    return _Safe('"' + re.sub(r'([\\"$])', r"\\\1", value) + '"')


def comment(value: str) -> str:
    """Text for a comment line, without a backslash at its end, which would continue the line."""
    _check(value)
    return _Safe(value.rstrip("\\ "))


def _check(value: str) -> None:
    if not value.isprintable():
        raise ConfigError(f"{value!r} is not valid in a Dockerfile", "use one line of plain text")


def exec_form(words: Sequence[str]) -> str:
    """Words as the JSON list that ENTRYPOINT and CMD take, which no shell expands."""
    return _Safe(json.dumps(list(words)))


class _Safe(str):
    """Text that a filter has made safe for its place."""

    __slots__ = ()


def _finalize(value: Any) -> Any:
    """Reject text in a template that is neither plain nor made safe by a filter."""
    if not isinstance(value, _Safe) and not _PLAIN.fullmatch(str(value)):
        raise ConfigError(
            f"{str(value)!r} is not valid unquoted in a Dockerfile",
            "use letters, digits and . _ / : @ + = , - only",
        )
    return value


@cache
def templates(folder: Path) -> jinja2.Environment:
    """The templates of a folder, which accept only safe text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  a Dockerfile is not HTML; `finalize` guards it
    )
    environment.filters |= {"comment": comment, "exec_form": exec_form, "quoted": quoted}
    return environment
