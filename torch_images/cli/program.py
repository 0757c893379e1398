"""The program: a command line in, a verb's result on stdout, and an exit code."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from torch_images.cli import parser, verb
from torch_images.cli.called import line
from torch_images.cli.collection import VERBS, listing
from torch_images.errors import TorchImagesError
from torch_images.interrupts import CODE, TEXT, end_at_once, finishing, raise_from_now_on
from torch_images.project import PROJECT, version
from torch_images.redact import Redactor, stream

CONFIG, SETUP = "TORCH_IMAGES_CONFIG", "TORCH_IMAGES_SETUP"


def main() -> None:
    """Run ./inv or `torch-images`; ends the process."""
    end_at_once()
    hide_secrets()
    raise SystemExit(run(sys.argv[1:]))


def hide_secrets() -> None:
    """Keep secrets out of stdout and stderr, including tracebacks."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path may not be valid text
        sys.stdout.reconfigure(errors="backslashreplace")
    redactor = Redactor.of(os.environ, sys.argv)
    sys.stdout, sys.stderr = stream(sys.stdout, redactor), stream(sys.stderr, redactor)


def _run(words: Sequence[str]) -> None:
    before = parser.of_program()
    given, unknown = before.parse_known_args(words, argparse.Namespace(verb="", words=[]))
    before.refuse(unknown)
    if given.verb == "help":
        given.verb, given.help = next(iter(given.words), ""), True
    if "yes" in given and os.environ.get(SETUP):
        os.environ[SETUP] = "yes"
    help_ = "help" in given or bool({"--help", "-h"} & {*given.words})
    if "config" in given:
        os.environ[CONFIG] = os.path.abspath(given.config)  # noqa: PTH100  keeps a link
    if "project" in given:
        os.environ[PROJECT] = os.path.abspath(given.project)  # noqa: PTH100  as above
    if "version" in given:
        print(f"torch-images {version()}")
    elif "list" in given or not given.verb:
        print(parser.of_program(listing()).format_help(), end="")
    elif help_:
        print(parser.of_verb(parser.find(VERBS, given.verb), values=True).format_help(), end="")
    else:
        values = parser.parse(VERBS, given.verb, given.words)
        with finishing():
            raise_from_now_on()
            _perform(VERBS[given.verb], values)
            sys.stdout.flush()


def _perform(one: verb.Verb, words: Mapping[str, Any]) -> None:
    options = one.options.of(words)
    if result := one.function(options):
        json = getattr(options, "json", False)
        data = {"schema": verb.SCHEMA, **result.data}
        if text := verb.as_json(data) if json else result.text:
            print(text)
        sys.stdout.flush()
        result.then()


def run(words: Sequence[str]) -> int:
    """Run a command line. Returns the exit code; an error is one line on stderr."""
    try:
        _run(words)
        sys.stdout.flush()
    except TorchImagesError as error:
        return _failed(error)
    except BrokenPipeError:  # `./inv matrix | head`: the reader has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        from torch_images.host.diagnose import of_system

        if problem := of_system(error):
            return _failed(problem)
        raise
    except KeyboardInterrupt:  # Ctrl-C while Python's own handler is in place
        print(TEXT, file=sys.stderr)
        return CODE
    return 0


def _failed(error: TorchImagesError) -> int:
    print(line(error), file=sys.stderr)
    return error.exit_code
