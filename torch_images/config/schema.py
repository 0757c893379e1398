"""Annotations with which the types of images.yaml define the content of the file.

pydantic reads the annotations, and fills the types. A field's key in the file is its name with "-"
for "_", unless its class sets another one: `class Removal(Section, keys={"wheels": "of"})`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from torch_images.errors import suggest

FILLED = Field(min_length=1)
# Messages for pydantic's own errors.
_WORDS = {
    "string_type": "must be a text",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "dataclass_type": "must be a mapping",
    "too_short": "is empty; give one entry or more, or leave the key out",
}
# The "key" of a field that is not in the file: the name of an entry, which is the entry's key.
NAME = ""


class Wrong(ValueError):  # noqa: N818  pydantic turns ValueErrors into its own errors
    """A problem of a value: `problem` follows "which", or the value's name, in the message.

    `at` is the path from the value to its invalid part.
    """

    def __init__(self, problem: str, hint: str = "", at: tuple[str | int, ...] = ()) -> None:
        self.problem, self.hint, self.at = problem, hint, at
        super().__init__(problem)


def first(
    error: ValidationError, words: Mapping[str, str] | None = None
) -> tuple[tuple[str | int, ...], str, str]:
    """Place, problem and hint of the first error: later ones may follow from it.

    `words` are other messages for pydantic's own errors.
    """
    details = error.errors(include_url=False)[0]
    wrong = details.get("ctx", {}).get("error")
    if isinstance(wrong, Wrong):
        return (*details["loc"], *wrong.at), wrong.problem, wrong.hint
    said = {**_WORDS, **(words or {})}.get(details["type"], f"is refused: {details['msg']}")
    return details["loc"], said, ""


class Section:
    """A mapping with fixed keys. Dataclasses that inherit this are filled from one."""

    __pydantic_config__: ClassVar[ConfigDict]
    _key: ClassVar[Callable[[str], str]]

    def __init_subclass__(cls, *, keys: Mapping[str, str] | None = None) -> None:
        others = keys or {}
        cls._key = staticmethod(lambda name: others.get(name, name.replace("_", "-")))
        cls.__pydantic_config__ = ConfigDict(alias_generator=cls._key)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(cls._with_keys, handler(source))

    @classmethod
    def _with_keys(cls, value: Any) -> Any:
        """The value, if it has all required keys and no unknown one."""
        if not isinstance(value, dict):
            return value
        known = {cls._key(field.name): field for field in fields(cls)}  # type: ignore[arg-type]
        for key in value:
            if key not in known:
                named = [name for name in known if name != NAME]
                raise Wrong("is an unknown key", suggest(key, named), at=(key, ""))
        for key, field in known.items():
            if key not in (NAME, *value) and field.default is MISSING:
                raise Wrong(f"lacks the key '{key}'")
        return value


def _named(value: Any) -> list[Any]:
    if not isinstance(value, dict):
        raise PydanticKnownError("dict_type")
    members = value.items()
    return [{**v, NAME: key} if isinstance(v, dict) else v for key, v in members]


# A mapping whose keys become the names of its entries.
NAMED = BeforeValidator(_named)


def kept(info: ValidationInfo, kind: str) -> dict[str, Any]:
    """The entries of `kind` so far, by name."""
    context: dict[str, dict[str, Any]] | None = info.context
    assert context is not None
    return context[kind]


def listed(kind: str) -> AfterValidator:
    """Registers entries under `kind`, for later fields of `Config`."""

    def keep(entries: tuple[Any, ...], info: ValidationInfo) -> tuple[Any, ...]:
        names = kept(info, kind)
        names.clear()
        names.update({entry.name: entry for entry in entries})
        return entries

    return AfterValidator(keep)


@dataclass(frozen=True)
class As:
    """Reads a value as type `shape` first, then converts it."""

    shape: Any
    convert: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        shape = handler.generate_schema(self.shape)
        return core_schema.no_info_after_validator_function(self.convert, shape)


def pairs(key: Any, value: Any) -> As:
    """Turns a mapping into pairs."""
    return As(dict[key, value], lambda members: tuple(members.items()))


def known(kind: str) -> AfterValidator:
    """A text that must be the name of a registered entry."""

    def check(text: str, info: ValidationInfo) -> str:
        _entry(text, kind, info)
        return text

    return AfterValidator(check)


def entry(kind: str) -> BeforeValidator:
    """The registered entry of a name."""
    return BeforeValidator(lambda text, info: _entry(str(text), kind, info))


def _entry(text: str, kind: str, info: ValidationInfo) -> Any:
    entries = kept(info, kind)
    if text not in entries:
        raise Wrong(f"is an unknown {kind}", suggest(text, entries))
    return entries[text]


def some(kind: Any) -> As:
    """One text of a kind, or several."""
    one = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
    return As(Annotated[tuple[kind, ...], FILLED, one], tuple)


def choice(what: str, words: Iterable[str]) -> AfterValidator:
    """A text that must be one of some words; `what` names their kind, such as "a platform"."""
    names = tuple(words)

    def check(text: str) -> str:
        if text not in names:
            raise Wrong(f"is not {what}", suggest(text, names))
        return text

    return AfterValidator(check)


def matches(pattern: str, what: str, hint: str = "") -> AfterValidator:
    """A text that must match a whole pattern; `what` names its kind in an error."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise Wrong(f"is not {what}", hint)
        return text

    return AfterValidator(check)
