"""The options of verbs: each is declared once, with its help, type and default.

A verb's options are a dataclass. Its parser derives from it (parser.py), and the parsed values
become an instance of it, which checks them. Options that several verbs share are declared here.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, dataclass_transform

from torch_images.errors import UsageError, suggest

Parse = Callable[[str, str], Any]  # takes the option, such as "--jobs", and its value
GPUS = "all, a number, device=0,1, or names of CDI devices such as nvidia.com/gpu=0"


def word(text: str, *, unless: str = "") -> Any:
    """A required word with its help, or an option; not required, and "", with the flag `unless`."""
    return _field(text, str, "", required=True, unless=unless)


def option(text: str, *, default: Any = "", parse: Parse | None = None, needs: str = "") -> Any:
    """An option that takes a value; `text` is its help, `parse` converts the value.

    It has an effect only with the flag or option `needs`, and is refused without it.
    """
    return _field(_needing(text, needs), str, default, parse=parse, needs=needs)


def several(text: str) -> Any:
    """An option that can be repeated; `text` is its help."""
    return _field(f"{text}; repeatable", list, (), parse=lambda _, words: tuple(words))


def flag(text: str, *, needs: str = "") -> Any:
    """A flag; `text` is its help. `needs` as for an option."""
    return _field(_needing(text, needs), bool, default=False, needs=needs)


def _field(text: str, kind: type, default: object, **more: Any) -> Any:
    known = {"required": False, "unless": "", "parse": None, "needs": ""}
    metadata = {**known, "help": text, "kind": kind, **more}
    return dataclasses.field(default=default, metadata=metadata)


def _needing(text: str, needs: str) -> str:
    return f"with {dashed(needs)}: {text}" if needs else text


def dashed(name: str) -> str:
    """The option of a field."""
    return f"--{name.replace('_', '-')}"


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(word,))
@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a verb; each subclass becomes a dataclass too."""

    def __init_subclass__(cls) -> None:
        # Each generated method slows every start of ./inv; nothing uses these two.
        dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> Self:
        """The options from parsed values; an empty value counts as not given.

        Raises UsageError for a missing word, for a value that an option does not accept, and for an
        option that has no effect without another one.
        """
        given: dict[str, Any] = {}
        for one in cls.fields():
            if value := words.get(one.name):
                parse = one.metadata["parse"]
                given[one.name] = parse(dashed(one.name), value) if parse else value
        for one in cls.fields():
            needs = one.metadata["needs"]
            if needs and one.name in given and needs not in given:
                raise UsageError(
                    f"{dashed(one.name)} has an effect only with {dashed(needs)}",
                    f"add {dashed(needs)}, or leave it out",
                )
        missing = [
            one
            for one in cls.fields()
            if one.metadata["required"] and not {one.name, one.metadata["unless"]} & given.keys()
        ]
        if missing:
            names = " and ".join(dashed(one.name) for one in missing)
            raise UsageError(f"{names} must be given", missing[0].metadata["help"])
        return cls(**given)

    @classmethod
    def fields(cls) -> Sequence[dataclasses.Field[Any]]:
        """The declared options."""
        return dataclasses.fields(cls)

    @classmethod
    def words(cls) -> Sequence[str]:
        """The names of those that are required."""
        return [one.name for one in cls.fields() if one.metadata["required"]]


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


class Building(Options):
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
    skip_disk_check: bool = flag("build even if the disk looks too small")

    @property
    def axes(self) -> dict[str, str]:
        """The values of axes; "" for the default. The flag --compat is a value, too."""
        from torch_images.config.types import AXES, WITH

        values = {axis: getattr(self, axis) for axis in AXES if hasattr(self, axis)}
        return {axis: WITH if value is True else value or "" for axis, value in values.items()}
