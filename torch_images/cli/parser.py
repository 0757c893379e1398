"""Command lines: argparse, from the options that verbs declare."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from torch_images.cli.called import as_called, called
from torch_images.cli.options import dashed
from torch_images.cli.verb import Verb, config
from torch_images.errors import TorchImagesError, UsageError, suggest

Verbs = Mapping[str, Verb]


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations, whose errors are UsageErrors."""

    def __init__(self, prog: str, usage: str, text: str, example: str = "") -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} {usage}",
            description=_literal(text),
            epilog=f"Example:\n  {called()} {_literal(example)}" if example else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            add_help=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(message.removeprefix("argument "), f"see `{self.prog} --help`")

    def refuse(self, unknown: Sequence[str]) -> None:
        """Raise UsageError for the first of some words that the parser does not know."""
        for word in unknown:
            if word.startswith("-"):
                flags = [f for f in self._option_string_actions if f.startswith("--")]
                raise UsageError(f"unknown option '{word}'", suggest(word, flags))
            self.error(f"unexpected argument '{word}'")


def of_program(listed: str = "") -> Parser:
    """The parser of what stands before a verb's own words; `listed` are the verbs in its help."""
    parser = Parser(called(), "[--options] VERB [words and options of the verb]", listed)
    add = parser.add_argument_group("Options").add_argument
    add("--help", "-h", action="store_true", help="show this help; after a verb, the verb's")
    add("--list", "-l", action="store_true", help="list the verbs")
    add("--version", "-V", action="store_true", help="show the version")
    text = "images.yaml to use, with its locks in locks/ beside it (or TORCH_IMAGES_CONFIG)"
    add("--yes", action="store_true", help="set up Docker without a question, if it is missing")
    add("--config", "-f", metavar="FILE", help=text)
    text = "folder of your own image, with a torch-images.toml (default: this folder)"
    add("--project", "-p", metavar="FOLDER", help=text)
    parser.add_argument("verb", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def of_verb(one: Verb, *, values: bool = False) -> Parser:
    """The parser of a verb's words; with `values`, its help lists those of axes."""
    usage = " ".join([*map(str.upper, one.options.words()), "[--options]"])
    parser = Parser(f"{called()} {one.name}", usage, one.doc, one.example)
    group = parser.add_argument_group("Options")
    known = _axis_values() if values else {}
    for field in one.options.fields():
        argument = {**field.metadata["argument"]}
        text, listed = as_called(argument["help"]), known.get(field.name, "")
        if "(default" in text:
            listed = listed.partition(" (default")[0]
        argument["help"] = _literal(text + listed)
        group.add_argument(dashed(field.name), **argument)
    return parser


def parse(verbs: Verbs, name: str, words: Sequence[str]) -> Mapping[str, Any]:
    """The values of a verb's options. Raises UsageError for a word that it does not know."""
    one = find(verbs, name)
    parser = of_verb(one)
    values, rest = parser.parse_known_args(words)
    # Words without an option are values of the required ones that none has yet, in their order.
    missing = [word for word in one.options.words() if word not in values]
    options = [word for word in rest if word.startswith("-")]
    parser.refuse(options or rest[len(missing) :])
    return {**dict(zip(missing, rest, strict=False)), **vars(values)}


def find(verbs: Verbs, name: str) -> Verb:
    """A verb by its name. Raises UsageError for another name."""
    if name not in verbs:
        raise UsageError(f"unknown command '{name}'", suggest(name, verbs))
    return verbs[name]


def _literal(text: str) -> str:
    return text.replace("%", "%%")


def _axis_values() -> dict[str, str]:
    """For the help of an axis: its values in images.yaml; {} if the file has errors."""
    try:
        known = config()
    except TorchImagesError:
        return {}
    # The defaults of other axes depend on these two.
    defaults = {"cuda": known.defaults.cuda, "variant": known.defaults.variant}
    axes = ("cuda", "torch", "arch", "source", "base", "variant", "platform")
    return {
        axis: f"; one of {', '.join(known.names(axis))}"
        + (f" (default: {defaults[axis]})" if axis in defaults else "")
        for axis in axes
    }
