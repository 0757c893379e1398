"""One measurement in its own process: `python child.py MODULE:FUNCTION ARGUMENTS`.

Some settings are read once, when torch or CUDA starts. The last line of the output is the result,
as JSON; `in_child` runs this and reads it.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from case import Ready, Skipped
from measure import Timing

LIMIT = 120  # seconds


def in_child(function: str, env: Mapping[str, str | None], **arguments: Any) -> Ready:
    """The result of `MODULE:FUNCTION` with these arguments, in a child process.

    `env` adds to the environment; None removes a variable. Raises Skipped if the function did, and
    RuntimeError with the last line of its errors if it failed.
    """
    whole = {**os.environ, **env}
    done = subprocess.run(
        [sys.executable, __file__, function, json.dumps(arguments)],
        env={name: value for name, value in whole.items() if value is not None},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        errors = [line for line in lines if "Error: " in line]  # warnings may follow it
        raise RuntimeError(f"in a child: {(errors or lines)[-1]}")
    return unpacked(json.loads(done.stdout.splitlines()[-1]))


def packed(ready: Ready) -> dict[str, Any]:
    """The result of a child, for JSON."""
    timing = ready.timing
    assert timing is not None
    return {
        "samples": timing.samples,
        "host": timing.host,
        "device": timing.device,
        "figures": dict(ready.figures),
        "notes": dict(ready.notes),
    }


def unpacked(found: Mapping[str, Any]) -> Ready:
    """The inverse of `packed`. Raises Skipped for the result of a skipped case."""
    if "skipped" in found:
        raise Skipped(found["skipped"])
    return Ready(
        timing=Timing(tuple(found["samples"]), found["host"], found["device"]),
        figures=found["figures"],
        notes=found["notes"],
    )


def main() -> None:
    """Run a function of a module in this folder, and print its result."""
    function, arguments = sys.argv[1:]
    module, _, name = function.partition(":")
    try:
        found = packed(getattr(importlib.import_module(module), name)(**json.loads(arguments)))
    except Skipped as skipped:
        found = {"skipped": str(skipped)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
