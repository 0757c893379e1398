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
_TEXT_TAGS = {"tag:yaml.org,2002:str", "tag:yaml.org,2002:float", "tag:yaml.org,2002:int"}
_KIND = {yaml.MappingNode: "a mapping", yaml.SequenceNode: "a list", yaml.ScalarNode: "a value"}
_SHOWN = 100  # characters of a value that an error repeats
_KEYS = ("[key]", "")  # last steps that mean the key instead of its value
_FOUND = "{kind}"

Path_ = Sequence[str | int]


class Document:
    """The data of a file: mappings, lists and texts. Raises ConfigError for other data."""

    def __init__(self, node: yaml.Node, file: str) -> None:
        self._node = node
        self._file = file
        self.data = self._plain(node, "")

    def _at(self, node: yaml.Node) -> str:
        return f"{self._file}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def _wrong(self, node: yaml.Node, problem: str, hint: str = "") -> ConfigError:
        return ConfigError(f"{self._at(node)}: {problem}", hint)

    def _plain(self, node: yaml.Node, path: str) -> Any:
        if isinstance(node, yaml.SequenceNode):
            return self._list(node, path)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        return self._text(node, f"'{path}'")

    def _text(self, node: yaml.Node, name: str) -> str:
        """A scalar on one line. Booleans, nulls and control characters are refused."""
        if not isinstance(node, yaml.ScalarNode):
            raise self._wrong(node, f"{name} must be a value, not {_KIND[type(node)]}")
        value = str(node.value)
        if not value.isprintable():
            raise self._wrong(node, f"{name} must be one line of printable text")
        if node.tag not in _TEXT_TAGS:
            raise self._wrong(node, f"{name} must be text, not '{value}'", "put it in quotes")
        return value

    def _list(self, node: yaml.SequenceNode, path: str) -> list[Any]:
        values: list[Any] = []
        for item in node.value:
            value = self._plain(item, f"{path}[{len(values)}]")
            if isinstance(value, str) and value in values:
                raise self._wrong(item, f"'{value}' is listed twice in '{path}'", "leave one")
            values.append(value)
        return values

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Any]:
        first: dict[str, yaml.Node] = {}
        values: dict[str, Any] = {}
        for at, item in node.value:
            key = self._text(at, f"a key of {path or 'the file'}")
            name = f"{path}.{key}" if path else key
            if key in first:
                hint = f"first at {self._at(first[key])}"
                raise self._wrong(at, f"'{name}' is given twice", hint)
            first[key] = at
            values[key] = self._plain(item, name)
        return values

    def where(self, path: Path_) -> str:
        """File, line and column of a place, joined by colons."""
        node = self._node
        for step in path:
            node = _inner(node, step)[1] or node
        return self._at(node)

    def error(
        self, path: Path_, problem: str, hint: str = "", *, quote: bool = True
    ) -> ConfigError:
        """An error at a place, such as ("cuda", "13.0", "driver"), for the caller to raise.

        The message is the name of the place followed by `problem`, in which "{kind}" becomes the
        kind of its node. It repeats the value of a scalar, unless `quote` is false. A number may
        name a key by its position in the mapping. Steps that lead nowhere are ignored.
        """
        node, at, name = self._node, self._node, ""
        for step in path:
            key, inner = _inner(node, step)
            if inner:
                node, at = inner, key or inner
                name += f".{key.value}" if key else f"[{step}]"
        name = f"'{name.removeprefix('.')}'" if name else "the file"
        if quote and isinstance(node, yaml.ScalarNode) and path[-1] not in _KEYS:
            shown = node.value[:_SHOWN] + ("..." if len(node.value) > _SHOWN else "")
            return self._wrong(node, f"{name} is '{shown}', which {problem}", hint)
        return self._wrong(at, f"{name} {problem.replace(_FOUND, _KIND[type(node)])}", hint)


def _inner(
    node: yaml.Node, step: str | int
) -> tuple[yaml.Node | None, yaml.Node] | tuple[None, None]:
    """The key (None in a list) and the value that a step leads to; both None if there is none."""
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        return None, node.value[step]
    for place, (key, value) in enumerate(node.value if isinstance(node, yaml.MappingNode) else ()):
        if step in (place, key.value):
            return key, value
    return None, None


def parse(text: str, name: str) -> Document:
    """The YAML in a text; `name` is the file's.

    Raises ConfigError for invalid YAML, and for anything but a tree of texts.
    """
    try:
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "a character that YAML does not allow"
        raise ConfigError(f"{name}{where}: not valid YAML: {problem}") from None
    if node is None:
        raise ConfigError(f"{name}: the file is empty")
    return Document(node, name)


def read(path: Path) -> str:
    """The text of a file. Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path.name}: {error.strerror}", f"looked for {path}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path.name}: not UTF-8 text", "save it as UTF-8") from None
