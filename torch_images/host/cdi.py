"""Container Device Interface: the names of devices, and the spec files that define them. Pure.

https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md says what a spec file is.
What an engine makes of one was tried with Docker 26.1.5: it leaves a file out as a whole where
anything in it is wrong, and a device that two files of one folder define.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import yaml

from torch_images.errors import shown

KIND = "nvidia.com/gpu"  # what `nvidia-ctk cdi generate` calls NVIDIA's GPUs
# Far more than the GPUs of a machine take. The parser in C calls itself for each level, and ends
# the process where there are too many.
MOST_BYTES = 1_000_000
_MOST_LEVELS, _MOST_EVENTS = 30, 200_000
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # reads each value as it is written
# A vendor or a class of one letter is allowed by the page above; it ends Docker 26.1.5 ("panic:
# slice bounds out of range"), so none is taken here.
_PART = r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]"
_DEVICE = r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?"
_KIND, _NAME = re.compile(rf"{_PART}/{_PART}"), re.compile(_DEVICE)
_QUALIFIED = re.compile(rf"{_PART}/{_PART}={_DEVICE}")
_VERSION = re.compile(r"v?[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}")


@dataclass(frozen=True, kw_only=True)
class SpecFile:
    """What one spec file defines: `devices` by qualified name, such as "nvidia.com/gpu=0".

    With a `problem`, a part of a sentence, it defines none. `readable` is False where that is only
    because this user may not read it.
    """

    path: str
    devices: tuple[str, ...] = ()
    problem: str = ""
    readable: bool = True


def is_qualified(name: str) -> bool:
    """Whether a word is the whole name of a device, such as "nvidia.com/gpu=all"."""
    return bool(_QUALIFIED.fullmatch(name))


def parse_spec(path: str, data: bytes) -> SpecFile:
    """What a spec file, JSON or YAML, defines. Whatever else it is, is the `problem`."""
    try:
        return SpecFile(path=path, devices=_devices(data))
    except _ProblemError as error:
        return SpecFile(path=path, problem=str(error))


def resolve(folders: Iterable[Sequence[SpecFile]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The devices of all spec files, and those that are defined twice and so cannot be used.

    Each member of `folders` has the files of one folder. A later folder may define a device anew.
    """
    names: dict[str, None] = {}
    twice: dict[str, None] = {}
    for files in folders:
        count = Counter(name for file in files for name in file.devices)
        names |= dict.fromkeys(count)
        twice |= dict.fromkeys(name for name, times in count.items() if times > 1)
    return tuple(name for name in names if name not in twice), tuple(twice)


class _ProblemError(Exception):
    """Why a file is no spec."""


def _devices(data: bytes) -> tuple[str, ...]:
    """The qualified names that a spec file defines. Raises _ProblemError."""
    if len(data) > MOST_BYTES:
        raise _ProblemError(f"it is larger than {MOST_BYTES // 1000} kB")
    try:
        text = data.decode("utf-8")
        _check_size(text)
        # The first document of several, as the engine does.
        node = next(iter(yaml.compose_all(text, Loader=_LOADER)), None)
    except UnicodeDecodeError:
        raise _ProblemError("it is not UTF-8 text") from None
    # Python's own parser, where PyYAML was built without the one in C, lets more through.
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise _ProblemError(f"it is neither JSON nor YAML{line}") from None
    if not isinstance(node, yaml.MappingNode):
        raise _ProblemError("it is not a mapping")
    _check_keys(node)
    spec = _members(node)
    if not _VERSION.fullmatch(_text(spec, "cdiVersion")):
        raise _ProblemError("its cdiVersion is not one such as 0.6.0")
    kind = _text(spec, "kind")
    if not _KIND.fullmatch(kind):
        raise _ProblemError(f"its kind '{shown(kind)}' is not one such as {KIND}")
    listed = spec.get("devices")
    if not isinstance(listed, yaml.SequenceNode):
        raise _ProblemError("its devices are not a list")
    names = [_device(device) for device in listed.value]
    if len(set(names)) < len(names):
        name = next(name for name, times in Counter(names).items() if times > 1)
        raise _ProblemError(f"it defines the device '{shown(name)}' twice")
    return tuple(f"{kind}={name}" for name in names)


def _device(node: yaml.Node) -> str:
    """The name of a member of `devices`. Raises _ProblemError."""
    if not isinstance(node, yaml.MappingNode):
        raise _ProblemError("one of its devices is not a mapping")
    members = _members(node)
    name = _text(members, "name")
    if not _NAME.fullmatch(name):
        raise _ProblemError(f"'{shown(name)}' is not the name of a device")
    edits = members.get("containerEdits")
    if not isinstance(edits, yaml.MappingNode) or not edits.value:
        raise _ProblemError(f"its device '{shown(name)}' has no containerEdits")
    return name


def _members(node: yaml.MappingNode) -> dict[str, yaml.Node]:
    """The members of a mapping by key."""
    return {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def _text(members: dict[str, yaml.Node], key: str) -> str:
    """The text that a mapping has under a key; "" for none."""
    node = members.get(key)
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _check_size(text: str) -> None:
    """Raise _ProblemError for more levels or values than any spec has.

    It goes through the file without descending into it, and so ends for any depth.
    """
    levels = 0
    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        if isinstance(event, yaml.DocumentEndEvent):
            return
        levels += isinstance(event, yaml.CollectionStartEvent)
        levels -= isinstance(event, yaml.CollectionEndEvent)
        if levels > _MOST_LEVELS or count > _MOST_EVENTS:
            raise _ProblemError("it is nested too deeply, or too long")


def _check_keys(root: yaml.Node) -> None:
    """Raise _ProblemError where any mapping has a key twice: the engine refuses such a file.

    A node with several aliases is looked at once.
    """
    left, seen = [root], {id(root)}
    while left:
        node = left.pop()
        members: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if len(set(keys)) < len(keys):
                raise _ProblemError("a mapping in it has one key twice")
            members = [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            members = node.value
        for member in members:
            if id(member) not in seen:
                seen.add(id(member))
                left.append(member)
