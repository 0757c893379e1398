"""images.yaml -> Config. An error is one line: file, line, column, path, value, and what to do."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from torch_images.config.document import Document
from torch_images.config.rules import problems
from torch_images.config.types import Config
from torch_images.errors import ConfigError
from torch_images.platforms import AMD64

# Messages for pydantic's own errors.
_WORDS = {
    "string_type": "must be a text",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "dataclass_type": "must be a mapping",
    "too_short": "is empty; give one entry or more, or leave the key out",
}


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
        # Later errors may follow from the first.
        raise _error(document, error.errors(include_url=False)[0]) from None
    for problem in problems(config):
        raise document.error(problem.path, problem.text, problem.hint)
    return config


def _error(document: Document, details: ErrorDetails) -> ConfigError:
    wrong = details.get("ctx", {}).get("error")
    if details["type"] == "value_error" and wrong:
        return document.error((*details["loc"], *wrong.at), wrong.problem, wrong.hint)
    problem = _WORDS.get(details["type"], f"is refused: {details['msg']}")
    return document.error(details["loc"], problem)
