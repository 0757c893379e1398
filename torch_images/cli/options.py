"""The options of verbs: each is declared once, with its help, type and default.

A verb's options are a dataclass. Invoke's arguments derive from it, and the parsed values become an
instance of it, which checks them. Options that several verbs share are declared here.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Self, dataclass_transform

from invoke.parser.argument import Argument

from torch_images.errors import UsageError, suggest

Parse = Callable[[str, str], Any]  # takes the option, such as "--jobs", and its value
GPUS = "all, a number, device=0,1, or names of CDI devices such as nvidia.com/gpu=0"


def word(text: str, *, unless: str = "") -> Any:
    """A required word with its help. It may also be given as an option.

    With the flag `unless` it is not required, and is "" if missing.
    """
    return dataclasses.field(metadata={"help": text, "kind": str, "unless": unless})


def option(text: str, *, default: Any = "", parse: Parse | None = None, needs: str = "") -> Any:
    """An option that takes a value; `text` is its help, `parse` converts the value.

    It has an effect only with the flag or option `needs`, and is refused without it.
    """
    metadata = {"help": _needing(text, needs), "kind": str, "parse": parse, "needs": needs}
    return dataclasses.field(default=default, metadata=metadata)


def several(text: str) -> Any:
    """An option that can be repeated; `text` is its help."""
    return dataclasses.field(default=(), metadata={"help": f"{text}; repeatable", "kind": list})


def flag(text: str, *, needs: str = "") -> Any:
    """A flag; `text` is its help. `needs` as for an option."""
    metadata = {"help": _needing(text, needs), "kind": bool, "needs": needs}
    return dataclasses.field(default=False, metadata=metadata)


def _needing(text: str, needs: str) -> str:
    return f"with {_dashed(needs)}: {text}" if needs else text


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class _Argument(Argument):
    """An Invoke argument that is not required if the flag `unless` is given."""

    unless: Argument | None = None

    @property
    def value(self) -> Any:
        """The value given, or the default."""
        value = super().value
        return "" if value is None and self.unless and self.unless.value else value

    @value.setter
    def value(self, given: str) -> None:
        self.set_value(given)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(word,))
@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a verb; each subclass becomes a dataclass too."""

    def __init_subclass__(cls) -> None:
        # Each generated method slows every start of ./inv; nothing uses these two.
        dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)

    @classmethod
    def arguments(cls) -> list[Argument]:
        """The options as Invoke arguments, without short forms."""
        by_name = {
            one.name: _Argument(
                names=(one.name.replace("_", "-"),),
                attr_name=one.name if "_" in one.name else None,
                kind=one.metadata["kind"],
                default=one.default if one.metadata["kind"] is bool else None,
                help=one.metadata["help"],
                positional=one.default is dataclasses.MISSING,
            )
            for one in dataclasses.fields(cls)
        }
        for one in dataclasses.fields(cls):
            by_name[one.name].unless = by_name.get(one.metadata.get("unless", ""))
        return list(by_name.values())

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> Self:
        """The options from the values that Invoke parsed; an empty value counts as not given.

        Raises UsageError for a value that an option does not accept, and for an option that has no
        effect without another one.
        """
        given = {}
        for one in dataclasses.fields(cls):
            value, name = words.get(one.name), _dashed(one.name)
            if not value and one.default is not dataclasses.MISSING:
                continue
            value = tuple(value) if isinstance(value, list) else value
            if "\0" in ("".join(value) if isinstance(value, tuple) else str(value)):
                raise UsageError(f"{name} contains a zero byte", "leave it out")
            parse = one.metadata.get("parse")
            given[one.name] = parse(name, value) if parse else value
        for one in dataclasses.fields(cls):
            needs = one.metadata.get("needs", "")
            if needs and one.name in given and needs not in given:
                raise UsageError(
                    f"{_dashed(one.name)} has an effect only with {_dashed(needs)}",
                    f"add {_dashed(needs)}, or leave it out",
                )
        return cls(**given)


def one_of(*known: str) -> Parse:
    """A parser that accepts the words `known`."""

    def parse(name: str, text: str) -> str:
        if text not in known:
            raise UsageError(f"unknown {name.strip('-')} '{text}'", suggest(text, known))
        return text

    return parse


def number(*, least: int) -> Parse:
    """A parser for a number of at least `least`."""

    def parse(name: str, text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) < least:
            raise UsageError(f"{name} '{text}' is not a number", f"give {least} or more")
        return int(text)

    return parse


def seconds(name: str, text: str) -> int:
    """Parse a duration such as 30s, 90m or 2h into seconds. Raises UsageError for other text."""
    match = re.fullmatch(r"([1-9][0-9]{0,4})([smh])", text)
    if not match:
        raise UsageError(f"{name} '{text}' is not a duration", "give one such as 30s, 90m or 2h")
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def fraction(name: str, text: str) -> str:
    """A builder's share of the units to compile, such as 1/2. Raises UsageError for other text."""
    match = re.fullmatch(r"([1-9][0-9]?)/([1-9][0-9]?)", text)
    if not (match and int(match[1]) <= int(match[2]) > 1):
        raise UsageError(
            f"{name} '{text}' is not a share", "give 1/2 to one builder and 2/2 to the other"
        )
    return text


class Json(Options):
    """For verbs whose result is data."""

    json: bool = flag("print the result as JSON")


class DryRun(Options):
    """For verbs that change state."""

    dry_run: bool = flag("show what would happen; change nothing")


class Image(Options):
    """For verbs that work on an existing image."""

    image: str = word("tag, image id or identifier")


class Registry(Options):
    """For verbs that use names in a registry."""

    registry: str = option(
        "registry and owner, such as ghcr.io/me (default: TORCH_IMAGES_REGISTRY, then images.yaml)"
    )


class Mirror(Options):
    """For verbs that read a distribution's packages."""

    mirror: tuple[str, ...] = several("mirror of the base's packages: URL or sources.list line")


class Building(Mirror):
    """For verbs that build: the axes that they share, and how to build."""

    cuda: str = option("CUDA version")
    arch: str = option("compute capability to build for, several as 9.0,12.0 (default: all)")
    source: str = option("source of torch")
    base: str = option("base of the image")
    torch_source: str = option("compile torch from PATH, PATH@COMMIT or URL@COMMIT instead")
    jobs: int = option(
        "compilers to run at once (default: as many as the builder's memory allows)",
        default=0,
        parse=number(least=1),
    )
    builder: str = option("buildx builder to use (see `docker buildx ls`)")
    no_cache: bool = flag("build without any cache, including the base")
    progress: str = option(
        "how BuildKit shows progress: auto, plain or tty",
        default="auto",
        parse=one_of("auto", "plain", "tty"),
    )
    locked: bool = flag("stop if a locked input has vanished, instead of resolving it again")
    skip_disk_check: bool = flag("build even if the disk looks too small")

    @property
    def axes(self) -> dict[str, str]:
        """The values of axes; "" for the default. The flag --compat is a value, too."""
        from torch_images.config.types import AXES, WITH

        values = {axis: getattr(self, axis) for axis in AXES if hasattr(self, axis)}
        return {axis: WITH if value is True else value or "" for axis, value in values.items()}
