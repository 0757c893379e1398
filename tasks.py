"""The verbs as tasks of plain Invoke: `invoke build --cuda 13.0` does what `./inv build` does."""

from __future__ import annotations

import os
import sys
from inspect import Parameter, Signature
from typing import Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task

from torch_images.cli import program
from torch_images.cli.collection import VERBS
from torch_images.cli.verb import Verb
from torch_images.interrupts import end_at_once

# Invoke disables bytecode; every command would then compile its imports again.
sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
_EMPTY: dict[type, object] = {str: "", bool: False, list: []}


def _task(verb: Verb) -> Task[Any]:
    def body(context: Context, **words: Any) -> None:
        if context.config.run.dry:
            raise Exit("error: --dry is not supported here; verbs have --dry-run", code=2)
        end_at_once()
        program.hide_secrets()
        raise SystemExit(program.perform(verb, words))

    fields = verb.options.fields()
    words = [f.name for f in fields if f.metadata["required"] and not f.metadata["unless"]]
    parameters = [Parameter("context", Parameter.POSITIONAL_ONLY)]
    for field in fields:
        default = Parameter.empty if field.name in words else _EMPTY[field.metadata["kind"]]
        parameters.append(Parameter(field.name, Parameter.KEYWORD_ONLY, default=default))
    body.__doc__ = verb.doc
    body.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return Task(
        body,
        name=verb.name,
        auto_shortflags=False,
        positional=words,
        iterable=[field.name for field in fields if field.metadata["kind"] is list],
        help={field.name.replace("_", "-"): field.metadata["help"] for field in fields},
    )


namespace = Collection(*map(_task, VERBS.values()))
