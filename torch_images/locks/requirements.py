"""What a user's project requires: files in pip's format, and the project's own pyproject.toml.

pip's format: https://pip.pypa.io/en/stable/reference/requirements-file-format/
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from torch_images.config.own import SHARED, Own
from torch_images.errors import LockError, shown

UV_LOCK, PYLOCK = "uv.lock", "pylock.toml"
# Options of files in pip's format that change nothing here: only wheels are installed, by hash.
_HARMLESS = ("--only-binary", "--prefer-binary", "--require-hashes")
_INCLUDES = re.compile(r"(?:-r|--requirement|-c|--constraint)(?:\s+|=)?(\S+)")
_CONSTRAINT = ("-c", "--constraint")
_HASH = re.compile(r"\s--hash[=\s](\S+)")
_THIS = re.compile(r"(?:-e|--editable)(?:\s+|=)\.|\.")  # the project itself
_PATH = re.compile(r"(?:-e|--editable)\b.*|(?:file:|\.{0,2}/|~/).*|[^\s@]+\.(?:whl|zip|tar\.gz)")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Requirements, without markers that do not hold.

    `where`: the file that they are in, for messages.
    `requirements`, `constraints`: those that must be installed, and limits of any others.
    `hashes`: the SHA-256 of the files that a requirement may have, by normalised name.
    `itself`: whether the project's own package is to be installed.
    """

    where: str
    requirements: tuple[Requirement, ...] = ()
    constraints: tuple[Requirement, ...] = ()
    hashes: Mapping[str, frozenset[str]]
    itself: bool = False


def request(own: Own) -> dict[str, str]:
    """SHA-256 of everything that a lock of a project is resolved from, by name.

    Raises LockError for a file that is missing or invalid.
    """
    texts = {"packages": " ".join(sorted(own.packages))} if own.packages else {}
    if own.requirements:
        texts["extras and groups"] = json.dumps([own.extras, own.groups])
        if Path(own.requirements).name != SHARED:
            texts |= dict(_files(own.root, own.requirements))
    if by_project(own):
        project = read_toml(own.root, SHARED)
        texts[SHARED] = json.dumps([project.get("build-system"), *_dependencies(project)])
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def by_project(own: Own) -> bool:
    """Whether the requirements are those of a project with a pyproject.toml beside the table."""
    return Path(own.requirements).name in (SHARED, UV_LOCK)


def of_text(
    text: str, name: str, environment: Mapping[str, str], root: Path, *, where: str = ""
) -> Asked:
    """The requirements in a text in pip's format; files that it includes are below `root`.

    `name` is the text's own, for messages; `where` is that of the result, if it is another.
    `environment` has the values of markers. Raises LockError, with the line, for what cannot be
    locked.
    """
    asked: list[Requirement] = []
    limits: list[Requirement] = []
    itself = False
    hashes: dict[str, set[str]] = {}
    for file, number, line, limit in _lines(text, name, root):
        place = f"{file}:{number}"
        if _THIS.fullmatch(line):
            itself = True
            continue
        one = _requirement(_HASH.sub("", line), place)
        if one.marker and not one.marker.evaluate({**environment, "extra": ""}):
            continue
        one.marker = None
        (limits if limit else asked).append(one)
        for algorithm, _, digest in (h.partition(":") for h in _HASH.findall(line)):
            if algorithm == "sha256":
                hashes.setdefault(canonicalize_name(one.name), set()).add(digest)
    return Asked(
        where=where or name,
        requirements=tuple(asked),
        constraints=tuple(limits),
        hashes={name: frozenset(some) for name, some in hashes.items()},
        itself=itself,
    )


def of_project(own: Own, environment: Mapping[str, str]) -> Asked:
    """The requirements of the project itself, with the extras and groups that the table names."""
    project = read_toml(own.root, SHARED)
    required, optional, groups = _dependencies(project)
    if "dependencies" in _table(project, "project").get("dynamic", ()):
        raise LockError(
            f"the dependencies in {SHARED} are dynamic", "give a lock or a file in pip's format"
        )
    chosen = list(required)
    for kind, table, names in (("extra", optional, own.extras), ("group", groups, own.groups)):
        for name in names:
            if name not in table:
                raise LockError(f"{SHARED} has no {kind} '{shown(name)}'", f"correct {kind}s")
            chosen += table[name]
    if other := next((one for one in chosen if not isinstance(one, str)), None):
        raise LockError(f"{SHARED} has {shown(str(other))} in a group", "list its requirements")
    text = "\n".join(chosen)
    asked = of_text(text, SHARED, environment, own.root)
    sources = _table(project, "tool", "uv", "sources")
    named = {canonicalize_name(one.name) for one in asked.requirements}
    if other := next((name for name in sources if canonicalize_name(name) in named), None):
        raise LockError(
            f"{SHARED} has a source of its own for {shown(other)}, which has no hash",
            "give a release of the package index, or lock the project with uv",
        )
    return replace(asked, itself=is_package(project))


def is_package(project: Mapping[str, Any]) -> bool:
    """Whether a pyproject.toml is of a package, by uv's rule."""
    choice = _table(project, "tool", "uv").get("package")
    return "build-system" in project if choice is None else bool(choice)


def build_requirements(own: Own) -> tuple[str, ...]:
    """What the build of the project's own package requires (PEP 518)."""
    system = _table(read_toml(own.root, SHARED), "build-system")
    return tuple(system.get("requires", ("setuptools>=40.8.0",)))


def package_name(own: Own) -> str:
    """The normalised name of the project's own package."""
    name = _table(read_toml(own.root, SHARED), "project").get("name")
    if not isinstance(name, str):
        raise LockError(f"{SHARED} names no project", "add `name` to its table [project]")
    return canonicalize_name(name)


def _requirement(line: str, place: str) -> Requirement:
    if line.startswith("-") and not _PATH.fullmatch(line):
        option = line.split("=", maxsplit=1)[0].split(maxsplit=1)[0]
        hint = "leave it out; name an index that has all packages but torch in UV_DEFAULT_INDEX"
        raise LockError(f"{place}: {option} cannot be locked", hint)
    try:
        one = Requirement(line)
    except InvalidRequirement as error:
        if _PATH.fullmatch(line) or "://" in line:
            raise _refused(line, place) from None
        reason = str(error).splitlines()[0]
        raise LockError(
            f"{place}: '{shown(line)}' is not a requirement: {reason}", "correct the line"
        ) from None
    if one.url:
        raise _refused(line, place)
    return one


def _refused(line: str, place: str) -> LockError:
    return LockError(
        f"{place}: '{shown(line)}' has no hash that anyone could check",
        "give a release of the package index, put the table in a clone of it, or install it on the "
        "image: docs/own.md",
    )


def _lines(
    text: str, name: str, root: Path, including: tuple[str, ...] = (), *, limits: bool = False
) -> Iterator[tuple[str, int, str, bool]]:
    """Each line of a file and of those that it includes: file, number, text, whether it limits."""
    if name in including:
        raise LockError(f"{name} includes itself", "take the line out")
    for number, plain in _joined(text):
        if plain.split("=")[0].split()[0] in _HARMLESS:
            continue
        if other := _INCLUDES.fullmatch(plain):
            path = str(Path(name).parent / other[1])
            limiting = limits or plain.startswith(_CONSTRAINT)
            content = _text(root, path)
            yield from _lines(content, path, root, (*including, name), limits=limiting)
        else:
            yield name, number, plain, limits


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """The number and the text of each line, without comments; a backslash joins it to the next."""
    number, whole = 1, ""
    for at, line in enumerate([*text.splitlines(), ""], 1):
        whole = f"{whole} {line.rstrip()}" if whole else line.rstrip()
        if whole.endswith("\\"):
            whole = whole[:-1]
            continue
        if plain := re.sub(r"(?:^|\s)#.*", "", whole).strip():
            yield number, plain
        number, whole = at + 1, ""


def _files(root: Path, name: str, before: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """A file with requirements and those that it includes: name and text of each."""
    text = _text(root, name)
    yield name, text
    if Path(name).suffix not in (".lock", ".toml"):
        for _, line in _joined(text):
            if (other := _INCLUDES.fullmatch(line)) and name not in before:
                yield from _files(root, str(Path(name).parent / other[1]), (*before, name))


def _text(root: Path, name: str) -> str:
    """The text of a file below the project's folder."""
    path = root / name
    if not path.resolve().is_relative_to(root.resolve()):
        raise LockError(f"{shown(name)} is outside the project's folder", "move it there")
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LockError(
            f"there is no {shown(name)} in {root}", "correct `requirements` of the table"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(f"{shown(name)} cannot be read: {error}") from None


def read_toml(root: Path, name: str) -> dict[str, Any]:
    """The content of a TOML file below the project's folder. Raises LockError."""
    try:
        return tomllib.loads(_text(root, name))
    except tomllib.TOMLDecodeError as error:
        raise LockError(f"{name} is not valid TOML: {error}") from None


def _dependencies(
    project: Mapping[str, Any],
) -> tuple[list[Any], Mapping[str, Any], Mapping[str, Any]]:
    table = _table(project, "project")
    return (
        table.get("dependencies", []),
        _table(table, "optional-dependencies"),
        _table(project, "dependency-groups"),
    )


def _table(data: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """The table at a path; {} without one. Raises LockError for anything else there."""
    for key in path:
        data = data.get(key, {})
        if not isinstance(data, dict):
            raise LockError(f"'{'.'.join(path)}' of {SHARED} must be a table", "correct it")
    return data
