"""mutmut with two changes, run in a staged copy of the project; see __main__.py.

Started with mutmut on PYTHONPATH, which the project's own environment lacks.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import Any


def main(arguments: list[str]) -> None:
    """Run mutmut's command line, with the texts of messages left as they are; `show` takes several.

    A string of several words is a message to a person: what it says is read in review, and a test
    that compares it letter by letter would only repeat it. Strings without a blank, such as names,
    options, paths and keys, are changed like all else.
    """
    cst: Any = importlib.import_module("libcst")
    mutators: Any = importlib.import_module("mutmut.mutation.mutators")
    change = mutators.operator_string

    def names_only(node: Any) -> Iterable[Any]:
        plain = isinstance(node, cst.SimpleString)
        return [] if plain and " " in node.value.strip(" \"'") else change(node)

    mutators.mutation_operators[:] = [
        (kind, names_only if operator is change else operator)
        for kind, operator in mutators.mutation_operators
    ]
    assert (cst.BaseString, names_only) in mutators.mutation_operators
    command: Any = importlib.import_module("mutmut.__main__")
    verb, *names = arguments
    if verb != "show":
        command.cli(arguments)
    for name in names:  # mutmut itself shows one at a time
        command.cli([verb, name], standalone_mode=False)


if __name__ == "__main__":
    main(sys.argv[1:])
