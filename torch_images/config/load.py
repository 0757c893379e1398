"""images.yaml -> Config. An error is one line: file, line, column, path, value, and what to do."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from torch_images.config.document import Document, parse, read
from torch_images.config.rules import problems
from torch_images.config.types import Config
from torch_images.errors import ConfigError
from torch_images.platforms import AMD64

# Messages for pydantic's own errors.
_WORDS = {
    "string_type": ("must be a value, not {kind}", ""),
    "tuple_type": ("must be a list, not {kind}", ""),
    "dict_type": ("must be a mapping, not {kind}", ""),
    "dataclass_type": ("must be a mapping, not {kind}", ""),
    "too_short": ("is empty", "give one entry or more, or leave the key out"),
}

_adapters: dict[Any, TypeAdapter[Any]] = {}  # cached: making one takes longer than reading a file

T = TypeVar("T")


def load_config(path: Path) -> Config:
    """The content of images.yaml. Raises ConfigError for the first problem in it."""
    document = parse(read(path), path.name)
    config = validated(document, Config)
    for problem in problems(config):
        raise document.error(problem.path, problem.text, problem.hint, quote=problem.quote)
    rows = enumerate(config.catalogue)
    placed = (replace(row, where=document.where(("catalogue", place))) for place, row in rows)
    return replace(config, catalogue=tuple(placed))


def validated(document: Document, kind: type[T]) -> T:
    """The data of a file as type `kind`. Raises ConfigError for invalid data."""
    # `listed` stores entries here for `known`. A file without platforms has linux/amd64.
    context = defaultdict(dict, {"platform": {AMD64.name: AMD64}})
    adapter = _adapters.get(kind) or _adapters.setdefault(kind, TypeAdapter(kind))
    try:
        result: T = adapter.validate_python(document.data, context=context)
    except ValidationError as error:
        # Later errors may follow from the first.
        raise _error(document, error.errors(include_url=False)[0]) from None
    return result


def _error(document: Document, details: ErrorDetails) -> ConfigError:
    wrong = details.get("ctx", {}).get("error")
    if details["type"] == "value_error" and wrong:
        path = (*details["loc"], *wrong.at)
        return document.error(path, wrong.problem, wrong.hint, quote=wrong.quote)
    problem, hint = _WORDS.get(details["type"], (details["msg"], ""))
    return document.error(details["loc"], problem, hint, quote=False)
