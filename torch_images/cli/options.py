"""The options of verbs: each is declared once, with its help, type and default.

A verb's options are a dataclass. Its parser derives from it (parser.py), and the parsed values
become an instance of it. Options that several verbs share are declared here.
"""

from __future__ import annotations

import dataclasses
import re
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from typing import Any, Self, dataclass_transform

from torch_images.errors import UsageError

GPUS = "all, a number, device=0,1, or names of CDI devices such as nvidia.com/gpu=0"
_BYTES = {"M": 10**6, "G": 10**9, "T": 10**12}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def word(text: str, *, required: bool = True) -> Any:
    """A word with its help, or an option; "" if it is not required."""
    return _field(text, word=True, required=required)


def option(text: str, *, default: Any = "", needs: str = "", **argument: Any) -> Any:
    """An option that takes a value; `argument` is for argparse, such as `type`.

    It has an effect only with the flag or option `needs`, and is refused without it.
    """
    return _field(text, default, needs=needs, **argument)


def several(text: str) -> Any:
    """An option that can be repeated."""
    return _field(f"{text}; repeatable", (), action="append")


def flag(text: str, *, needs: str = "") -> Any:
    """A flag. `needs` as for an option."""
    return _field(text, default=False, needs=needs, action="store_true")


def _field(
    text: str,
    default: object = "",
    *,
    needs: str = "",
    word: bool = False,
    required: bool = False,
    action: str = "store",
    **argument: Any,
) -> Any:
    text = f"with {dashed(needs)}: {text}" if needs else text
    metadata = {"word": word, "required": required, "needs": needs}
    metadata |= {"argument": {"help": text, "action": action, **argument}}
    return dataclasses.field(default=default, metadata=metadata)


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

        Raises UsageError for a missing word, and for an option that has no effect without another.
        """
        given = {name: value for name, value in words.items() if value != ""}
        if "image" in cls.words() and "image" not in given and (own := _own_image()):
            given["image"] = own
        for one in cls.fields():
            needs = one.metadata["needs"]
            if needs and one.name in given and needs not in given:
                raise UsageError(
                    f"{dashed(one.name)} has an effect only with {dashed(needs)}",
                    f"add {dashed(needs)}, or leave it out",
                )
        needed = (one for one in cls.fields() if one.metadata["required"])
        missing = [one for one in needed if one.name not in given]
        if missing:
            names = " and ".join(dashed(one.name) for one in missing)
            raise UsageError(f"{names} must be given", missing[0].metadata["argument"]["help"])
        return cls(**given)

    @classmethod
    def fields(cls) -> Sequence[dataclasses.Field[Any]]:
        """The declared options."""
        return dataclasses.fields(cls)

    @classmethod
    def words(cls) -> Sequence[str]:
        """The names of options that need no name on a command line."""
        return [one.name for one in cls.fields() if one.metadata["word"]]


def _own_image() -> str:
    """The name of the image of the user's own project; "" without one."""
    from torch_images.config import own
    from torch_images.project import own_folder

    file = own.find(own_folder())
    return own.load(file).repository if file else ""


def _match(pattern: str, text: str, what: str) -> re.Match[str]:
    if not (match := re.fullmatch(pattern, text)):
        raise ArgumentTypeError(f"'{text}' is not {what}")
    return match


def number(text: str) -> int:
    """A type of options: a number, 1 or more."""
    return int(_match(r"[1-9][0-9]{0,5}", text, "a number, 1 or more")[0])


def seconds(text: str) -> int:
    """A type of options: a duration such as 90m, 2h or 8w, in seconds."""
    match = _match(r"([0-9]{1,5})([smhdw])", text, "a duration such as 90m, 2h or 8w")
    return int(match[1]) * _SECONDS[match[2]]


def size(text: str) -> int:
    """A type of options: a size such as 50GB, in bytes."""
    match = _match(r"([1-9][0-9]{0,5})([MGT])B", text, "a size such as 50GB or 500MB")
    return int(match[1]) * _BYTES[match[2]]


def fraction(text: str) -> str:
    """A type of options: a builder's share of the units to compile, such as 1/2."""
    what = "a share: 1/2 is one builder's, 2/2 the other's"
    match = _match(r"([1-9][0-9]?)/([1-9][0-9]?)", text, what)
    if not int(match[1]) <= int(match[2]) > 1:
        raise ArgumentTypeError(f"'{text}' is not {what}")
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
        type=number,
    )
    builder: str = option("buildx builder to use (see `docker buildx ls`)")
    no_cache: bool = flag("build without any cache, including the base")
    skip_disk_check: bool = flag("build even if the disk looks too small")

    @property
    def axes(self) -> dict[str, str]:
        """The values of axes; "" for the default. The flag --compat is a value, too."""
        from torch_images.config.types import AXES, WITH

        values = {axis: getattr(self, axis) for axis in AXES if hasattr(self, axis)}
        return {axis: WITH if value is True else value or "" for axis, value in values.items()}
