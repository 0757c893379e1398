"""YAML with positions, so that each error names the line of the file.

Values are taken as they are written: `12.8` and `"12.8"` are both the text 12.8, so that no version
becomes a float. Aliases, tags and merge keys are refused, so that a line means what it shows. A
file that is larger, or nested deeper, than a person would write is refused, too.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path

import yaml

from torch_images.errors import ConfigError, suggest

# The parser in C, where PyYAML was built with it, takes a tenth of the time.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT_TAGS = {"tag:yaml.org,2002:str", "tag:yaml.org,2002:float", "tag:yaml.org,2002:int"}
_KIND = {yaml.MappingNode: "a mapping", yaml.SequenceNode: "a list", yaml.ScalarNode: "a value"}
# Far beyond what images.yaml needs, and small enough to be read in a moment. The parser in C calls
# itself for each level, and ends the process where there are too many.
_MOST_BYTES, _MOST_LEVELS, _MOST_MEMBERS, _MOST_LETTERS = 100_000, 20, 100, 1000
_SHOWN = 100  # letters of a value that an error repeats


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
        if len(value) > _MOST_LETTERS:
            raise self.error(f"'{self.path}' is longer than {_MOST_LETTERS} letters", "shorten it")
        if not value.isprintable():
            raise self.error(f"'{self.path}' must be one line of printable text")
        if not value.strip():
            raise self.error(f"'{self.path}' must be text, it is blank", "write a value")
        if self._node.tag == "tag:yaml.org,2002:merge":
            raise self.error("the merge key '<<' is not understood here", "write the members out")
        if self._node.tag not in _TEXT_TAGS:
            raise self.error(f"'{self.path}' must be text, not '{value}'", "put it in quotes")
        return value

    def matching(self, pattern: re.Pattern[str], what: str) -> str:
        """The text of a scalar. Raises ConfigError unless it matches: "is not `what`"."""
        text = self.text()
        if not pattern.fullmatch(text):
            raise self.wrong(f"is not {what}")
        return text

    def number(self, what: str, least: int, most: int) -> int:
        """A whole number from `least` to `most`; `what` names it in an error, such as "a port"."""
        digits = self.matching(re.compile(r"0|[1-9][0-9]{0,8}"), what)
        if not least <= int(digits) <= most:
            raise self.wrong(f"is not {what}", f"give one from {least} to {most}")
        return int(digits)

    def wrong(self, problem: str, hint: str = "") -> ConfigError:
        """An error that repeats this scalar: `problem` goes on after "which"."""
        text = self.text()
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        return self.error(f"'{self.path}' is '{shown}', which {problem}", hint)

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return isinstance(self._node, yaml.SequenceNode)

    @property
    def is_mapping(self) -> bool:
        """Whether it is a mapping."""
        return isinstance(self._node, yaml.MappingNode)

    def items(self) -> tuple[Value, ...]:
        """The members of a list."""
        self._expect(yaml.SequenceNode)
        nodes: list[yaml.Node] = self._node.value
        return tuple(Value(node, self._file, f"{self.path}[{i}]") for i, node in enumerate(nodes))

    def scalars(self) -> tuple[Value, ...]:
        """The members of a list of scalars. Raises ConfigError for one that is listed twice."""
        seen: set[str] = set()
        for item in self.items():
            if item.text() in seen:
                raise item.error(f"'{item.text()}' is listed twice in '{self.path}'")
            seen.add(item.text())
        return self.items()

    def texts(self) -> tuple[str, ...]:
        """The texts of a list of scalars. Raises ConfigError for one that is listed twice."""
        return tuple(item.text() for item in self.scalars())

    def filled(self) -> Value:
        """The same list or mapping. Raises ConfigError for one that is empty."""
        if not isinstance(self._node, yaml.ScalarNode) and not self._node.value:
            hint = "give one entry or more" + (", or leave the key out" if self.path else "")
            raise self.error(f"'{self.path}' is empty", hint)
        return self

    def entries(self) -> tuple[tuple[str, Value], ...]:
        """The members of a mapping whose keys are free, in the order of the file."""
        self._expect(yaml.MappingNode)
        pairs: list[tuple[yaml.Node, yaml.Node]] = self._node.value
        members: dict[str, Value] = {}
        for key_node, node in pairs:
            key = Value(key_node, self._file, f"a key of {self.path or 'the file'}").text()
            if len(key) > _SHOWN:
                at = Value(key_node, self._file, "")
                raise at.error(f"a key is longer than {_SHOWN} letters", "shorten it")
            value = Value(node, self._file, f"{self.path}.{key}" if self.path else key)
            if key in members:
                at = Value(key_node, self._file, key)
                raise at.error(f"'{value.path}' is given twice", f"first at {members[key].where}")
            members[key] = value
        return tuple(members.items())

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
    """The root of a YAML file. Raises ConfigError as `read` and `parse` do."""
    return parse(read(path), path.name)


def parse(text: str, name: str) -> Value:
    """The root of the YAML in a text; `name` is the file's.

    Raises ConfigError for what is not YAML, or more than a plain list of facts.
    """
    try:
        _check(text, name)
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        position = getattr(error, "position", None)  # of a character that YAML does not allow
        number = mark and mark.line
        if position is not None:
            number = text.encode().count(b"\n", 0, position)
        line = "" if number is None else f":{number + 1}"
        problem = getattr(error, "problem", None) or "a character that YAML does not allow"
        raise ConfigError(f"{name}{line}: not valid YAML: {problem}") from None
    if node is None:
        raise ConfigError(f"{name}: the file is empty")
    return Value(node, name, "")


def read(path: Path) -> str:
    """The text of a file. Raises ConfigError for one that is missing, no file, or too large."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would never end
            raise ConfigError(f"{path.name}: it is not a file", f"looked at {path}")
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path.name}: {error.strerror}", f"looked for {path}") from None
    if len(data) > _MOST_BYTES:
        problem = f"it is larger than {_MOST_BYTES // 1000} kB"
        raise ConfigError(f"{path.name}: {problem}", "keep what is not about images elsewhere")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = "not valid YAML: not UTF-8 text"
        raise ConfigError(f"{path.name}:{line}: {problem}", "save it as UTF-8") from None


def _check(text: str, name: str) -> None:
    """Raise ConfigError for what cannot be read as a tree of plain values.

    Goes through the file without descending into it, and so ends for any depth.
    """
    left: list[int] = []  # how many members each open list and mapping may still get
    for event in yaml.parse(text, Loader=_LOADER):
        problem = _strange(event) or _excess(event, left)
        if problem:
            mark = event.start_mark
            line = f":{mark.line + 1}" if mark else ""
            raise ConfigError(f"{name}{line}: {problem}", "write out what is meant")


def _strange(event: yaml.Event) -> str:
    """The error for an alias, an anchor or a tag; "" for a node that is plain text."""
    anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
    if anchor is not None:
        mark = "*" if isinstance(event, yaml.AliasEvent) else "&"
        return f"'{mark}{anchor[:_SHOWN]}' is not understood here"
    return "" if tag is None else f"the tag '{tag[:_SHOWN]}' is not understood here"


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
