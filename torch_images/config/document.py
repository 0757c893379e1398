"""A YAML file as plain data, and the line and column of each place in it.

Values stay as they are written: `12.8` and `"12.8"` are both the text 12.8, so that no version
becomes a float. Aliases, tags and merge keys are refused, so that a line means what it shows. Files
that are larger, or nested deeper, than people write are refused too.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from torch_images.errors import ConfigError

# The parser in C, if PyYAML was built with it, takes a tenth of the time.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT_TAGS = {"tag:yaml.org,2002:str", "tag:yaml.org,2002:float", "tag:yaml.org,2002:int"}
_KIND = {yaml.MappingNode: "a mapping", yaml.SequenceNode: "a list", yaml.ScalarNode: "a value"}
# Far beyond the needs of images.yaml, and small enough to be read quickly. The parser in C calls
# itself for each level, and crashes the process if there are too many.
_MOST_BYTES, _MOST_LEVELS, _MOST_MEMBERS, _MOST_LETTERS = 100_000, 20, 100, 1000
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
        if len(value) > _MOST_LETTERS:
            raise self._wrong(
                node, f"{name} is longer than {_MOST_LETTERS} characters", "shorten it"
            )
        if not value.isprintable():
            raise self._wrong(node, f"{name} must be one line of printable text")
        if not value.strip():
            raise self._wrong(node, f"{name} must be text, but is blank", "write a value")
        if node.tag == "tag:yaml.org,2002:merge":
            raise self._wrong(node, "the merge key '<<' is not allowed", "write the members out")
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
            if len(key) > _SHOWN:
                raise self._wrong(at, f"a key is longer than {_SHOWN} characters", "shorten it")
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

    Raises ConfigError for invalid YAML, and for anything but a plain tree of texts.
    """
    try:
        _check(text, name)
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        position = getattr(error, "position", None)  # of a character that YAML does not allow
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        if position is not None:
            where = _after(text.encode()[:position])
        problem = getattr(error, "problem", None) or "a character that YAML does not allow"
        raise ConfigError(f"{name}{where}: not valid YAML: {problem}") from None
    if node is None:
        raise ConfigError(f"{name}: the file is empty")
    return Document(node, name)


def read(path: Path) -> str:
    """The text of a file. Raises ConfigError if it is missing, not a regular file, or too large."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would never end
            raise ConfigError(f"{path.name}: it is not a file", f"looked at {path}")
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path.name}: {error.strerror}", f"looked for {path}") from None
    if len(data) > _MOST_BYTES:
        problem = f"it is larger than {_MOST_BYTES // 1000} kB"
        raise ConfigError(f"{path.name}: {problem}", "keep other data elsewhere")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        where = _after(data[: error.start])
        problem = "not valid YAML: not UTF-8 text"
        raise ConfigError(f"{path.name}{where}: {problem}", "save it as UTF-8") from None


def _after(data: bytes) -> str:
    """The line and column after some bytes of a file."""
    before, _, line = data.rpartition(b"\n")
    number = before.count(b"\n") + (2 if len(line) < len(data) else 1)
    return f":{number}:{len(line.decode('utf-8', 'replace')) + 1}"


def _check(text: str, name: str) -> None:
    """Raise ConfigError for anything but a tree of plain values.

    Reads the file as a stream of events, and so works for any depth.
    """
    left: list[int] = []  # how many members each open list and mapping may still get
    for event in yaml.parse(text, Loader=_LOADER):
        problem = _strange(event) or _excess(event, left)
        if problem:
            mark = event.start_mark
            where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
            raise ConfigError(f"{name}{where}: {problem}", "write the value out")


def _strange(event: yaml.Event) -> str:
    """The error for an alias, an anchor or a tag; "" for a node that is plain text."""
    anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
    if anchor is not None:
        mark = "*" if isinstance(event, yaml.AliasEvent) else "&"
        return f"'{mark}{anchor[:_SHOWN]}' is not allowed"
    return "" if tag is None else f"the tag '{tag[:_SHOWN]}' is not allowed"


def _excess(event: yaml.Event, left: list[int]) -> str:
    """The error for too many members or levels, up to this event; "" for none.

    `left` counts how many members each open list and mapping may still get; it is changed.
    """
    if isinstance(event, yaml.CollectionEndEvent):
        left.pop()
    elif isinstance(event, yaml.NodeEvent):
        if left:
            left[-1] -= 1
            if left[-1] < 0:
                return f"more than {_MOST_MEMBERS} entries in one place"
        if isinstance(event, yaml.CollectionStartEvent):
            keys_count_too = 2 if isinstance(event, yaml.MappingStartEvent) else 1
            left.append(_MOST_MEMBERS * keys_count_too)
        if len(left) > _MOST_LEVELS:
            return f"more than {_MOST_LEVELS} levels within each other"
    return ""
