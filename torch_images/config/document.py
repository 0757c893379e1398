"""A YAML file as plain data, and the line and column of each place in it.

Values stay as they are written: `12.8` and `"12.8"` are both the text 12.8, so that no version
becomes a float.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from torch_images.errors import ConfigError

# The parser in C, if PyYAML was built with it, takes a tenth of the time.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_KEYS = ("[key]", "")  # last steps that mean the key instead of its value

Path_ = Sequence[str | int]


class Document:
    """The data of a file: mappings, lists and texts.

    Raises ConfigError for a file that is not UTF-8 or not YAML, and for a key that is given twice.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.name
        try:
            node = yaml.compose(path.read_text(encoding="utf-8"), Loader=_LOADER)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path.name} is not valid YAML: {error}") from None
        if node is None:
            raise ConfigError(f"{path.name} is empty")
        self._node = node
        self.data = self._plain(node, ())

    def _plain(self, node: yaml.Node, path: Path_) -> Any:
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item, (*path, place)) for place, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return node.value
        values: dict[str, Any] = {}
        for key, value in node.value:
            if key.value in values:
                raise self.error((*path, key.value, ""), "is given twice")
            values[key.value] = self._plain(value, (*path, key.value))
        return values

    def error(self, path: Path_, problem: str, hint: str = "") -> ConfigError:
        """An error at a place, such as ("cuda", "13.0", "driver"), for the caller to raise.

        The message is the name of the place, its value if it is a text, and `problem`. A number may
        name a key by its position in the mapping. Steps that lead nowhere are ignored.
        """
        node = at = self._node
        name = ""
        for step in path:
            key, inner = _inner(node, step)
            if inner:
                node, at = inner, key or inner
                name += f".{key.value}" if key else f"[{step}]"
        name = f"'{name.removeprefix('.')}'" if name else "the file"
        if isinstance(node, yaml.ScalarNode) and path and path[-1] not in _KEYS:
            at, problem = node, f"is '{node.value}', which {problem}"
        mark = at.start_mark
        return ConfigError(
            f"{self._file}:{mark.line + 1}:{mark.column + 1}: {name} {problem}", hint
        )


def _inner(node: yaml.Node, step: str | int) -> tuple[yaml.Node | None, yaml.Node | None]:
    """The key (None in a list) and the value that a step leads to; both None if there is none."""
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        return None, node.value[step]
    for place, (key, value) in enumerate(node.value if isinstance(node, yaml.MappingNode) else ()):
        if step in (place, key.value):
            return key, value
    return None, None
