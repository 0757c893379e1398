"""images.yaml -> Config. An error is one line: file, line, column, path, value, and what to do."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from torch_images.config.document import Document
from torch_images.config.rules import problems
from torch_images.config.schema import first
from torch_images.config.types import Config
from torch_images.platforms import AMD64


@cache
def _adapter() -> TypeAdapter[Config]:  # making one takes longer than reading a file
    return TypeAdapter(Config)


def load_config(path: Path) -> Config:
    """The content of images.yaml. Raises ConfigError for the first problem in it."""
    document = Document(path)
    # `listed` stores entries here for `known`. A file without platforms has linux/amd64.
    context = defaultdict(dict, {"platform": {AMD64.name: AMD64}})
    try:
        config: Config = _adapter().validate_python(document.data, context=context)
    except ValidationError as error:
        raise document.error(*first(error)) from None
    for problem in problems(config):
        raise document.error(*problem)
    return config
