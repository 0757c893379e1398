"""YAML with positions: read a file so that every complaint names its line.

Values are taken as they are written: `12.8` and `"12.8"` are both the text 12.8, so no version is
ever rounded to a float.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from torch_images.errors import ConfigError, suggest

# The parser in C, where PyYAML was built with it, takes a tenth of the time.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT_TAGS = {"tag:yaml.org,2002:str", "tag:yaml.org,2002:float", "tag:yaml.org,2002:int"}
_KIND = {yaml.MappingNode: "a mapping", yaml.SequenceNode: "a list", yaml.ScalarNode: "a value"}


class Value:
    """One node of the file: `where` is "images.yaml:12", `path` is "cuda.13.0.driver"."""

    def __init__(self, node: yaml.Node, file: str, path: str) -> None:
        self._node = node
        self._file = file
        self.path = path

    @property
    def where(self) -> str:
        """File and 1-based line."""
        return f"{self._file}:{self._node.start_mark.line + 1}"

    def error(self, message: str, hint: str = "") -> ConfigError:
        """An error about this value, for the caller to raise."""
        return ConfigError(f"{self.where}: {message}", hint)

    def _expect(self, kind: type[yaml.Node]) -> None:
        if not isinstance(self._node, kind):
            raise self.error(f"'{self.path}' must be {_KIND[kind]}, not {_KIND[type(self._node)]}")

    def text(self) -> str:
        """A scalar on one line, as written. Booleans, nulls and control characters are refused."""
        self._expect(yaml.ScalarNode)
        value = self._node.value
        assert isinstance(value, str)
        if self._node.tag not in _TEXT_TAGS or not value:
            raise self.error(f"'{self.path}' must be text, not '{value}'", "put it in quotes")
        if not value.isprintable():
            raise self.error(f"'{self.path}' must be one line of printable text")
        return value

    def matching(self, pattern: re.Pattern[str], what: str) -> str:
        """A scalar that is `what`, such as "a URL"."""
        text = self.text()
        if not pattern.fullmatch(text):
            raise self.error(f"'{self.path}' is '{text}', which is not {what}")
        return text

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return isinstance(self._node, yaml.SequenceNode)

    def items(self) -> tuple[Value, ...]:
        """The members of a list."""
        self._expect(yaml.SequenceNode)
        nodes: list[yaml.Node] = self._node.value
        return tuple(Value(node, self._file, f"{self.path}[{i}]") for i, node in enumerate(nodes))

    def texts(self) -> tuple[str, ...]:
        """A list of scalars, none of them twice."""
        seen: list[str] = []
        for item in self.items():
            if item.text() in seen:
                raise item.error(f"'{item.text()}' is listed twice in '{self.path}'")
            seen.append(item.text())
        return tuple(seen)

    def entries(self) -> tuple[tuple[str, Value], ...]:
        """The members of a mapping whose keys are free, in the order of the file."""
        self._expect(yaml.MappingNode)
        pairs: list[tuple[yaml.Node, yaml.Node]] = self._node.value
        found: dict[str, Value] = {}
        for key_node, node in pairs:
            key = Value(key_node, self._file, f"{self.path} key").text()
            value = Value(node, self._file, f"{self.path}.{key}" if self.path else key)
            if key in found:
                at = Value(key_node, self._file, key)
                raise at.error(f"'{value.path}' is given twice", f"first at {found[key].where}")
            found[key] = value
        return tuple(found.items())

    def record(self, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> Record:
        """The members of a mapping whose keys are fixed."""
        return Record(self, required, optional)


class Record:
    """A mapping with fixed keys: all `required` ones are there, and none that is unknown."""

    def __init__(self, value: Value, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
        self._members = dict(value.entries())
        name = f"'{value.path}'" if value.path else "the file"
        for key, member in self._members.items():
            if key not in required + optional:
                raise member.error(
                    f"unknown key '{member.path}'", suggest(key, required + optional)
                )
        for key in required:
            if key not in self._members:
                raise value.error(f"{name} lacks the key '{key}'")

    def __getitem__(self, key: str) -> Value:
        return self._members[key]

    def __contains__(self, key: str) -> bool:
        return key in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def text(self, key: str, default: str = "") -> str:
        """The text under `key`, or `default` where the key is absent."""
        return self._members[key].text() if key in self._members else default

    def texts(self, key: str) -> tuple[str, ...]:
        """The list of texts under `key`, empty where the key is absent."""
        return self._members[key].texts() if key in self._members else ()


def load(path: Path) -> Value:
    """The root of a YAML file. Raises ConfigError for a file that is missing or not YAML."""
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except OSError as error:
        raise ConfigError(f"{path.name}: {error.strerror}", f"looked for {path}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not UTF-8 text"
        raise ConfigError(f"{path.name}{line}: not valid YAML: {problem}") from None
    if node is None:
        raise ConfigError(f"{path.name}: the file is empty")
    return Value(node, path.name, "")
