"""What a command line can say: each option is declared once, with its help, type and default.

A verb's options are a dataclass. Invoke's arguments are made from it, and what Invoke reads becomes
one object of it, whose words are checked. Options of several verbs are declared here.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Self, dataclass_transform

from invoke.parser.argument import Argument

from torch_images.errors import UsageError, suggest

Parse = Callable[[str, str], Any]  # of the option, such as "--jobs", and the word after it
GPUS = "all, a number, device=0,1, or names of CDI devices such as nvidia.com/gpu=0"


def word(text: str, *, unless: str = "") -> Any:
    """A word that a verb needs, with its help. It may be given as an option, too.

    With the flag `unless` the verb does not need it, and gets "".
    """
    return dataclasses.field(metadata={"help": text, "kind": str, "unless": unless})


def option(text: str, *, default: Any = "", parse: Parse | None = None) -> Any:
    """An option with its help, which takes a word; `parse` makes a value of it."""
    return dataclasses.field(default=default, metadata={"help": text, "kind": str, "parse": parse})


def several(text: str) -> Any:
    """An option with its help, which can be repeated."""
    return dataclasses.field(default=(), metadata={"help": f"{text}; repeatable", "kind": list})


def flag(text: str) -> Any:
    """An option with its help, which is given or not."""
    return dataclasses.field(default=False, metadata={"help": text, "kind": bool})


class _Argument(Argument):
    """An argument of Invoke's that is not missing where the flag `unless` is given."""

    unless: Argument | None = None

    @property
    def value(self) -> Any:
        """What was given, or the default."""
        value = super().value
        return "" if value is None and self.unless and self.unless.value else value

    @value.setter
    def value(self, given: str) -> None:
        self.set_value(given)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(word,))
@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a verb; a class below it becomes a dataclass, too."""

    def __init_subclass__(cls) -> None:
        # Each method that dataclass writes costs every start of ./inv; nothing uses those two.
        dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)

    @classmethod
    def arguments(cls) -> list[Argument]:
        """The options as Invoke reads them, without short forms."""
        found = {
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
            found[one.name].unless = found.get(one.metadata.get("unless", ""))
        return list(found.values())

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> Self:
        """The options that Invoke read; an empty word is as good as none.

        Raises UsageError for a word that its option cannot have.
        """
        given = {}
        for one in dataclasses.fields(cls):
            value, name = words.get(one.name), f"--{one.name.replace('_', '-')}"
            if not value and one.default is not dataclasses.MISSING:
                continue
            value = tuple(value) if isinstance(value, list) else value
            if "\0" in ("".join(value) if isinstance(value, tuple) else str(value)):
                raise UsageError(f"{name} has a zero byte in it", "leave it out")
            parse = one.metadata.get("parse")
            given[one.name] = parse(name, value) if parse else value
        return cls(**given)


def one_of(*known: str, kind: str = "") -> Parse:
    """One of some words; `kind` is what an error calls them, else the option's name."""

    def parse(name: str, text: str) -> str:
        if text not in known:
            raise UsageError(f"unknown {kind or name.strip('-')} '{text}'", suggest(text, known))
        return text

    return parse


def number(*, least: int) -> Parse:
    """A number from `least` on."""

    def parse(name: str, text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) < least:
            raise UsageError(f"{name} '{text}' is not a number", f"give one from {least} on")
        return int(text)

    return parse


def seconds(name: str, text: str) -> int:
    """The seconds of a time such as 30s, 90m or 2h. Raises UsageError for anything else."""
    found = re.fullmatch(r"([1-9][0-9]{0,4})([smh])", text)
    if not found:
        raise UsageError(f"{name} '{text}' is not a time", "give one such as 30s, 90m or 2h")
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def fraction(name: str, text: str) -> str:
    """A builder's part of the units. Raises UsageError for anything but 1/2, 2/2, ..."""
    found = re.fullmatch(r"([1-9][0-9]?)/([1-9][0-9]?)", text)
    if not (found and int(found[1]) <= int(found[2]) > 1):
        raise UsageError(
            f"{name} '{text}' is not a share", "give 1/2 to one builder and 2/2 to the other"
        )
    return text


def compat_mode(name: str, text: str) -> str:
    """A way to deal with compat libraries. Raises UsageError for one that there is not."""
    from torch_images.config.types import COMPAT_MODES

    return str(one_of(*COMPAT_MODES, kind="compat mode")(name, text))


class Json(Options):
    """For verbs whose result is data."""

    json: bool = flag("print the result as JSON")


class DryRun(Options):
    """For verbs that change what they find."""

    dry_run: bool = flag("say what would happen, change nothing")


class Image(Options):
    """For verbs that work on an image that is there."""

    image: str = word("tag, image id or identifier")


class Registry(Options):
    """For verbs that name images as a registry has them."""

    registry: str = option(
        "registry and owner, such as ghcr.io/me, else TORCH_IMAGES_REGISTRY, images.yaml's"
    )


class Mirror(Options):
    """For verbs that read packages of a distribution."""

    mirror: tuple[str, ...] = several("mirror of the base's packages: URL or sources.list line")


class Building(Mirror):
    """For verbs that build: what, by the axes that all of them have, and how."""

    cuda: str = option("CUDA version")
    arch: str = option("code for this compute capability alone, several as 9.0,12.0; else for all")
    source: str = option("where torch comes from")
    base: str = option("what the image starts from")
    torch_source: str = option("compile torch from PATH, PATH@COMMIT or URL@COMMIT instead")
    jobs: int = option(
        "compilers to run at once, else what the builder has memory for",
        default=0,
        parse=number(least=1),
    )
    builder: str = option("buildx builder to use (see `docker buildx ls`)")
    no_cache: bool = flag("build from nothing, the base included")
    progress: str = option(
        "how BuildKit shows progress: auto, plain or tty",
        default="auto",
        parse=one_of("auto", "plain", "tty"),
    )
    locked: bool = flag("stop where a locked input has vanished, instead of resolving it afresh")
    skip_disk_check: bool = flag("build even if the disk looks too small")

    @property
    def axes(self) -> dict[str, str]:
        """The values of axes; "" for the default."""
        from torch_images.config.types import AXES

        return {axis: getattr(self, axis) for axis in AXES if hasattr(self, axis)}
