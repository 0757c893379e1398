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
from torch_images.cli.options import dashed
from torch_images.cli.verb import Verb
from torch_images.interrupts import end_at_once

# Invoke disables bytecode; every command would then compile its imports again.
sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
_EMPTY: dict[str, object] = {"store": "", "store_true": False, "append": []}


def _task(verb: Verb) -> Task[Any]:
    def body(context: Context, **words: Any) -> None:
        if context.config.run.dry:
            raise Exit("error: --dry is not supported here; verbs have --dry-run", code=2)
        line = [verb.name]
        for name, value in words.items():
            given = filter(None, value if isinstance(value, list) else [value])
            line += (dashed(name) if v is True else f"{dashed(name)}={v}" for v in given)
        end_at_once()
        program.hide_secrets()
        raise SystemExit(program.run(line))

    fields = verb.options.fields()
    words = [f.name for f in fields if f.metadata["required"]]
    actions = {f.name: f.metadata["argument"]["action"] for f in fields}
    parameters = [Parameter("context", Parameter.POSITIONAL_ONLY)]
    for field in fields:
        default = Parameter.empty if field.name in words else _EMPTY[actions[field.name]]
        parameters.append(Parameter(field.name, Parameter.KEYWORD_ONLY, default=default))
    body.__doc__ = verb.doc
    body.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return Task(
        body,
        name=verb.name,
        auto_shortflags=False,
        positional=words,
        iterable=[name for name, action in actions.items() if action == "append"],
        help={f.name.replace("_", "-"): f.metadata["argument"]["help"] for f in fields},
    )


namespace = Collection(*map(_task, VERBS.values()))
